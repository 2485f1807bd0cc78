"""Control batches: the markers that end a transaction.

A marker is a batch of one record with the transactional and control bits, the transaction's producer id and epoch and
no sequence. Knows no transaction: who may write one, and when, is the coordinator's and the log's business.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from einmal.wire.errors import CorruptBatch
from einmal.wire.record_batch import NewRecord, Record, encode_batch

ABORT: Final = 0
COMMIT: Final = 1

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")


class Marker(NamedTuple):
    committed: bool
    coordinator_epoch: int


def encode_marker(
    producer_id: int, producer_epoch: int, *, committed: bool, coordinator_epoch: int, timestamp: int
) -> bytes:
    """The control batch of a commit or an abort; ``timestamp`` in ms."""
    record = NewRecord(_KEY.pack(0, COMMIT if committed else ABORT), _VALUE.pack(0, coordinator_epoch), timestamp)
    return encode_batch(
        [record], producer_id=producer_id, producer_epoch=producer_epoch, transactional=True, control=True
    )


def control_type(record: Record) -> int:
    """The kind of a control record: 0 abort, 1 commit, others none of a transaction's. Raises CorruptBatch."""
    if record.key is None or len(record.key) < _KEY.size:
        raise CorruptBatch("control record without a key")
    return int(_KEY.unpack_from(record.key)[1])


def decode_marker(record: Record) -> Marker:
    """The marker in a control record; later versions may have more bytes after it. Raises CorruptBatch."""
    kind = control_type(record)
    if kind not in (ABORT, COMMIT):
        raise CorruptBatch(f"control record of type {kind} ends no transaction")
    if record.value is None or len(record.value) < _VALUE.size:
        raise CorruptBatch("marker without a value")
    return Marker(kind == COMMIT, _VALUE.unpack_from(record.value)[1])
