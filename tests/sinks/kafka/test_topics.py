"""Topics keep what every sink must keep, with Arrow rows that this process writes, on a broker for each location."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from einmal.client import Admin, NewTopic, OffsetRange, PartitionWriter, RangeReader, TopicPartition
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.sinks.arrow_rows import ArrowRows
from einmal.sinks.batch_rows import PartReport, TaskAttempt, WritePart
from einmal.sinks.commit_point import SinkFailed, SinkFenced
from einmal.sinks.kafka.claim_client import ClaimRefused
from einmal.sinks.kafka.commit_log import PARTITIONS, candidates
from einmal.sinks.kafka.sink import KafkaRowSink
from einmal.testing.sinks.driving import RunUnderTest, rows_of, tables_of
from einmal.wire.record_batch import NewRecord, encode_batch
from tests.interop.einmal_broker import EinmalBroker
from tests.sinks.local_tasks import LocalTasks
from tests.suite.patience import patient

pytestmark = [pytest.mark.slow, pytest.mark.system]

TOPIC = "words"
PLACES = [TopicPartition(TOPIC, index) for index in range(2)]
NAME = "battery"

_brokers: list[EinmalBroker] = []


def client_of(location: Path) -> dict[str, str]:
    """Of the broker of a location: killed drivers and their successors find it in a file."""
    published = location / "bootstrap"
    if not published.exists():
        broker = EinmalBroker(location / "broker")
        _brokers.append(broker)
        broker.start()
        with Admin({"bootstrap.servers": broker.bootstrap}) as admin:
            admin.create_topics([NewTopic(TOPIC, num_partitions=len(PLACES))])
        published.write_text(broker.bootstrap)
    return {"bootstrap.servers": published.read_text()}


def committed_values(client: dict[str, str]) -> list[bytes]:
    with Admin(client) as admin:
        _decided(admin)
    with closing(KafkaCluster(client)) as cluster:
        ends = cluster.latest(PLACES, committed=True)
    with RangeReader({**client, "isolation.level": "read_committed"}) as reader:
        batches = reader.read({each: OffsetRange(0, end) for each, end in ends.items()})
        return [record.value or b"" for batch in batches for record in batch.records()]


def _decided(admin: Admin) -> None:
    """The answer to a commit comes before its markers."""
    deadline = time.monotonic() + patient(30)
    while admin.list_transactions(states=["PrepareCommit", "PrepareAbort"]):
        assert time.monotonic() < deadline, "markers do not come"
        time.sleep(0.01)


def as_records(tables: Sequence[Any]) -> list[Any]:
    """With the columns of records, which are all that is written. A task has a partition of its own: one output."""
    found = []
    for partition, table in enumerate(tables):
        values = [json.dumps([row["id"], row["name"]]) for row in table.to_pylist()]
        table = table.append_column("value", pyarrow.array(values, pyarrow.string()))
        found.append(table.append_column("partition", pyarrow.array([partition] * len(values), pyarrow.int32())))
    return found


class TestTopics(LocalTasks):
    """The battery. What is staged are records of an open transaction, which nothing takes away or copies: the tests
    of that are those of reports that are missing, and of attempts that are not counted."""

    wrong_column = None
    can_lose_commits = False

    @pytest.fixture(autouse=True)
    def broker(self, tmp_path: Path) -> Iterator[None]:
        client_of(tmp_path)
        yield
        while _brokers:
            _brokers.pop().stop()

    def sink(self, location: Path) -> KafkaRowSink:
        return KafkaRowSink(client_of(location), TOPIC)

    def batch_rows(self, tables: Sequence[Any]) -> ArrowRows:
        return ArrowRows(as_records(tables))

    def rows(self, location: Path) -> list[tuple[int, str]]:
        return [tuple(json.loads(value)) for value in committed_values(client_of(location))]

    def staged(self, location: Path) -> list[str]:
        with Admin(client_of(location)) as admin:
            _decided(admin)
            return [each.transactional_id for each in admin.list_transactions(states=["Ongoing"])]

    def lose_staged(self, location: Path) -> None:
        raise AssertionError("acknowledged records are not lost")

    def copy_staged(self, location: Path) -> None:
        raise AssertionError("only the attempt with the claim writes records")

    def damage_record(self, location: Path, name: str) -> None:
        batch = encode_batch([NewRecord(name.encode(), b"{", 0)])
        with PartitionWriter(client_of(location)) as writer:
            writer.append(candidates(name, PARTITIONS)[0], batch)
            writer.flush()

    def test_run_with_a_held_identity_aborts_what_the_run_before_it_left(self, tmp_path: Path) -> None:
        """An abort where nothing is open is answered by Kafka, too: with the next identity."""
        before = RunUnderTest(self, tmp_path, NAME)
        before.start()
        before.stage(0, rows_of(0, "before"))
        before.die()
        run = RunUnderTest(self, tmp_path, NAME)
        run.abort(before.own)
        assert self.staged(tmp_path) == []
        run.die()
        again = RunUnderTest(self, tmp_path, NAME)
        again.abort(run.own)
        assert again.start(again.own) is None
        again.write(0, rows_of(0))
        again.die()
        assert sorted(self.rows(tmp_path)) == rows_of(0)

    def test_fenced_driver_reads_no_record_for_certain(self, tmp_path: Path) -> None:
        """A read does not name its reader: it has what is committed by then. Its first batch is refused."""
        older, newer = (RunUnderTest(self, tmp_path, NAME) for _ in range(2))
        older.acquire()
        newer.start()
        newer.write(0, rows_of(0))
        record = older.read()
        assert record is not None and record.batch_id == 0
        with pytest.raises(SinkFailed):
            older.stage(1, rows_of(1))
        with pytest.raises(SinkFenced):
            older.abort()
        older.die()
        newer.die()
        assert sorted(self.rows(tmp_path)) == rows_of(0)

    def test_lost_staged_rows_are_found_missing(self, tmp_path: Path) -> None:
        run = RunUnderTest(self, tmp_path, NAME)
        run.start()
        with pytest.raises(SinkFailed, match="are not those that wrote"):
            run.stage_rows(0, _Unreported(as_records(tables_of(rows_of(0)))))
        run.abort()
        assert (self.rows(tmp_path), self.staged(tmp_path)) == ([], [])
        run.write(0, rows_of(0, "again"))
        run.die()
        assert sorted(self.rows(tmp_path)) == rows_of(0, "again")

    def test_rows_of_an_attempt_that_does_not_count_are_not_taken(self, tmp_path: Path) -> None:
        run = RunUnderTest(self, tmp_path, NAME)
        run.start()
        with pytest.raises(ClaimRefused, match="has to be written again as a whole"):
            run.stage_rows(0, _Repeated(as_records(tables_of(rows_of(0)))))
        run.abort()
        run.write(0, rows_of(0))
        run.die()
        assert sorted(self.rows(tmp_path)) == rows_of(0)


class _Unreported(ArrowRows):
    """The last attempt has written, and is not counted."""

    def write(self, write: WritePart) -> list[PartReport]:
        return super().write(write)[:-1]


class _Repeated(ArrowRows):
    """Each part has two attempts."""

    def write(self, write: WritePart) -> list[PartReport]:
        def twice(attempt: TaskAttempt, batches: Iterator[Any]) -> PartReport | None:
            there = list(batches)
            write(attempt, iter(there))
            return write(attempt._replace(attempt=secrets.randbits(48)), iter(there))

        return super().write(twice)
