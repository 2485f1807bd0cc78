"""Our cleaned segments in Apache Kafka's eyes, and what its own cleaner leaves of the same records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from einmal.log.config import LogConfig
from einmal.log.disk import OsDisk
from einmal.wire.compression import Compression
from tests.interop.apache_kafka import KafkaUnavailable, classpath
from tests.interop.conftest import Node, NodeFactory
from tests.interop.einmal_broker import EinmalBroker
from tests.interop.test_dump_log import apaches, numbers, of_kind, ours
from tests.log.cleaning import clean, keyed
from tests.log.making import START, append, at, end_transaction, open_log, producer

pytestmark = pytest.mark.interop

TOPIC: Final = "compacted"
HOUR: Final = 3_600_000
PATIENCE_S: Final = 180.0
Visible = list[tuple[int, bytes | None, bytes | None]]


# --- our files -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """A log that was cleaned twice: batches with fewer records, horizons, and headers without any record."""
    try:
        classpath("tools")
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("data") / "t-0"
    config = LogConfig(
        segment_bytes=3_000, index_interval_bytes=200, cleanup_policy="compact", delete_retention_ms=HOUR
    )
    log = open_log(OsDisk(), folder, config)
    sequences = dict.fromkeys(range(4), 0)
    for hours in range(2):
        for number in range(100):
            name, codec = number % 4, list(Compression)[number % 7 % 5]
            records = [(b"key %d" % ((number * 7 + each) % 23), b"value %d " % number * 9) for each in range(3)]
            if number % 11 == 0:
                records[1] = (records[1][0], None)  # type: ignore[assignment]
            of = producer(name) if name else None
            sequence = sequences[name] if name else -1
            data = keyed(
                *records,
                of=of,
                sequence=sequence,
                transactional=name > 1,
                compression=codec,
                timestamp=START + number,
            )
            append(log, data)
            sequences[name] += 3
            if name > 1 and number % 8 > 4:
                end_transaction(log, producer(name), committed=number % 3 == 0)
        for name in (2, 3):
            end_transaction(log, producer(name), committed=True)
        for number in range(20):
            append(log, keyed((b"last", bytes(500)), timestamp=START + number))
        clean(log, at(hours * 2 * HOUR), run=asyncio.run)
    log.close(clean=True)
    yield sorted(folder.iterdir())


def test_apache_kafka_reads_what_our_cleaner_leaves(files: list[Path]) -> None:
    kinds = {"empty": 0, "horizon": 0, "thinned": 0}
    for path in of_kind(files, ".log"):
        text = apaches(path)
        batches = ours(path)
        names = ("baseOffset", "lastOffset", "count", "baseSequence", "lastSequence", "position", "size", "crc")
        assert numbers(text, *names) == [
            (
                each["base_offset"],
                each["last_offset"],
                each["count"],
                each["base_sequence"],
                each["last_sequence"],
                each["position"],
                each["size"],
                each["crc"],
            )
            for each in batches
        ]
        assert text.count("isvalid: true") == len(batches)
        records = [line for line in text.splitlines() if line.startswith("| offset")]
        for each in batches:
            for record in each["records"]:
                line = next(line for line in records if line.startswith(f"| offset: {record['offset']} "))
                assert f"CreateTime: {record['timestamp']} " in line
        assert len(records) == sum(each["count"] for each in batches)
        kinds["empty"] += sum(each["count"] == 0 for each in batches)
        kinds["horizon"] += len(numbers(text.replace("OptionalLong[", ""), "deleteHorizonMs"))
        kinds["thinned"] += sum(0 < each["count"] <= each["last_offset"] - each["base_offset"] for each in batches)
    assert all(kinds.values()), kinds


@pytest.mark.representatives(1)
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_apache_kafka_agrees_with_the_indexes_of_cleaned_segments(files: list[Path], suffix: str) -> None:
    names = {
        ".index": ("offset", "position"),
        ".timeindex": ("timestamp", "offset"),
        ".txnindex": ("producerId", "firstOffset", "lastOffset", "lastStableOffset"),
    }
    for path in of_kind(files, suffix):
        assert numbers(apaches(path), *names[suffix]) == [tuple(entry.values()) for entry in ours(path)]


# --- its cleaner and ours --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def einmal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EinmalBroker]:
    node = EinmalBroker(tmp_path_factory.mktemp("einmal"), {"log.cleaner.backoff.ms": "100"})
    node.start()
    yield node
    node.stop()


def create(node: Node) -> None:
    settings = {
        "cleanup.policy": "compact",
        "segment.ms": "300",
        "min.cleanable.dirty.ratio": "0.01",
    }
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=settings)])[TOPIC].result(120)


def write(node: Node) -> None:
    """The same records, batch by batch, on every broker."""
    plain = Producer({"bootstrap.servers": node.bootstrap, "enable.idempotence": True})
    transactional = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": "writer"})
    transactional.init_transactions(120)
    for number in range(40):
        for each in range(3):
            # The last of them is superseded by nothing.
            is_tombstone = number % 9 == 4 and each == 1 or (number, each) == (39, 2)
            value = None if is_tombstone else b"plain %d" % number
            plain.produce(TOPIC, key=b"key %d" % ((number + each) % 11), value=value, partition=0)
        plain.flush(120)
        if number % 4 == 0:
            transactional.begin_transaction()
            transactional.produce(TOPIC, key=b"key %d" % (number % 11), value=b"transactional %d" % number, partition=0)
            transactional.flush(120)
            if number % 8:
                transactional.abort_transaction(120)
            else:
                transactional.commit_transaction(120)


def close_segment(node: Node, key: bytes, later_ms: int) -> None:
    """Write a record whose timestamp is so much later that it begins a new segment."""
    writer = Producer({"bootstrap.servers": node.bootstrap, "enable.idempotence": True})
    writer.produce(TOPIC, key=key, value=b"x", partition=0, timestamp=int(time.time() * 1_000) + later_ms)
    assert writer.flush(120) == 0


def read(node: Node, isolation: str) -> Visible:
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: Visible = []
    try:
        while True:
            message = consumer.poll(120)
            assert message is not None, "the end does not come"
            if error := message.error():
                if error.name() == "_PARTITION_EOF":
                    return found
                raise KafkaException(error)
            offset = message.offset()
            assert offset is not None
            found.append((offset, message.key(), message.value()))
    finally:
        consumer.close()


def settled(node: Node) -> None:
    """Wait until the cleaner has been at everything but the segment that is written."""

    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = read(node, "read_committed")
        if len({key for _, key, _ in found}) == len(found):
            return
        assert time.monotonic() < deadline, f"{type(node).__name__} leaves {found}"
        time.sleep(0.1)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_readers_see_the_same_after_its_cleaner_and_after_ours(cleaned: dict[str, Visible], isolation: str) -> None:
    # A marker may be written before or after the next batch: only the order of the records is the same.
    apache, einmals = ([each[1:] for each in cleaned[f"{name} {isolation}"]] for name in ("apache", "einmal"))
    assert einmals == apache
    assert 11 <= len(apache) < 25
    assert any(value is None for _, value in apache)


@pytest.fixture(scope="module")
def cleaned(node_of: NodeFactory, einmal: EinmalBroker) -> dict[str, Visible]:
    """What readers of each isolation see on each broker."""
    found = {}
    for name, node in (("apache", node_of("apache", 2)), ("einmal", einmal)):
        create(node)
        write(node)
        close_segment(node, b"roll 1", 1_000)
        close_segment(node, b"roll 2", 2_000)
        settled(node)
        for isolation in ("read_committed", "read_uncommitted"):
            found[f"{name} {isolation}"] = read(node, isolation)
    return found
