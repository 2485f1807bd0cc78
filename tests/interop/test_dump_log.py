"""Apache Kafka's dump tool reads our files and finds nothing to complain of: they are its own formats."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from einmal.log.config import LogConfig
from einmal.log.disk import OsDisk
from einmal.log.dump import dump
from einmal.types import TransactionVersion
from einmal.wire.compression import Compression
from tests.interop.apache_kafka import KafkaUnavailable, classpath
from tests.interop.apache_tools import dump_log
from tests.log.making import START, append, batch, end_transaction, open_log, producer

pytestmark = pytest.mark.interop

COMPLAINTS = ("mismatch", "not found", "out of order", "invalid", "isvalid: false", "corrupt", "Exception", "Could not")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """The files of a log with every codec, committed, aborted and open transactions, in three segments."""
    try:
        classpath("tools")
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("data") / "t-0"
    log = open_log(OsDisk(), folder, LogConfig(segment_bytes=6_000, index_interval_bytes=200))
    sequences = dict.fromkeys(range(5), 0)
    for number in range(150):
        name = number % 5
        of = producer(name)
        codec = list(Compression)[number % 7 % 5]
        value = b"value of %d " % number * (number % 9)
        is_transactional = name > 1
        timestamp = START + number * 7 % 300
        append(
            log,
            batch(
                1 + number % 3,
                of=of if name else None,
                sequence=sequences[name] if name else -1,
                transactional=is_transactional,
                compression=codec,
                timestamp=timestamp,
                value=value,
            ),
        )
        sequences[name] += 1 + number % 3
        if is_transactional and number % 4 == 0:
            end_transaction(log, of, committed=number % 3 == 0, coordinator_epoch=2)
    end_transaction(
        log, producer(4, 1), committed=True, coordinator_epoch=3, transaction_version=TransactionVersion.TV_2
    )
    log.close(clean=True)
    yield sorted(folder.iterdir())


def of_kind(files: list[Path], suffix: str) -> list[Path]:
    found = [path for path in files if path.suffix == suffix]
    assert found, suffix
    return found


def ours(path: Path) -> list[dict[str, Any]]:
    return list(dump(OsDisk(), PurePosixPath(path)))


def apaches(path: Path) -> str:
    text = dump_log(path)
    assert f"Dumping {path}" in text
    for complaint in COMPLAINTS:
        assert complaint not in text, text
    return text


def numbers(text: str, *names: str) -> list[tuple[int, ...]]:
    """The values of these names in every line that has them all."""
    patterns = [re.compile(rf"\b{name}: (-?\d+)") for name in names]
    found = []
    for line in text.splitlines():
        matches = [pattern.search(line) for pattern in patterns]
        if all(matches):
            found.append(tuple(int(match[1]) for match in matches if match))
    return found


def test_apache_kafka_reads_every_batch_and_record(files: list[Path]) -> None:
    codecs: set[str] = set()
    for path in of_kind(files, ".log"):
        text = apaches(path)
        names = ("baseOffset", "lastOffset", "baseSequence", "lastSequence", "producerId", "position", "size", "crc")
        batches = ours(path)
        expected = [
            (
                each["base_offset"],
                each["last_offset"],
                each["base_sequence"],
                each["last_sequence"],
                each["producer_id"],
                each["position"],
                each["size"],
                each["crc"],
            )
            for each in batches
        ]
        assert numbers(text, *names) == expected
        assert text.count("isvalid: true") == len(batches)
        records = [line for line in text.splitlines() if line.startswith("| offset")]
        assert len(records) == sum(each["count"] for each in batches)
        for each in batches:
            for record in each["records"]:
                line = next(line for line in records if line.startswith(f"| offset: {record['offset']} "))
                assert f"CreateTime: {record['timestamp']} " in line
                if "marker" in record:
                    assert f"endTxnMarker: {record['marker']} coordinatorEpoch: {record['coordinator_epoch']}" in line
                else:
                    assert line.endswith(f"key: key payload: {record['value'].decode()}")
        codecs.update(re.findall(r"compresscodec: (\w+)", text))
    assert codecs == {"none", "gzip", "snappy", "lz4", "zstd"}


def test_apache_kafka_agrees_with_the_offset_index(files: list[Path]) -> None:
    for path in of_kind(files, ".index"):
        entries = ours(path)
        assert entries
        assert numbers(apaches(path), "offset", "position") == [(each["offset"], each["position"]) for each in entries]


def test_apache_kafka_agrees_with_the_time_index(files: list[Path]) -> None:
    for path in of_kind(files, ".timeindex"):
        entries = ours(path)
        assert entries
        expected = [(each["timestamp"], each["offset"]) for each in entries]
        assert numbers(apaches(path), "timestamp", "offset") == expected


def test_apache_kafka_reads_the_aborted_transactions(files: list[Path]) -> None:
    names = ("producerId", "firstOffset", "lastOffset", "lastStableOffset")
    for path in of_kind(files, ".txnindex"):
        assert numbers(apaches(path), *names) == [tuple(entry.values()) for entry in ours(path)]


def test_apache_kafka_reads_the_producer_snapshots(files: list[Path]) -> None:
    names = ("producerId", "producerEpoch", "lastTimestamp", "coordinatorEpoch")
    for path in of_kind(files, ".snapshot"):
        text = apaches(path)
        states = ours(path)
        assert numbers(text, *names) == [
            (each["producer_id"], each["producer_epoch"], each["last_timestamp"], each["coordinator_epoch"])
            for each in states
        ]
        # A producer of which only a marker is known has no sequences, and the tool then prints none.
        assert numbers(text, "lastSequence") == [
            (each["last_sequence"],) for each in states if each["last_sequence"] >= 0
        ]
        open_at = [each["current_txn_start_offset"] for each in states]
        shown = [int(match) if match else -1 for match in re.findall(r"OptionalLong(?:\[(\d+)\]|\.empty)", text)]
        assert shown == open_at


def test_apache_kafka_complains_of_an_index_that_is_wrong(files: list[Path], tmp_path: Path) -> None:
    log, index = of_kind(files, ".log")[0], of_kind(files, ".index")[0]
    (tmp_path / log.name).write_bytes(log.read_bytes())
    data = bytearray(index.read_bytes())
    data[3] += 1
    (tmp_path / index.name).write_bytes(data)
    assert "Mismatches" in dump_log(tmp_path / index.name)
