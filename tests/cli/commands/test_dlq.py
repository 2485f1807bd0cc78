"""Claims about ``einmal dlq``: what it lists and shows, and that a replay copies each record once."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from einmal.client import Producer
from einmal.client.errors import KafkaError
from einmal.commit_protocol.commit_record import REPLAY_TOPIC
from einmal.pipeline.dead_letters import FailedRecord, RowFailure, dead_letter
from einmal.spark.operate.dead_letter_queue import DeadLetterQueue, Selection
from einmal.types import Header
from tests.cli.running import Cli
from tests.spark.topics import records
from tests.suite.shared import unique

pytestmark = pytest.mark.system

REASONS = ("MalformedValue", "MissingField")


class Queue:
    """A topic of originals, and its dead-letter topic with the letters of 0 to ``count``."""

    def __init__(self, cluster: str, cli: Cli, count: int = 10) -> None:
        self.cluster = cluster
        self.topic = unique("orders")
        self.letters = f"{self.topic}-dlq"
        # Its letters are years old: a broker that lives for minutes looks for what it may delete.
        cli("topic", "create", self.topic, self.letters, "-p", "2", "-c", "retention.ms=-1")
        with Producer({"bootstrap.servers": cluster}) as producer:
            for number in range(count):
                row = dead_letter(self.record(number), self.failure(number), self.letters)
                headers = [(each["key"], each["value"]) for each in row["headers"]]
                producer.send(self.letters, row["value"], row["key"], headers, number % 2, 1_700_000_000_000 + number)

    def record(self, number: int) -> FailedRecord:
        return FailedRecord(
            topic=self.topic,
            partition=number % 2,
            offset=100 + number,
            key=f"k{number}".encode(),
            value=f"{{{number}\xff".encode("latin-1"),
            headers=(Header("trace", b"t"),),
        )

    def failure(self, number: int) -> RowFailure:
        reason = REASONS[number % 2]
        exception = f"einmal.schemas.errors.{reason}"
        return RowFailure(
            source="orders", batch=1, stage="VALUE_CONVERTER", exception=exception, message="not JSON", executing="x"
        )

    def originals(self, topic: str | None = None) -> list[tuple[int, bytes | None, bytes | None, tuple[Header, ...]]]:
        found = records(self.cluster, topic or self.topic)
        return sorted((at.partition, each.key, each.value, each.headers) for at, each in found)

    def expected(self, *numbers: int) -> list[tuple[int, bytes | None, bytes | None, tuple[Header, ...]]]:
        sent = [self.record(number) for number in numbers]
        return sorted((each.partition, each.key, each.value, each.headers) for each in sent)


@pytest.fixture
def queue(cluster: str, cli: Cli) -> Queue:
    return Queue(cluster, cli)


def test_list_counts_by_reason_and_show_has_context_and_bounded_bytes(cli: Cli, queue: Queue) -> None:
    rows = cli("dlq", "list", queue.letters, "--format", "json").document
    assert [(row["reason"], row["count"], row["replayed"]) for row in rows] == [(each, 5, 0) for each in REASONS]
    assert {(row["source"], row["stage"], row["topic"]) for row in rows} == {("orders", "VALUE_CONVERTER", queue.topic)}
    shown = cli("dlq", "show", queue.letters, "1:0", "--format", "json").document
    assert (shown["reason"], shown["original"]) == ("MissingField", f"{queue.topic}-1:101")
    assert (shown["value"], shown["key"], shown["headers"]) == ("0x7b31ff", "k1", {"trace": "t"})
    result = cli("dlq", "show", queue.letters, "0:99", status=1)
    assert "no such dead letter" in result.errors[0]


def test_a_replay_copies_original_records_once_however_often_it_runs(cli: Cli, queue: Queue) -> None:
    first = cli("dlq", "replay", queue.letters, "--reason", "MissingField", "--yes", "--format", "json").document
    assert (first["copied"], first["replayed_earlier"]) == (5, 0)
    assert queue.originals() == queue.expected(1, 3, 5, 7, 9)
    second = cli("dlq", "replay", queue.letters, "--yes", "--format", "json").document
    assert (second["copied"], second["replayed_earlier"]) == (5, 5)
    assert queue.originals() == queue.expected(*range(10))
    assert cli("dlq", "replay", queue.letters, "--yes", "--format", "json").document["copied"] == 0
    assert [row["replayed"] for row in cli("dlq", "list", queue.letters, "--format", "json").document] == [5, 5]


def test_a_replay_to_another_topic_and_of_one_offset(cli: Cli, queue: Queue) -> None:
    other = f"{queue.topic}-repair"
    cli("topic", "create", other)
    cli("dlq", "replay", queue.letters, "--offset", "1:2", "--to", other, "--yes")
    assert [each[1:] for each in queue.originals(other)] == [each[1:] for each in queue.expected(5)]
    assert queue.originals() == []


def test_letters_without_headers_need_a_topic_and_reserved_topics_are_refused(cli: Cli, queue: Queue) -> None:
    bare = f"{queue.topic}-bare"
    cli("topic", "create", bare)
    with Producer({"bootstrap.servers": queue.cluster}) as producer:
        producer.send(bare, "x")
    assert "--to" in cli("dlq", "replay", bare, "--yes", status=1).errors[-1]
    assert "not replayed to" in " ".join(cli("dlq", "replay", bare, "--to", REPLAY_TOPIC, "--yes", status=1).errors)


def test_a_second_replay_fences_the_first_and_each_record_is_copied_once(
    cluster: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from einmal.spark.operate import dead_letter_queue

    monkeypatch.setattr(dead_letter_queue, "_TOGETHER", 3)
    queue = Queue(cluster, cli, count=12)
    second: list[int] = []

    def overtake(copied: int) -> None:
        if copied == 3:
            with DeadLetterQueue({"bootstrap.servers": cluster}, queue.letters) as other:
                second.append(other.replay(Selection()).copied)

    with DeadLetterQueue({"bootstrap.servers": cluster}, queue.letters) as first, pytest.raises(KafkaError):
        first.replay(Selection(), progress=overtake)
    assert second == [9]
    assert queue.originals() == queue.expected(*range(12))


@pytest.mark.parametrize("after", [1, 3])
def test_a_replay_that_is_killed_is_completed_by_the_next(cluster: str, cli: Cli, after: int) -> None:
    queue = Queue(cluster, cli, count=12)
    program = (
        "import os, sys\n"
        "from einmal.spark.operate import dead_letter_queue as q\n"
        "q._TOGETHER = 2\n"
        "with q.DeadLetterQueue({'bootstrap.servers': sys.argv[1]}, sys.argv[2]) as queue:\n"
        "    done = []\n"
        "    copy = queue._copy\n"
        "    def killed(producer, *rest):\n"
        "        commit = producer.commit_transaction\n"
        "        def last():\n"
        "            if len(done) == int(sys.argv[3]):\n"
        "                producer.flush()\n"
        "                os.kill(os.getpid(), 9)\n"
        "            done.append(1)\n"
        "            commit()\n"
        "        producer.commit_transaction = last\n"
        "        copy(producer, *rest)\n"
        "        producer.commit_transaction = commit\n"
        "    queue._copy = killed\n"
        "    queue.replay(q.Selection())\n"
    )
    process = subprocess.run([sys.executable, "-c", program, cluster, queue.letters, str(after)], timeout=180)
    assert process.returncode == -9
    assert len(queue.originals()) == 2 * after
    done = cli("dlq", "replay", queue.letters, "--yes", "--format", "json").document
    assert (done["copied"], done["replayed_earlier"]) == (12 - 2 * after, 2 * after)
    assert queue.originals() == queue.expected(*range(12))


def test_infer_proposes_a_schema_from_a_topic(cli: Cli, cluster: str) -> None:
    topic = unique("samples")
    cli("topic", "create", topic, "-p", "2")
    with Producer({"bootstrap.servers": cluster}) as producer:
        for number in range(20):
            producer.send(
                topic, json.dumps({"id": number, "at": "2026-01-01T00:00:00Z"} | ({"x": 1.5} if number % 2 else {}))
            )
        producer.send(topic, "{")
    found = cli("pipeline", "infer", topic, "--format", "json").document
    assert found["schema"] == {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "at": {"type": "string", "format": "date-time"},
            "id": {"type": "integer"},
            "x": {"type": "number"},
        },
        "required": ["at", "id"],
    }
    assert (found["samples"], found["refused"]) == (20, {"MalformedValue": 1})
