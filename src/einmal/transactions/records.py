"""The records of ``__transaction_state``, in Apache Kafka's bytes.

Key version 0; value version 1 is written (flexible; the fields of KIP-890 and KIP-939 are in its tags), version 0 is
read too. A value of null is a tombstone: the transactional id is forgotten. Tags that we do not know are skipped.
Two tags are ours. Without the last epoch a retry of InitProducerId at the next coordinator would look like a zombie's
(KIP-360); without the next timeout whoever keeps a transaction that has none would have none for ever (KIP-939).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from einmal.transactions.states import TransactionState
from einmal.transactions.transaction import NO_NEXT_TIMEOUT, Transaction
from einmal.types import (
    EPOCH_MAX,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
    TransactionVersion,
)
from einmal.wire.errors import Malformed, Truncated, UnknownVersion
from einmal.wire.messages import read_uvarint
from einmal.wire.primitives import encode_uvarint

_KEY_VERSION: Final = 0
_FLEXIBLE_VERSION: Final = 1
_HEAD: Final = struct.Struct(">qhib")
_TIMES: Final = struct.Struct(">qq")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")

_PREVIOUS_PRODUCER_ID: Final = 0
_NEXT_PRODUCER_ID: Final = 1
_CLIENT_TRANSACTION_VERSION: Final = 2
_NEXT_PRODUCER_EPOCH: Final = 3
_NEXT_TIMEOUT: Final = 9_390
"""Our tag."""
_LAST_PRODUCER_EPOCH: Final = 17_742
"""Our tag, far above Kafka's own; its readers skip unknown tags. Apache Kafka loses this epoch with a failover of the
coordinator (KAFKA-17742)."""


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """One record: the complete state of a transaction, or None if its transactional id has expired."""

    transactional_id: str
    transaction: Transaction | None


def encode(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """Key and value."""
    return _encode_key(record.transactional_id), None if record.transaction is None else _encode_value(
        record.transaction
    )


def decode(key: bytes | None, value: bytes | None, producer_id: ProducerId | None = None) -> TransactionRecord | None:
    """The record; None for a key of a version that we do not know. Raises WireError."""
    assert producer_id is None, "the transaction log is not written in transactions"
    if key is None:
        raise Malformed("a record of the transaction log without a key")
    (version,) = _unpack(_INT16, key, 0)
    if version != _KEY_VERSION:
        return None
    transactional_id = _Reader(key, 2, flexible=False).string()
    return TransactionRecord(transactional_id, None if value is None else _decode_value(transactional_id, value))


def _encode_key(transactional_id: str) -> bytes:
    encoded = transactional_id.encode()
    return _INT16.pack(_KEY_VERSION) + _INT16.pack(len(encoded)) + encoded


def _encode_value(transaction: Transaction) -> bytes:
    return b"".join(
        (
            _INT16.pack(_FLEXIBLE_VERSION),
            _HEAD.pack(
                transaction.producer_id, transaction.producer_epoch, transaction.timeout_ms, transaction.state.value
            ),
            _encode_partitions(transaction),
            _TIMES.pack(transaction.last_update_ms, transaction.start_ms),
            _encode_tags(transaction),
        )
    )


def _encode_partitions(transaction: Transaction) -> bytes:
    # Kafka writes null where a transaction has not begun.
    if transaction.state is TransactionState.EMPTY:
        return _count(-1)
    topics = [
        (topic, [partition.partition for partition in group])
        for topic, group in groupby(transaction.partitions, key=lambda partition: partition.topic)
    ]
    parts = [_count(len(topics))]
    for topic, ids in topics:
        name = topic.encode()
        parts += [_count(len(name)), name, _count(len(ids)), struct.pack(f">{len(ids)}i", *ids), b"\x00"]
    return b"".join(parts)


def _encode_tags(transaction: Transaction) -> bytes:
    tags = []
    if transaction.previous_producer_id != NO_PRODUCER_ID:
        tags.append((_PREVIOUS_PRODUCER_ID, _INT64.pack(transaction.previous_producer_id)))
    if transaction.next_producer_id != NO_PRODUCER_ID:
        tags.append((_NEXT_PRODUCER_ID, _INT64.pack(transaction.next_producer_id)))
    if transaction.client_version != TransactionVersion.TV_0:
        tags.append((_CLIENT_TRANSACTION_VERSION, _INT16.pack(transaction.client_version)))
    if transaction.is_kept:
        tags.append((_NEXT_PRODUCER_EPOCH, _INT16.pack(transaction.next_producer_epoch)))
    if transaction.next_timeout_ms != NO_NEXT_TIMEOUT:
        tags.append((_NEXT_TIMEOUT, _INT32.pack(transaction.next_timeout_ms)))
    if transaction.last_producer_epoch != NO_PRODUCER_EPOCH:
        tags.append((_LAST_PRODUCER_EPOCH, _INT16.pack(transaction.last_producer_epoch)))
    return encode_uvarint(len(tags)) + b"".join(
        encode_uvarint(tag) + encode_uvarint(len(data)) + data for tag, data in tags
    )


def _count(count: int) -> bytes:
    """How many follow, -1 for null."""
    return encode_uvarint(count + 1)


def _decode_value(transactional_id: str, value: bytes) -> Transaction:
    (version,) = _unpack(_INT16, value, 0)
    if version not in (0, _FLEXIBLE_VERSION):
        raise UnknownVersion(f"transaction log value version {version}")
    reader = _Reader(value, 2, flexible=version == _FLEXIBLE_VERSION)
    producer_id, producer_epoch, timeout_ms, status = reader.fixed(_HEAD)
    try:
        state = TransactionState(status)
    except ValueError as error:
        raise Malformed(f"transaction status {status}") from error
    partitions = tuple(sorted(reader.partitions()))
    last_update_ms, start_ms = reader.fixed(_TIMES)
    tags = reader.tags()
    next_producer_id = _tag(tags, _NEXT_PRODUCER_ID, _INT64, NO_PRODUCER_ID)
    next_producer_epoch = _tag(tags, _NEXT_PRODUCER_EPOCH, _INT16, NO_PRODUCER_EPOCH)
    if next_producer_epoch != NO_PRODUCER_EPOCH and not (
        next_producer_id >= 0 and 0 <= next_producer_epoch <= EPOCH_MAX
    ):
        raise Malformed(f"next producer {next_producer_id} with epoch {next_producer_epoch}")
    return Transaction(
        transactional_id=transactional_id,
        producer_id=ProducerId(producer_id),
        producer_epoch=ProducerEpoch(producer_epoch),
        previous_producer_id=ProducerId(_tag(tags, _PREVIOUS_PRODUCER_ID, _INT64, NO_PRODUCER_ID)),
        next_producer_id=ProducerId(next_producer_id),
        next_producer_epoch=ProducerEpoch(next_producer_epoch),
        next_timeout_ms=_tag(tags, _NEXT_TIMEOUT, _INT32, NO_NEXT_TIMEOUT),
        timeout_ms=timeout_ms,
        state=state,
        partitions=partitions,
        last_update_ms=last_update_ms,
        start_ms=start_ms,
        client_version=_client_version(_tag(tags, _CLIENT_TRANSACTION_VERSION, _INT16, 0)),
        last_producer_epoch=ProducerEpoch(_tag(tags, _LAST_PRODUCER_EPOCH, _INT16, NO_PRODUCER_EPOCH)),
    )


def _client_version(level: int) -> TransactionVersion:
    try:
        return TransactionVersion(level)
    except ValueError as error:
        raise Malformed(f"client transaction version {level}") from error


def _tag(tags: dict[int, bytes], tag: int, form: struct.Struct, default: int) -> int:
    return int(_unpack(form, tags[tag], 0)[0]) if tag in tags else default


def _unpack(form: struct.Struct, data: bytes, position: int) -> tuple[int, ...]:
    try:
        return form.unpack_from(data, position)
    except struct.error as error:
        raise Truncated("transaction log record") from error


class _Reader:
    """Reads a record's fields in order. Raises Truncated or Malformed."""

    def __init__(self, data: bytes, position: int, *, flexible: bool) -> None:
        self._data = data
        self._position = position
        self._flexible = flexible

    def fixed(self, form: struct.Struct) -> tuple[int, ...]:
        values = _unpack(form, self._data, self._position)
        self._position += form.size
        return values

    def partitions(self) -> Iterator[TopicPartition]:
        for _ in range(self._count()):
            topic = self.string()
            for _ in range(self._count()):
                (partition,) = self.fixed(_INT32)
                yield TopicPartition(topic, partition)
            if self._flexible:
                self.tags()

    def tags(self) -> dict[int, bytes]:
        if not self._flexible:
            return {}
        tags = {}
        for _ in range(self._uvarint()):
            tag = self._uvarint()
            tags[tag] = self._bytes(self._uvarint())
        return tags

    def string(self) -> str:
        length = self._uvarint() - 1 if self._flexible else self.fixed(_INT16)[0]
        if length < 0:
            raise Malformed("null string in a transaction log record")
        try:
            return self._bytes(length).decode()
        except UnicodeDecodeError as error:
            raise Malformed("a name in a transaction log record is not UTF-8") from error

    def _count(self) -> int:
        # A null array (-1) counts as empty; a wrong length ends at the record's end.
        return self._uvarint() - 1 if self._flexible else self.fixed(_INT32)[0]

    def _uvarint(self) -> int:
        value, self._position = read_uvarint(self._data, self._position)
        return value

    def _bytes(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._data):
            raise Truncated("transaction log record")
        data = self._data[self._position : end]
        self._position = end
        return data
