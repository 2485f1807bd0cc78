"""The files of a segment: their names, and how much of each is proved to be on disk.

A segment that begins at offset 42 is ``00000000000000000042.log``, and up to three indexes of the same name; a producer
snapshot bears the offset that it was taken at. All names are Apache Kafka's.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from google_crc32c import value as crc32c

from einmal.log.disk import File
from einmal.types import Offset
from einmal.wire.record_batch import HEADER_SIZE

LOG: Final = ".log"
OFFSET_INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
ABORTED_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"

INDEXES: Final = (OFFSET_INDEX, TIME_INDEX, ABORTED_INDEX)
_FINGERPRINT_BYTES: Final = 4096


def file_name(offset: Offset, suffix: str) -> str:
    """Kafka's name of a segment's file: the base offset in 20 digits."""
    return f"{offset:020d}{suffix}"


class Stored(NamedTuple):
    """How much of an index file is proved to be right, and its CRC-32C."""

    size: int
    crc: int

    @classmethod
    def of(cls, data: bytes) -> Stored:
        return cls(len(data), crc32c(data))


NOTHING_STORED: Final = Stored(0, 0)


class StoredIndexes(NamedTuple):
    offsets: Stored = NOTHING_STORED
    times: Stored = NOTHING_STORED
    aborted: Stored = NOTHING_STORED


class IndexWrite(NamedTuple):
    """Bytes that make an index file complete: keep its first ``position`` bytes, then ``data``."""

    name: str
    position: int
    data: bytes


class SegmentSummary(NamedTuple):
    """A segment as a checkpoint knows it."""

    base_offset: Offset
    size: int
    end_offset: Offset
    max_timestamp: int
    max_timestamp_offset: Offset
    stored: StoredIndexes
    fingerprint: int | None = None
    """Fingerprint of the first ``size`` bytes of the file, see ``fingerprint_of``; None: unknown."""


def fingerprint_of(file: File, size: int) -> int:
    """CRC-32C of the beginning and the end of the first ``size`` bytes: distinguishes segments of the same size.

    Both hold the header of a batch, and with it the CRC of everything in the batch. Raises OSError.
    """
    tail = min(size, _FINGERPRINT_BYTES)
    fingerprint: int = crc32c(file.read(0, min(size, HEADER_SIZE)) + file.read(size - tail, tail))
    return fingerprint
