"""What the tests of the log share: batches, clocks, and logs on a real or a simulated disk."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar

from einmal.log.config import LogConfig
from einmal.log.disk import Disk
from einmal.log.partition_log import AppendResult, PartitionLog
from einmal.log.producer_state import AppendOrigin
from einmal.log.time_search import TimeSearch, TimestampOffset
from einmal.simulation.disk import HostDisk, SimulatedDisk
from einmal.simulation.loop import Host, SimulatedLoop
from einmal.simulation.trace import Trace
from einmal.types import (
    Instant,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)
from einmal.wire.compression import Compression
from einmal.wire.record_batch import BatchHeader, NewRecord, encode_batch, iter_headers, read_header

T = TypeVar("T")

START: Final = 1_700_000_000_000
NOW: Final = Instant(wall_ms=START, monotonic_ms=1_000_000)
EPOCH: Final = LeaderEpoch(1)
FOLDER: Final = PurePosixPath("/data/t-0")
TOPIC_PARTITION: Final = TopicPartition("t", 0)
SMALL: Final = LogConfig(segment_bytes=2_000, index_interval_bytes=200)
"""A few batches to a segment, a few entries to an index."""


def at(milliseconds: int) -> Instant:
    """Both clocks so much after ``NOW``."""
    return Instant(NOW.wall_ms + milliseconds, NOW.monotonic_ms + milliseconds)


def producer(producer_id: int, epoch: int = 0) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))


def batch(
    count: int = 1,
    *,
    of: ProducerIdAndEpoch | None = None,
    sequence: int = -1,
    transactional: bool = False,
    timestamp: int = START,
    value: bytes = b"value",
    key: bytes | None = b"key",
    compression: Compression = Compression.NONE,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    records = [NewRecord(key, value, timestamp + number) for number in range(count)]
    producer_id, epoch = of or (-1, -1)
    return bytearray(
        encode_batch(
            records,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
            compression=compression,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
        )
    )


def header_of(data: bytes | bytearray) -> BatchHeader:
    return read_header(data)


def append(
    log: PartitionLog,
    data: bytearray,
    *,
    now: Instant = NOW,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    leader_epoch: LeaderEpoch = EPOCH,
) -> AppendResult:
    """Append, and move the high watermark along, as a leader without followers does."""
    result = log.append(data, leader_epoch=leader_epoch, now=now, origin=origin)
    log.advance_high_watermark(log.log_end_offset)
    return result


def end_transaction(
    log: PartitionLog,
    of: ProducerIdAndEpoch,
    *,
    committed: bool,
    now: Instant = NOW,
    coordinator_epoch: int = 0,
    transaction_version: TransactionVersion = TransactionVersion.TV_0,
    leader_epoch: LeaderEpoch = EPOCH,
) -> AppendResult:
    result = log.append_marker(
        of,
        committed=committed,
        coordinator_epoch=coordinator_epoch,
        leader_epoch=leader_epoch,
        now=now,
        transaction_version=transaction_version,
    )
    log.advance_high_watermark(log.log_end_offset)
    return result


def open_log(
    disk: Disk,
    folder: Path | PurePosixPath = FOLDER,
    config: LogConfig = SMALL,
    now: Instant = NOW,
    lost_power: bool = True,
) -> PartitionLog:
    """A log whose high watermark is its end."""
    log = PartitionLog.open(disk, PurePosixPath(folder), TOPIC_PARTITION, config, now, lost_power=lost_power)
    log.advance_high_watermark(log.log_end_offset)
    return log


def batches_of(log: PartitionLog, max_bytes: int = 700) -> list[tuple[Offset, Offset, bytes]]:
    """(first offset, last offset, bytes) of every batch, read from start to end with small reads."""
    found = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, max_bytes, below=log.log_end_offset)
        assert data, f"nothing at offset {offset}"
        for position, header in iter_headers(data):
            found.append((header.base_offset, header.last_offset, data[position : position + header.size]))
            offset = header.next_offset
    return found


def done(coroutine: Coroutine[Any, Any, T]) -> T:
    """What it returns: on a disk that works at once it never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits for something")


class DiskAtOnce(HostDisk):
    """What is to be done in the background is done at once, after ``meanwhile``."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    async def in_background(self, work: Callable[[], T]) -> T:
        self.meanwhile()
        return work()


class Machine:
    """A simulated disk, and the processes that use it one after the other."""

    def __init__(self, seed: int = 0) -> None:
        self.disk = SimulatedDisk(SimulatedLoop(), random.Random(seed), Trace())  # type: ignore[abstract]
        self._host = Host("log")

    def process(self) -> DiskAtOnce:
        """The disk as a new process has it; the one before is dead."""
        self._host.is_alive = False
        self._host = Host("log")
        return DiskAtOnce(self.disk, self._host)

    def cut_power(self) -> None:
        self._host.is_alive = False
        self.disk.cut_power()


class DyingDisk:
    """A disk whose process dies at its n-th change."""

    _CHANGES = ("write_file", "remove", "rename", "sync_directory", "make_directory")

    def __init__(self, disk: Disk, changes: int) -> None:
        self._disk = disk
        self.left = changes

    def count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(5, "the process has died")

    def open(self, path: PurePosixPath, *, create: bool = False) -> Any:
        return _DyingFile(self._disk.open(path, create=create), self)

    def __getattr__(self, name: str) -> Any:
        if name in self._CHANGES:
            self.count()
        return getattr(self._disk, name)


class _DyingFile:
    def __init__(self, file: Any, disk: DyingDisk) -> None:
        self._file = file
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        if name in ("append", "truncate", "sync"):
            self._disk.count()
        return getattr(self._file, name)


def offset_for_timestamp(log: PartitionLog, timestamp: int) -> TimestampOffset | None:
    """The first record that is not older, as ListOffsets searches for it."""
    start = log.log_start_offset
    while (search := log.search_by_time(timestamp, start)) is not None:
        if not isinstance(search, TimeSearch):
            start = search
            continue
        assert search.is_decided or search.decide()
        if search.position is not None:
            return search.position
        start = search.next_offset
    return None
