"""A metadata snapshot's bytes (KIP-630): the state of the log before an offset, as record batches in a file.

Header and footer are control batches; between them the values of metadata records. A snapshot without its footer is
incomplete. Offsets inside count from 0 and mean nothing; the file's name has the offset and epoch. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from einmal.quorum.control_records import SNAPSHOT_FOOTER, SNAPSHOT_HEADER, snapshot_footer, snapshot_header
from einmal.quorum.messages import OffsetAndEpoch
from einmal.wire.control_batch import control_type
from einmal.wire.errors import CorruptBatch
from einmal.wire.record_batch import NewRecord, decode_records, encode_batch, read_header, validate

_SUFFIX: Final = ".checkpoint"
_BATCH_BYTES: Final = 512 * 1024
"""A batch ends at the record with which it reaches this size."""


def file_name(snapshot_id: OffsetAndEpoch) -> str:
    return f"{snapshot_id.offset:020}-{snapshot_id.epoch:010}{_SUFFIX}"


def id_of(name: str) -> OffsetAndEpoch | None:
    """The snapshot id in a file's name; None: it is not a snapshot."""
    offset, separator, epoch = name.removesuffix(_SUFFIX).partition("-")
    is_one = name.endswith(_SUFFIX) and separator and (len(offset), len(epoch)) == (20, 10)
    return OffsetAndEpoch(int(offset), int(epoch)) if is_one and (offset + epoch).isdecimal() else None


def encode(values: Sequence[bytes], epoch: int, *, last_contained_log_timestamp: int, timestamp: int) -> bytes:
    """The whole file; times in ms."""
    parts = [snapshot_header(last_contained_log_timestamp, timestamp, leader_epoch=epoch)]
    offset = 1
    for batch in _batches(values):
        records = [NewRecord(None, value, timestamp) for value in batch]
        parts.append(encode_batch(records, base_offset=offset, leader_epoch=epoch))
        offset += len(batch)
    parts.append(snapshot_footer(timestamp, base_offset=offset, leader_epoch=epoch))
    return b"".join(parts)


def _batches(values: Sequence[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for value in values:
        batch.append(value)
        size += len(value)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def decode(data: bytes) -> list[bytes]:
    """The values. Raises Truncated or CorruptBatch for an incomplete snapshot."""
    values: list[bytes] = []
    kinds: list[int] = []
    position = 0
    while position < len(data):
        header = read_header(data, position)
        validate(data, position, header)
        records = decode_records(data, position, header)
        if header.is_control:
            kinds += map(control_type, records)
        else:
            values += (record.value or b"" for record in records)
        position += header.size
    if not kinds or kinds[0] != SNAPSHOT_HEADER or kinds[-1] != SNAPSHOT_FOOTER:
        raise CorruptBatch(f"expected control records from {SNAPSHOT_HEADER} to {SNAPSHOT_FOOTER}, found {kinds}")
    return values
