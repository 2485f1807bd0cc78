"""Kafka's protocol by hand: one blocking connection, and record batches made and read byte by byte.

The bodies of messages come from ``einmal.wire.messages``; the record batches are written here on purpose, so that a
broker is not checked by the codec that it uses. Knows no retry and no meaning of any answer.
"""

from __future__ import annotations

import itertools
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import google_crc32c

from einmal.wire.messages import encode_request_header, read_uvarint, response_body_position, skip_tagged_fields
from tests.wire.mapped import decode_response, encode_request

PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
JOIN_GROUP: Final = 11
SYNC_GROUP: Final = 14
FIND_COORDINATOR: Final = 10
API_VERSIONS: Final = 18
CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
DELETE_RECORDS: Final = 21
INIT_PRODUCER_ID: Final = 22
ADD_PARTITIONS_TO_TXN: Final = 24
ADD_OFFSETS_TO_TXN: Final = 25
END_TXN: Final = 26
WRITE_TXN_MARKERS: Final = 27
TXN_OFFSET_COMMIT: Final = 28
DESCRIBE_QUORUM: Final = 55
UPDATE_FEATURES: Final = 57
DESCRIBE_PRODUCERS: Final = 61
DESCRIBE_TRANSACTIONS: Final = 65
LIST_TRANSACTIONS: Final = 66

_TIMEOUT_S: Final = 120.0
_CLIENT_ID: Final = "interop"


class Identity(NamedTuple):
    """What a writer signs its batches with."""

    producer_id: int
    producer_epoch: int


class Connection:
    """Requests go out in order and answers come back in that order. Raises OSError when the broker hangs up."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")
        self._correlation_ids = itertools.count()
        self._waiting: list[tuple[int, int, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def call(self, api_key: int, version: int, **fields: Any) -> Any:
        self.send(api_key, version, **fields)
        return self.receive()

    def send(self, api_key: int, version: int, **fields: Any) -> None:
        correlation_id = next(self._correlation_ids)
        header = encode_request_header(api_key, version, correlation_id, _CLIENT_ID)
        frame = header + encode_request(api_key, version, fields)
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        self._waiting.append((api_key, version, correlation_id))

    def repeat(self, count: int, api_key: int, version: int, **fields: Any) -> Any:
        """The same request so many times, all under way at once. The last answer; the others are only waited for."""
        body = encode_request(api_key, version, fields)
        frames = bytearray()
        for _ in range(count):
            correlation_id = next(self._correlation_ids)
            header = encode_request_header(api_key, version, correlation_id, _CLIENT_ID)
            frames += struct.pack(">i", len(header) + len(body)) + header + body
            self._waiting.append((api_key, version, correlation_id))
        self._socket.sendall(frames)
        for _ in range(count - 1):
            self._receive()
        return self.receive()

    def receive(self) -> Any:
        """The answer to the oldest request that has none yet."""
        api_key, version, frame, position = self._receive()
        return decode_response(api_key, version, frame, position)

    def describe_transaction(self, transactional_id: str) -> DescribedTransaction:
        """DescribeTransactions of one id. Read by hand: kio refuses the start time -1 of "no transaction is open"."""
        self.send(DESCRIBE_TRANSACTIONS, 0, transactional_ids=[transactional_id])
        _, _, frame, position = self._receive()
        return _read_described_transaction(frame, position)

    def _receive(self) -> tuple[int, int, bytes, int]:
        (size,) = struct.unpack(">i", self._read(4))
        frame = self._read(size)
        api_key, version, correlation_id = self._waiting.pop(0)
        assert struct.unpack_from(">i", frame) == (correlation_id,), "answers out of order"
        return api_key, version, frame, response_body_position(api_key, version, frame)

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) != size:
            raise ConnectionError("the broker closed the connection")
        return data


class DescribedTransaction(NamedTuple):
    error_code: int
    state: str
    identity: Identity
    partitions: tuple[tuple[str, int], ...]


def _read_described_transaction(frame: bytes, position: int) -> DescribedTransaction:
    count, position = read_uvarint(frame, position + 4)
    assert count == 2, "one transactional id was asked for"
    (error_code,) = struct.unpack_from(">h", frame, position)
    _transactional_id, position = _read_compact_string(frame, position + 2)
    state, position = _read_compact_string(frame, position)
    _timeout, _start, producer_id, producer_epoch = struct.unpack_from(">iqqh", frame, position)
    topics, position = read_uvarint(frame, position + 22)
    partitions = []
    for _ in range(topics - 1):
        topic, position = _read_compact_string(frame, position)
        indexes, position = read_uvarint(frame, position)
        partitions += [(topic, index) for index in struct.unpack_from(f">{indexes - 1}i", frame, position)]
        position = skip_tagged_fields(frame, position + 4 * (indexes - 1))
    return DescribedTransaction(error_code, state, Identity(producer_id, producer_epoch), tuple(partitions))


def _read_compact_string(frame: bytes, position: int) -> tuple[str, int]:
    size, position = read_uvarint(frame, position)
    end = position + size - 1
    return frame[position:end].decode(), end


# Fields of a batch header, byte for byte as the protocol has them; the CRC covers what follows it.
_BEFORE_CRC: Final = struct.Struct(">qiibI")
_AFTER_CRC: Final = struct.Struct(">hiqqqhii")
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20


def make_batch(identity: Identity, base_sequence: int, values: Sequence[str], *, transactional: bool = True) -> bytes:
    """A record batch v2 without compression, keys or headers."""
    records = b"".join(_make_record(delta, value.encode()) for delta, value in enumerate(values))
    attributes = _TRANSACTIONAL if transactional else 0
    count = len(values)
    # An old timestamp would make the broker roll, and soon delete, the segment.
    now = int(time.time() * 1000)
    covered = _AFTER_CRC.pack(attributes, count - 1, now, now, *identity, base_sequence, count) + records
    crc = google_crc32c.value(covered)
    return _BEFORE_CRC.pack(0, _BEFORE_CRC.size - 12 + len(covered), -1, 2, crc) + covered


def _make_record(offset_delta: int, value: bytes) -> bytes:
    body = b"\0" + _varint(0) + _varint(offset_delta) + _varint(-1) + _varint(len(value)) + value + _varint(0)
    return _varint(len(body)) + body


def _varint(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while zigzag > 0x7F:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """A batch as it lies in the log. ``values`` of a control batch holds "COMMIT" or "ABORT"."""

    base_offset: int
    identity: Identity
    base_sequence: int
    is_transactional: bool
    is_control: bool
    values: tuple[str, ...]
    next_offset: int


def read_batches(data: bytes) -> list[ReadBatch]:
    """All whole batches in fetched bytes."""
    batches = []
    position = 0
    while position + _BEFORE_CRC.size + _AFTER_CRC.size <= len(data):
        base_offset, length, _epoch, magic, crc = _BEFORE_CRC.unpack_from(data, position)
        end = position + 12 + length
        if end > len(data):
            break
        covered = data[position + _BEFORE_CRC.size : end]
        assert magic == 2 and google_crc32c.value(covered) == crc, "a damaged batch"
        attributes, last_offset_delta, _, _, producer_id, producer_epoch, sequence, count = _AFTER_CRC.unpack_from(
            covered
        )
        is_control = bool(attributes & _CONTROL)
        batches.append(
            ReadBatch(
                base_offset,
                Identity(producer_id, producer_epoch),
                sequence,
                bool(attributes & _TRANSACTIONAL),
                is_control,
                tuple(_read_records(covered[_AFTER_CRC.size :], count, is_control)),
                base_offset + last_offset_delta + 1,
            )
        )
        position = end
    return batches


def _read_records(data: bytes, count: int, is_control: bool) -> list[str]:
    values = []
    position = 0
    for _ in range(count):
        size, position = _read_varint(data, position)
        end = position + size
        position += 1
        _timestamp_delta, position = _read_varint(data, position)
        _offset_delta, position = _read_varint(data, position)
        key_size, position = _read_varint(data, position)
        key = data[position : position + max(0, key_size)]
        position += len(key)
        value_size, position = _read_varint(data, position)
        value = data[position : position + max(0, value_size)]
        values.append(("ABORT", "COMMIT")[struct.unpack_from(">h", key, 2)[0]] if is_control else value.decode())
        position = end
    return values


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    zigzag = shift = 0
    while True:
        byte = data[position]
        position += 1
        zigzag |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (zigzag >> 1) ^ -(zigzag & 1), position
