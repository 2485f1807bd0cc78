"""Claims about ``einmal top``, on our broker and on Apache Kafka."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis.strategies import integers

from einmal.cli.clients import inspecting, now_ms
from einmal.cli.commands.top import lines
from einmal.cli.printing.formats import Format
from einmal.client import Consumer, Producer
from einmal.inspection.activity import Activity, BrokerActivity, GroupActivity, TopicActivity, watch
from einmal.inspection.document import schema
from einmal.inspection.model import TransactionView
from tests.cli.running import Cli
from tests.interop.einmal_broker import EinmalBroker
from tests.suite.patience import patient
from tests.suite.shared import shared, unique

pytestmark = pytest.mark.system


@pytest.fixture(params=["einmal-commands", pytest.param("apache", marks=pytest.mark.interop)])
def cli(request: pytest.FixtureRequest) -> Cli:
    return Cli(shared(request.param).bootstrap)


def test_each_look_is_a_document_as_its_schema_has_it_and_tables_as_text(cli: Cli) -> None:
    name = unique("watched")
    cli("topic", "create", name, "-p", "1")
    cli("topic", "produce", name, stdin="x\n")
    with (
        Consumer(bootstrap_servers=cli.bootstrap, group_id=name, auto_offset_reset="earliest") as consumer,
        Producer(bootstrap_servers=cli.bootstrap, transactional_id=name) as producer,
    ):
        consumer.subscribe([name])
        while not consumer.poll(100):
            pass
        consumer.commit()
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, "open").result()
        looks = [json.loads(line) for line in cli("top", "-n", "2", "-d", "0.1", "--format", "json").lines]
        text = "\n".join(cli("top", "-n", "1").lines)
        producer.abort_transaction()
    for look in looks:
        jsonschema_rs.validate(schema("Activity"), look)
    topics = [next(each for each in look["topics"] if each["topic"] == name) for look in looks]
    assert [each["held_back"] for each in topics] == [1, 1]
    assert (topics[0]["offsets_per_s"], topics[1]["offsets_per_s"]) == (None, 0)
    (group,) = [each for each in looks[1]["groups"] if each["group_id"] == name]
    assert (group["unread"], group["behind"], group["members"]) == (0, 1, 1)
    assert name in [each["transactional_id"] for each in looks[1]["open_transactions"]]
    assert {"BROKERS", "TOPICS", "GROUPS", "OPEN TRANSACTIONS"} <= set(text.splitlines())
    assert text.count(name) >= 3
    assert "\x1b" not in text


@contextmanager
def looking(bootstrap: str, number: int, delay: float = 0.1) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "einmal", "top", "-d", str(delay), "-n", str(number), "--format", "json"]
    environment = {**os.environ, "KAFKA_BROKERS": bootstrap}
    settings = ["-X", "default.api.timeout.ms=1000", "-X", "bootstrap.timeout.ms=1000"]
    with subprocess.Popen(
        [*command, *settings], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_broker_that_restarts_does_not_end_it(tmp_path: Path) -> None:
    broker = EinmalBroker(tmp_path)
    broker.start()
    try:
        with looking(broker.bootstrap, 1_000_000) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            first = json.loads(process.stdout.readline())
            broker.kill()
            warning = process.stderr.readline()
            broker.start()
            after = next(each for each in map(json.loads, process.stdout) if each["time"] > first["time"] + 1_000)
    finally:
        broker.stop()
    assert warning.startswith("warning: no answer since 20")
    assert (after["cluster_id"], len(after["brokers"])) == (first["cluster_id"], 1)


def test_a_cluster_that_is_lost_has_status_1_after_the_last_look(tmp_path: Path) -> None:
    broker = EinmalBroker(tmp_path)
    broker.start()
    try:
        with looking(broker.bootstrap, 10, delay=0.5) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            broker.kill()
            errors = process.stderr.read()
            assert process.wait() == 1
    finally:
        broker.stop()
    assert errors.startswith("warning: no answer since 20")
    assert "\nerror: " in errors


def test_the_time_of_a_look_is_when_its_offsets_were_read(cli: Cli) -> None:
    """With that of the question a rate would be many times too high after a look that waited for a leader."""
    name = unique("timed")
    cli("topic", "create", name, "-p", "1")
    with inspecting({"bootstrap.servers": cli.bootstrap}) as (admin, reader):

        def clock() -> int:
            cli("topic", "produce", name, stdin="later\n")
            return now_ms()

        _, view = watch(admin, reader, None, clock)
    (partition,) = (each for each in view.partitions if each.topic == name)
    assert partition.high_watermark == 0


@pytest.mark.parametrize("delay", ["nan", "inf", "1e300", "0"])
def test_a_delay_that_is_none_is_refused(delay: str) -> None:
    assert "--delay" in Cli("127.0.0.1:1")("top", "-d", delay, status=2).errors[-1]


rows = integers(0, 60)


@given(brokers=rows, topics=rows, groups=rows, transactions=rows, height=integers(22, 100))
def test_on_a_screen_each_table_has_its_share_and_counts_its_other_rows(
    brokers: int, topics: int, groups: int, transactions: int, height: int
) -> None:
    counts = {"BROKERS": brokers, "TOPICS": topics, "GROUPS": groups, "OPEN TRANSACTIONS": transactions}
    found = Activity(
        0,
        "cluster",
        tuple(BrokerActivity(each, "host", 9092, False, 0) for each in range(brokers)),
        tuple(TopicActivity(f"t{each}", 1, 0, 0.0, 0) for each in range(topics)),
        tuple(GroupActivity(f"g{each}", "Stable", 1, 0, 0, False) for each in range(groups)),
        tuple(
            TransactionView(f"x{each}", "Ongoing", 1, each, 0, False, 60_000, 0, 1, ("t0-0",))
            for each in range(transactions)
        ),
    )
    whole, screen = lines(found, Format.TEXT), lines(found, Format.TEXT, height)
    assert len(screen) == min(len(whole), height)
    shown = {}
    for name, count in counts.items():
        section = screen[screen.index(name) + 2 :]
        section = section[: section.index("")] if "" in section else section
        shown[name] = len(section)
        if section and section[-1].startswith("..."):
            assert int(section[-1].split()[1]) + len(section) - 1 == count
            shown[name] -= 1
        else:
            assert len(section) == count
    # A line for how many more there are, and one that could not be shared equally.
    assert all(shown[name] in (count, *range(max(shown.values()) - 2, count)) for name, count in counts.items())


@contextmanager
def killed_at_the_end(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_on_a_terminal_it_fills_the_screen_until_a_key_ends_it(cluster: str, key: bytes) -> None:
    keyboard, terminal = os.openpty()
    command = [sys.executable, "-m", "einmal", "top", "-d", "0.2"]
    environment = {**os.environ, "KAFKA_BROKERS": cluster, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    with (
        subprocess.Popen(
            command, stdin=terminal, stdout=terminal, stderr=subprocess.PIPE, env=environment, start_new_session=True
        ) as process,
        killed_at_the_end(process),
    ):
        seen, deadline = b"", time.monotonic() + patient(60)
        while b"OPEN TRANSACTIONS" not in seen:
            assert time.monotonic() < deadline, seen
            if select.select([keyboard], [], [], 0.1)[0]:
                seen += os.read(keyboard, 65_536)
        assert b"\x1b[?1049h" in seen, "the alternate screen"
        deadline = time.monotonic() + patient(60)
        if key == b"q":
            os.write(keyboard, key)
        else:
            # The terminal of this test controls no process.
            process.send_signal(2)
        while process.poll() is None:
            assert time.monotonic() < deadline, seen
            if select.select([keyboard], [], [], 0.1)[0]:
                seen += os.read(keyboard, 65_536)
        assert process.stderr is not None
        status, errors = process.returncode, process.stderr.read()
        while select.select([keyboard], [], [], 0)[0] and b"\x1b[?1049l" not in seen:
            seen += os.read(keyboard, 65_536)
        assert b"\x1b[?1049l" in seen, "the screen of before"
    os.close(keyboard)
    os.close(terminal)
    assert (status, errors) == (0 if key == b"q" else 130, b"")
