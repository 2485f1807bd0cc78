"""Record batches of magic 2: the 61-byte header, and the records inside.

A log needs only the header: it patches offset and leader epoch in place (the CRC-32C covers what follows them) and
never unpacks a record. Clients and coordinators encode and decode records. Knows no log, and no offsets but those in
the bytes.
Lengths and counts of the input are never trusted: they are compared with the actual bytes before they are used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from google_crc32c import value as crc32c

from einmal.types import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    SEQUENCE_MAX,
    Header,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
)
from einmal.types import Sequence as ProducerSequence
from einmal.wire.compression import MAX_DECOMPRESSED, Compression, compress, decompress
from einmal.wire.errors import CorruptBatch, Truncated

if TYPE_CHECKING:
    from mypy_extensions import i64

Buffer = bytes | bytearray | memoryview

HEADER_SIZE: Final = 61
LENGTH_OVERHEAD: Final = 12
"""Bytes of a batch that its length field, which counts only what follows it, leaves out."""
ATTRIBUTES_POSITION: Final = 21
MAGIC: Final = 2

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_FROM_ATTRIBUTES: Final = struct.Struct(">hiqqqhii")
_BEFORE_ATTRIBUTES: Final = struct.Struct(">qiibI")
_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")
_ATTRIBUTES: Final = struct.Struct(">h")
_PRODUCER: Final = struct.Struct(">qhi")
_CRC_POSITION: Final = 17
_LAST_OFFSET_DELTA_POSITION: Final = 23
_MAX_TIMESTAMP_POSITION: Final = 35
_PRODUCER_ID_POSITION: Final = 43
_RECORD_COUNT_POSITION: Final = 57
_SMALLEST_RECORD: Final = 7
_VARLONG_BITS: Final = 63


class BatchHeader(NamedTuple):
    """The header's thirteen fields, in the order of the bytes."""

    base_offset: Offset
    batch_length: int
    partition_leader_epoch: LeaderEpoch
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    base_sequence: ProducerSequence
    record_count: int

    @property
    def size(self) -> int:
        return self.batch_length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> Offset:
        return Offset(self.base_offset + self.last_offset_delta)

    @property
    def next_offset(self) -> Offset:
        return Offset(self.base_offset + self.last_offset_delta + 1)

    @property
    def last_sequence(self) -> ProducerSequence:
        """The last record's sequence; -1 where the batch has none. 2^31-1 is followed by 0."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return ProducerSequence((self.base_sequence + self.last_offset_delta) & SEQUENCE_MAX)

    @property
    def is_contiguous(self) -> bool:
        """Whether every offset has a record: compaction has removed none."""
        return self.record_count == self.last_offset_delta + 1

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def has_log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME != 0

    @property
    def timestamp_type(self) -> int:
        """0: CreateTime, 1: LogAppendTime."""
        return (self.attributes & LOG_APPEND_TIME) >> 3

    @property
    def compression(self) -> Compression:
        """The codec. Raises CorruptBatch for an unknown number."""
        try:
            return Compression(self.attributes & CODEC_MASK)
        except ValueError as error:
            raise CorruptBatch(f"unknown codec {self.attributes & CODEC_MASK}") from error


class Record(NamedTuple):
    offset: Offset
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


class NewRecord(NamedTuple):
    """A record that has no offset yet. ``timestamp`` in milliseconds."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[Header, ...] = ()


# --- headers ---------------------------------------------------------------------------------------------------


def peek_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at ``position``; the rest of the batch need not be in the buffer.

    Raises Truncated when the header is incomplete, CorruptBatch for another magic or an impossible length.
    """
    try:
        header = tuple.__new__(BatchHeader, _HEADER.unpack_from(buffer, position))
    except struct.error as error:
        raise Truncated("batch header") from error
    if header.magic != MAGIC:
        raise CorruptBatch(f"expected magic {MAGIC}, found {header.magic}")
    if header.batch_length < HEADER_SIZE - LENGTH_OVERHEAD:
        raise CorruptBatch(f"expected batch length >= {HEADER_SIZE - LENGTH_OVERHEAD}, found {header.batch_length}")
    return header


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch at ``position``, which is wholly in the buffer.

    Raises Truncated when the buffer ends before the batch does, CorruptBatch for another magic or an impossible length.
    """
    header = peek_header(buffer, position)
    if position + header.batch_length + LENGTH_OVERHEAD > len(buffer):
        raise Truncated("batch")
    return header


def validate(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Check what the header claims of its batch: the CRC-32C and the counts. Raises CorruptBatch."""
    ensure_crc(buffer, position, header)
    size = header.batch_length + LENGTH_OVERHEAD
    if header.last_offset_delta < 0 or not 0 <= header.record_count <= header.last_offset_delta + 1:
        raise CorruptBatch(f"{header.record_count} records, last offset delta {header.last_offset_delta}")
    if header.attributes & CODEC_MASK == 0 and header.record_count * _SMALLEST_RECORD > size - HEADER_SIZE:
        most = (size - HEADER_SIZE) // _SMALLEST_RECORD
        raise CorruptBatch(f"expected at most {most} records in {size} bytes, found {header.record_count}")


def validate_all(buffer: Buffer) -> None:
    """``validate`` each of the batches that the buffer consists of. Raises Truncated, CorruptBatch."""
    position = 0
    while position < len(buffer):
        header = read_header(buffer, position)
        validate(buffer, position, header)
        position += header.size


def ensure_crc(buffer: Buffer, position: int, header: BatchHeader) -> bytes:
    """The bytes covered by the CRC-32C. Raises CorruptBatch if it does not match."""
    covered = covered_bytes(buffer, position, header.size)
    computed = crc32c(covered)
    if computed != header.crc:
        raise CorruptBatch(f"expected CRC-32C {header.crc:08x}, found {computed:08x}")
    return covered


def is_whole_batch(buffer: Buffer) -> bool:
    """Whether the buffer is one batch, whatever length its header claims."""
    return (
        len(buffer) >= HEADER_SIZE and _checksum(buffer, 0, len(buffer)) == _CRC.unpack_from(buffer, _CRC_POSITION)[0]
    )


def covered_bytes(buffer: Buffer, position: int, size: int) -> bytes:
    """The bytes covered by the CRC-32C of a batch of this size."""
    # The checksum takes bytes only. A memoryview of a bytearray or of bytes makes this one copy and not two.
    return memoryview(buffer)[position + ATTRIBUTES_POSITION : position + size].tobytes()


def _checksum(buffer: Buffer, position: int, size: int) -> int:
    checksum: int = crc32c(covered_bytes(buffer, position, size))
    return checksum


def patch(buffer: bytearray | memoryview, position: int, base_offset: Offset, leader_epoch: LeaderEpoch) -> None:
    """Write offset and leader epoch in place. The CRC does not cover them."""
    _OFFSET.pack_into(buffer, position, base_offset)
    _LEADER_EPOCH.pack_into(buffer, position + LENGTH_OVERHEAD, leader_epoch)


def set_log_append_time(buffer: bytearray | memoryview, position: int, timestamp: int) -> None:
    """Make ``timestamp`` (ms) the time of every record of the batch, and recompute the CRC."""
    header = read_header(buffer, position)
    _ATTRIBUTES.pack_into(buffer, position + ATTRIBUTES_POSITION, header.attributes | LOG_APPEND_TIME)
    set_max_timestamp(buffer, position, timestamp)


def set_max_timestamp(buffer: bytearray | memoryview, position: int, timestamp: int) -> None:
    """Write the latest time (ms) of the batch's records into the header, and recompute the CRC."""
    header = read_header(buffer, position)
    _OFFSET.pack_into(buffer, position + _MAX_TIMESTAMP_POSITION, timestamp)
    _CRC.pack_into(buffer, position + _CRC_POSITION, _checksum(buffer, position, header.size))


def iter_headers(buffer: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of the whole batches in the buffer; a torn one at the end is left out.

    Raises CorruptBatch for another magic or an impossible length.
    """
    end = len(buffer)
    while end - position >= HEADER_SIZE:
        try:
            header = read_header(buffer, position)
        except Truncated:
            return
        yield position, header
        position += header.batch_length + LENGTH_OVERHEAD


# --- records to bytes ------------------------------------------------------------------------------------------


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    zigzag = (value << 1) ^ (value >> _VARLONG_BITS)
    while zigzag > 0x7F:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


_SHORT: Final = tuple(_encode_varint(value) for value in range(8192))
"""The encodings of one and two bytes: nearly every varint of a batch is one of them."""
_SHORT_COUNT: Final = len(_SHORT)
_NULL: Final = _encode_varint(-1)


def encode_varint(value: int) -> bytes:
    """The zig-zag encoding of a signed number of at most 64 bits."""
    return _SHORT[value] if 0 <= value < _SHORT_COUNT else _encode_varint(value)


def encode_records(records: Sequence[NewRecord]) -> bytes:
    """The records section of a batch: deltas count from the first record's timestamp and from offset 0."""
    base_timestamp = records[0].timestamp
    parts: list[bytes] = []
    for delta, (key, value, timestamp, headers) in enumerate(records):
        since = timestamp - base_timestamp
        body = b"".join(
            (
                b"\x00",
                encode_varint(since),
                encode_varint(delta),
                _NULL if key is None else encode_varint(len(key)),
                key or b"",
                _NULL if value is None else encode_varint(len(value)),
                value or b"",
                encode_headers(headers) if headers else b"\x00",
            )
        )
        parts.append(encode_varint(len(body)))
        parts.append(body)
    return b"".join(parts)


def encode_record(since: int, delta: int, key: bytes | None, value: bytes | None, headers: tuple[Header, ...]) -> bytes:
    """One record; ``since`` and ``delta`` are relative to the batch's base timestamp and base offset."""
    body = b"".join(
        (
            b"\x00",
            encode_varint(since),
            encode_varint(delta),
            _NULL if key is None else encode_varint(len(key)),
            key or b"",
            _NULL if value is None else encode_varint(len(value)),
            value or b"",
            encode_headers(headers),
        )
    )
    return encode_varint(len(body)) + body


def encode_headers(headers: tuple[Header, ...]) -> bytes:
    """The number of headers and the headers, at the end of a record."""
    parts = [encode_varint(len(headers))]
    for header in headers:
        key = header.key.encode()
        parts += (encode_varint(len(key)), key)
        parts += (_NULL,) if header.value is None else (encode_varint(len(header.value)), header.value)
    return b"".join(parts)


def encode_batch(
    records: Sequence[NewRecord],
    *,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    compression: Compression = Compression.NONE,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """One batch of at least one record."""
    assert records, "a batch has at least one record"
    section = encode_records(records)
    if compression:
        section = compress(compression, section)
    return seal_batch(
        section,
        len(records),
        records[0].timestamp,
        max(record.timestamp for record in records),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        control=control,
        compression=compression,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )


def seal_batch(
    section: Buffer,
    count: int,
    first_timestamp: int,
    max_timestamp: int,
    *,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    compression: Compression = Compression.NONE,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """The batch of ``count`` encoded records, which are compressed already: the header before them."""
    attributes = int(compression) | (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)
    checked = b"".join(
        (
            _FROM_ATTRIBUTES.pack(
                attributes, count - 1, first_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count
            ),
            section,
        )
    )
    return _sealed(base_offset, leader_epoch, checked)


def _sealed(base_offset: int, leader_epoch: int, checked: bytes) -> bytes:
    """The batch of what its CRC covers: length and CRC are computed."""
    return _BEFORE_ATTRIBUTES.pack(base_offset, len(checked) + 9, leader_epoch, MAGIC, crc32c(checked)) + checked


def assemble(header: BatchHeader, section: Buffer) -> bytes:
    """The batch of a header and its records section, which is compressed already; length and CRC are recomputed."""
    checked = b"".join((_FROM_ATTRIBUTES.pack(*header[5:]), section))
    return _sealed(header.base_offset, header.partition_leader_epoch, checked)


def under_producer(
    batch: Buffer,
    header: BatchHeader,
    producer_id: ProducerId,
    producer_epoch: ProducerEpoch,
    base_sequence: ProducerSequence,
) -> bytes:
    """The same records in a batch of this producer's transaction, with offset 0 and no leader epoch; the CRC is
    computed anew. ``batch``: the bytes of one batch, with ``header``."""
    view = memoryview(batch)
    checked = b"".join(
        (
            _ATTRIBUTES.pack(header.attributes | TRANSACTIONAL),
            view[_LAST_OFFSET_DELTA_POSITION:_PRODUCER_ID_POSITION],
            _PRODUCER.pack(producer_id, producer_epoch, base_sequence),
            view[_RECORD_COUNT_POSITION : header.size],
        )
    )
    return _sealed(0, NO_LEADER_EPOCH, checked)


# --- bytes to records ------------------------------------------------------------------------------------------


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """A zig-zag number of at most 64 bits, and the position after it. Raises IndexError or CorruptBatch."""
    zigzag = shift = 0
    while True:
        byte = data[position]
        position += 1
        zigzag |= (byte & 0x7F) << shift
        if byte < 0x80:
            if shift == _VARLONG_BITS and byte > 1:
                raise CorruptBatch("varint of more than 64 bits")
            return (zigzag >> 1) ^ -(zigzag & 1), position
        shift += 7
        if shift > _VARLONG_BITS:
            raise CorruptBatch("varint longer than ten bytes")


def records_section(buffer: Buffer, position: int, header: BatchHeader, *, max_bytes: int = MAX_DECOMPRESSED) -> bytes:
    """The records section of the batch at ``position``, decompressed to at most ``max_bytes``.

    Raises CorruptBatch where it is too short for the records that the header claims, or TooLarge.
    """
    end = position + header.batch_length + LENGTH_OVERHEAD
    section = bytes(memoryview(buffer)[position + HEADER_SIZE : end])
    if header.attributes & CODEC_MASK:
        section = decompress(header.compression, section, max_bytes)
    _check_count(header, len(section))
    return section


def records_within(
    covered: bytes, header: BatchHeader, max_bytes: int, blocks_max: int | None = None
) -> tuple[bytes, int]:
    """The records among the bytes that the CRC-32C covers: bytes that end with them, and where they begin.

    Uncompressed records are not copied. Compressed ones must be in a framing that every client reads.
    Raises CorruptBatch or TooLarge as ``records_section`` does, and TooLong as ``decompress`` does.
    """
    begin = HEADER_SIZE - ATTRIBUTES_POSITION
    if header.attributes & CODEC_MASK:
        section = covered[begin:]
        covered, begin = decompress(header.compression, section, max_bytes, strict=True, blocks_max=blocks_max), 0
    _check_count(header, len(covered) - begin)
    return covered, begin


def _check_count(header: BatchHeader, size: int) -> None:
    if header.record_count < 0 or header.record_count * _SMALLEST_RECORD > size:
        most = size // _SMALLEST_RECORD
        raise CorruptBatch(f"expected 0 to {most} records in {size} bytes, found {header.record_count}")


def decode_records(
    buffer: Buffer, position: int, header: BatchHeader, *, max_bytes: int = MAX_DECOMPRESSED
) -> list[Record]:
    """The records of the batch at ``position``, decompressed to at most ``max_bytes``.

    Raises CorruptBatch, or TooLarge when they decompress to more.
    """
    section = records_section(buffer, position, header, max_bytes=max_bytes)
    append_time = header.max_timestamp if header.has_log_append_time else None
    try:
        return _decode_section(section, header.record_count, header.base_offset, header.base_timestamp, append_time)
    except IndexError as error:
        raise CorruptBatch("a record ends after its batch") from error


def _decode_section(  # noqa: C901 - varints are read in place: a call for each would halve the speed
    data: bytes, count: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> list[Record]:
    records: list[Record] = []
    make = tuple.__new__
    position: i64 = 0
    byte: i64
    second: i64
    size: i64
    end: i64
    since: int
    delta: int
    for _ in range(count):
        byte = data[position]
        if byte < 0x80:
            size = (byte >> 1) ^ -(byte & 1)
            position += 1
        elif (second := data[position + 1]) < 0x80:
            size = ((byte & 0x7F | second << 7) >> 1) ^ -(byte & 1)
            position += 2
        else:
            size, position = read_varint(data, position)
        if not 0 <= size <= len(data) - position:
            raise CorruptBatch(f"record size {size}")
        end = position + size
        byte = data[position + 1]  # the record's attributes, before it, mean nothing
        if byte < 0x80:
            since = (byte >> 1) ^ -(byte & 1)
            position += 2
        else:
            since, position = read_varint(data, position + 1)
        byte = data[position]
        if byte < 0x80:
            delta = (byte >> 1) ^ -(byte & 1)
            position += 1
        else:
            delta, position = read_varint(data, position)
        key: bytes | None = None
        byte = data[position]
        if byte == 1:
            position += 1
        else:
            if byte < 0x80:
                size = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                size, position = read_varint(data, position)
            if not 0 <= size <= len(data) - position:
                raise CorruptBatch(f"key size {size}")
            key = data[position : position + size]
            position += size
        value: bytes | None = None
        byte = data[position]
        if byte == 1:
            position += 1
        else:
            if byte < 0x80:
                size = (byte >> 1) ^ -(byte & 1)
                position += 1
            elif (second := data[position + 1]) < 0x80:
                size = ((byte & 0x7F | second << 7) >> 1) ^ -(byte & 1)
                position += 2
            else:
                size, position = read_varint(data, position)
            if not 0 <= size <= len(data) - position:
                raise CorruptBatch(f"value size {size}")
            value = data[position : position + size]
            position += size
        headers: tuple[Header, ...] = ()
        if data[position]:
            headers, position = decode_headers(data, position)
        else:
            position += 1
        if position != end:
            raise CorruptBatch(f"expected a record up to byte {end}, found one up to byte {position}")
        records.append(
            make(
                Record,
                (
                    base_offset + delta,
                    base_timestamp + since if append_time is None else append_time,
                    key,
                    value,
                    headers,
                ),
            )
        )
    if position != len(data):
        raise CorruptBatch(f"expected {position} bytes of records, found {len(data)}")
    return records


def decode_headers(data: bytes, position: int) -> tuple[tuple[Header, ...], int]:
    """A record's headers, and the position after them. Raises IndexError or CorruptBatch.

    The bytes of a name that are not UTF-8, which librdkafka lets pass, are U+FFFD, as for Java's client.
    """
    count, position = read_varint(data, position)
    if not 0 <= count <= len(data) - position:
        raise CorruptBatch(f"{count} headers")
    headers = []
    for _ in range(count):
        size, position = read_varint(data, position)
        if not 0 <= size <= len(data) - position:
            raise CorruptBatch("header key size")
        key = data[position : position + size].decode("utf-8", "replace")
        position += size
        size, position = read_varint(data, position)
        if size == -1:
            headers.append(Header(key, None))
            continue
        if not 0 <= size <= len(data) - position:
            raise CorruptBatch("header value size")
        headers.append(Header(key, data[position : position + size]))
        position += size
    return tuple(headers), position
