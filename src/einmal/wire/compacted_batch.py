"""A record batch after compaction: fewer records, or the header alone.

Base and last offset stay, and with them the sequences, so that the batch still shows what its producer has written.
Since KIP-534 a batch with tombstones, or a marker whose transaction is gone, has the time at which they may be removed:
its *delete horizon*, instead of the base timestamp, with a bit of its own in the attributes. Knows no log and no key.

Producers choose timestamps, and operators how long tombstones stay: both may be near the ends of an int64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from einmal.wire.compression import compress
from einmal.wire.record_batch import (
    CONTROL,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    Record,
    assemble,
    encode_record,
)

DELETE_HORIZON: Final = 0x40
_NO_TIMESTAMP: Final = -1
_INT64_MAX: Final = 2**63 - 1


def delete_horizon(header: BatchHeader) -> int | None:
    """When tombstones, or a marker that ends nothing, may be removed; in ms. None: not fixed yet."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON else None


def encode_retained(header: BatchHeader, records: Sequence[Record], horizon: int | None) -> bytes:
    """The batch of ``header`` with only these of its records, under its own codec; at least one."""
    base_timestamp = _base_timestamp(header, records, horizon)
    section = b"".join(
        [
            encode_record(
                record.timestamp - base_timestamp,
                record.offset - header.base_offset,
                record.key,
                record.value,
                record.headers,
            )
            for record in records
        ]
    )
    return assemble(
        header._replace(
            attributes=header.attributes & ~DELETE_HORIZON | (0 if horizon is None else DELETE_HORIZON),
            base_timestamp=base_timestamp,
            max_timestamp=header.max_timestamp
            if header.has_log_append_time
            else max(record.timestamp for record in records),
            record_count=len(records),
        ),
        compress(header.compression, section),
    )


def _base_timestamp(header: BatchHeader, records: Sequence[Record], horizon: int | None) -> int:
    """A base timestamp from which every record's difference is an int64, and which is one itself."""
    if horizon is not None:
        # A horizon that cannot be expressed from there is as old as any tombstone gets.
        return min(horizon, _INT64_MAX, min(record.timestamp for record in records) + _INT64_MAX)
    return records[0].timestamp if header.has_log_append_time else header.base_timestamp


def encode_empty(header: BatchHeader) -> bytes:
    """The batch of ``header`` without any record."""
    return assemble(
        header._replace(
            attributes=header.attributes & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL),
            base_timestamp=_NO_TIMESTAMP,
            record_count=0,
        ),
        b"",
    )
