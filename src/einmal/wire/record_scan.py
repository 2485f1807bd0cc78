"""Check the records of a batch as Apache Kafka's broker does, without creating objects.

Every record is walked from its size to its last header: sizes agree, offset deltas count up from 0, nothing is left
over. One function call for a whole section, because a call for each record would double the cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from einmal.wire.errors import CorruptBatch, InvalidRecord, TooLong

if TYPE_CHECKING:
    from mypy_extensions import i64

ERRORS_MAX: Final = 100
"""Records named in one refusal; the rest of the batch is not checked after that many."""
_VARINT_BYTES: Final = 5
_VARLONG_BYTES: Final = 10
_TIME_MIN: Final = -(1 << 63)
_TIME_MAX: Final = (1 << 63) - 1


class TimeBounds(NamedTuple):
    """Timestamps that a topic accepts, in milliseconds, both ends included; -1 (none) always is."""

    low: int = _TIME_MIN
    high: int = _TIME_MAX


class Scanned(NamedTuple):
    """``keyless`` and ``untimely``: indexes of records without a key, and (index, timestamp) out of bounds."""

    max_timestamp: int
    """-1 where no record has a later one."""
    keyless: list[int]
    untimely: list[tuple[int, int]]


def scan_records(
    data: bytes,
    count: int,
    base_timestamp: int,
    bounds: TimeBounds,
    *,
    begin: int = 0,
    needs_keys: bool = False,
    headers_max: int | None = None,
) -> Scanned:
    """Walk ``count`` records, which fill ``data`` from ``begin`` on.

    Raises InvalidRecord with the index of the first malformed one, or TooLong at more than ``headers_max`` headers.
    """
    scan = _Scan(data, begin, base_timestamp, bounds, needs_keys, headers_max)
    scan.walk(count)
    if not (scan.keyless or scan.untimely):
        scan.ensure_end()
    return Scanned(base_timestamp + scan.latest, scan.keyless, scan.untimely)


class _Scan:
    """The progress of the walk, and its findings."""

    __slots__ = ("_base_timestamp", "_data", "_headers_max", "_highest", "_lowest", "_needs_keys", "_untimed",
                 "index", "keyless", "latest", "position", "untimely")  # fmt: skip

    def __init__(
        self,
        data: bytes,
        begin: int,
        base_timestamp: int,
        bounds: TimeBounds,
        needs_keys: bool,
        headers_max: int | None,
    ) -> None:
        self._data = data
        self.position = begin
        self.index = 0
        self._base_timestamp = base_timestamp
        # As a delta, neither has more than 64 bits.
        lowest = max(max(bounds.low, _TIME_MIN) - base_timestamp, _TIME_MIN)
        highest = min(min(bounds.high, _TIME_MAX) - base_timestamp, _TIME_MAX)
        self._lowest, self._highest = (lowest, highest) if lowest <= highest else (1, 0)
        self._untimed = -1 - base_timestamp
        self._needs_keys = needs_keys
        self._headers_max = headers_max
        self.latest = self._untimed
        """Relative to the base timestamp, as all times here."""
        self.keyless: list[int] = []
        self.untimely: list[tuple[int, int]] = []

    def ensure_end(self) -> None:
        """Raises InvalidRecord."""
        if self.position != len(self._data):
            raise InvalidRecord(self.index, f"{len(self._data) - self.position} bytes after the last record")

    def walk(self, stop: int) -> None:  # noqa: C901 - varints are read in place: a call for each would halve the speed
        """Walk the records before ``stop``, or until there are enough errors. Raises InvalidRecord or TooLong."""
        data, keyless, untimely = self._data, self.keyless, self.untimely
        needs_keys, headers_max = self._needs_keys, self._headers_max
        position: i64 = self.position
        first: i64 = self.index
        last: i64 = stop
        index: i64 = first
        lowest: i64 = self._lowest
        highest: i64 = self._highest
        untimed: i64 = self._untimed
        latest: i64 = self.latest
        known: i64 = -1  # a first byte that stands for a timestamp which is in bounds, and not the latest
        byte: i64
        second: i64
        size: i64
        since: i64
        end: i64
        try:
            for index in range(first, last):
                byte = data[position]
                if byte < 0x80:
                    end = position + 1 + (byte >> 1)
                    position += 1
                elif (second := data[position + 1]) < 0x80:
                    end = position + 2 + ((byte & 0x7F | second << 7) >> 1)
                    position += 2
                else:
                    size, position = _read_varint(data, position)
                    end = position + size
                    byte = 0 if size >= 0 else 1
                if byte & 1:
                    raise CorruptBatch("negative record size")
                if data[position] > 0x7F:
                    # Attributes have no meaning yet, but aiokafka and kafka-python read them as a varint.
                    raise CorruptBatch("record attributes of 128 or more")
                position += 1
                byte = data[position]
                if byte == known:
                    position += 1
                else:
                    if byte < 0x80:
                        since = (byte >> 1) ^ -(byte & 1)
                        position += 1
                    elif (second := data[position + 1]) < 0x80:
                        since = ((byte & 0x7F | second << 7) >> 1) ^ -(byte & 1)
                        position += 2
                    else:
                        since, position = _read_varint(data, position, _VARLONG_BYTES)
                    if lowest <= since <= highest or since == untimed:
                        known = byte if byte < 0x80 else -1
                        if since > latest:
                            latest = since
                    else:
                        untimely.append((index, self._base_timestamp + int(since)))
                        if len(untimely) >= ERRORS_MAX:
                            break
                byte = data[position]
                if byte < 0x80:
                    position += 1
                elif (second := data[position + 1]) < 0x80:
                    byte = byte & 0x7F | second << 7
                    position += 2
                else:
                    byte, position = _read_varint(data, position)
                    byte <<= 1
                if byte != index << 1:
                    raise CorruptBatch(f"offset delta {(byte >> 1) ^ -(byte & 1)}, not {index}")
                byte = data[position]
                if byte == 1:
                    position += 1
                    if needs_keys:
                        keyless.append(index)
                        if len(keyless) >= ERRORS_MAX:
                            break
                elif byte < 0x80 and not byte & 1:
                    position += 1 + (byte >> 1)
                else:
                    size, position = _read_size(data, position, "key")
                    position += size
                byte = data[position]
                if byte < 0x80 and not byte & 1:
                    position += 1 + (byte >> 1)
                elif byte == 1:
                    position += 1
                elif (second := data[position + 1]) < 0x80 and not byte & 1:
                    position += 2 + ((byte & 0x7F | second << 7) >> 1)
                else:
                    size, position = _read_size(data, position, "value")
                    position += size
                if data[position]:
                    position, headers_max = _skip_headers(data, position, headers_max)
                else:
                    position += 1
                if position != end:
                    raise CorruptBatch("the record is longer or shorter than its size")
        except CorruptBatch as error:
            raise InvalidRecord(index, str(error)) from error
        except IndexError as error:
            raise InvalidRecord(index, "the record ends after its batch") from error
        self.position, self.index, self.latest, self._headers_max = position, stop, latest, headers_max


def _read_varint(data: bytes, position: int, size_max: int = _VARINT_BYTES) -> tuple[int, int]:
    """A zig-zag number, and the position after it. Raises IndexError or CorruptBatch."""
    zigzag = 0
    for number in range(size_max):
        byte = data[position + number]
        zigzag |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            # Java and C drop bits beyond the type's: a reader would see another number than we do.
            if zigzag >> (32 if size_max == _VARINT_BYTES else 64):
                raise CorruptBatch("a varint has more bits than its type")
            return (zigzag >> 1) ^ -(zigzag & 1), position + number + 1
    raise CorruptBatch(f"a varint is longer than {size_max} bytes")


def _read_size(data: bytes, position: int, what: str) -> tuple[int, int]:
    size, position = _read_varint(data, position)
    if size < -1:
        raise CorruptBatch(f"negative {what} size {size}")
    return max(size, 0), position


def _skip_headers(data: bytes, position: int, headers_max: int | None) -> tuple[int, int | None]:
    """The position after a record's headers, and how many headers are still allowed."""
    count, position = _read_varint(data, position)
    if not 0 <= count <= len(data) - position:
        raise CorruptBatch(f"{count} headers")
    if headers_max is not None:
        headers_max -= count
        if headers_max < 0:
            raise TooLong
    for _ in range(count):
        byte = data[position]
        if byte < 0x80:
            size = (byte >> 1) ^ -(byte & 1)
            position += 1
        else:
            size, position = _read_varint(data, position)
        if not 0 <= size <= len(data) - position:
            raise CorruptBatch(f"header key size {size}")
        key = data[position : position + size]
        if not key.isascii():
            _check_utf8(key)
        position += size
        byte = data[position]
        if byte < 0x80 and not byte & 1:
            position += 1 + (byte >> 1)
        else:
            size, position = _read_size(data, position, "header value")
            position += size
    return position, headers_max


def _check_utf8(key: bytes) -> None:
    try:
        key.decode()
    except UnicodeDecodeError as error:
        raise CorruptBatch("a header key is not UTF-8") from error


def record_times(data: bytes, count: int) -> Iterator[tuple[int, int]]:
    """(timestamp delta, offset delta) of the records in a section. Raises CorruptBatch."""
    position = 0
    try:
        for _ in range(count):
            size, position = _read_varint(data, position)
            if size < 0:
                raise CorruptBatch("negative record size")
            since, at = _read_varint(data, position + 1, _VARLONG_BYTES)
            delta, _at = _read_varint(data, at)
            yield since, delta
            position += size
    except IndexError as error:
        raise CorruptBatch("a record ends after its batch") from error
