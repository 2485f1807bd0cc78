"""Content of a partition between two offsets: records that readers get, aborted ones, markers, open transactions.

Counted from batch headers and markers, which every broker returns. Knows no broker: batches come from the caller.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from einmal.client.records import OffsetRange
from einmal.wire.control_batch import ABORT, COMMIT, control_type

if TYPE_CHECKING:
    from einmal.client.cores.fetched import RawBatch


@dataclass(frozen=True, slots=True)
class TransactionRange:
    """The records of one transaction: offsets of the first and the last, how many, and the first one's time in ms.
    ``marker_offset`` is None where it is open."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    last_offset: int
    records: int
    first_timestamp: int
    marker_offset: int | None


@dataclass(frozen=True, slots=True)
class RangeContent:
    """``committed``, ``aborted``, ``markers``: below the last stable offset. ``behind``: records after it that are
    committed or may be committed yet."""

    committed: int
    aborted: int
    markers: int
    behind: int
    aborted_ranges: tuple[TransactionRange, ...]
    open_ranges: tuple[TransactionRange, ...]


@dataclass(slots=True)
class _Pending:
    """A transaction whose marker has not come yet; its records below the last stable offset, and after it."""

    first: RawBatch
    last_offset: int
    below: int = 0
    after: int = 0

    def as_range(self, marker_offset: int | None = None) -> TransactionRange:
        header = self.first.header
        return TransactionRange(
            header.producer_id,
            header.producer_epoch,
            header.base_offset,
            self.last_offset,
            self.below + self.after,
            header.base_timestamp,
            marker_offset,
        )


def count(batches: Iterable[RawBatch], start: int, stable: int) -> RangeContent:
    """``batches``: all from offset ``start`` to the high watermark. ``stable``: the last stable offset, read before the
    high watermark, so that the marker of everything below it is among them. Raises CorruptData."""
    committed = aborted = markers = behind = 0
    pending: dict[int, _Pending] = {}
    ended: list[TransactionRange] = []
    for batch in batches:
        header = batch.header
        is_below = header.base_offset < stable
        if header.is_control:
            kinds = [control_type(record) for record in batch.records()]
            markers += sum(is_below and record.offset >= start for record in batch.records())
            transaction = pending.pop(header.producer_id, None) if {ABORT, COMMIT} & set(kinds) else None
            if transaction is not None and ABORT in kinds:
                aborted += transaction.below
                ended.append(transaction.as_range(header.base_offset))
            elif transaction is not None:
                committed += transaction.below
                behind += transaction.after
            continue
        records = _count(batch, start)
        if header.is_transactional:
            transaction = pending.setdefault(header.producer_id, _Pending(batch, header.last_offset))
            transaction.last_offset = header.last_offset
            transaction.below += records if is_below else 0
            transaction.after += 0 if is_below else records
        elif is_below:
            committed += records
        else:
            behind += records
    behind += sum(transaction.after for transaction in pending.values())
    open_ranges = tuple(transaction.as_range() for transaction in pending.values())
    return RangeContent(committed, aborted, markers, behind, tuple(ended), open_ranges)


def _count(batch: RawBatch, start: int) -> int:
    """Records from ``start`` on: a group may stand in the middle of a batch."""
    if batch.header.base_offset >= start:
        return batch.header.record_count
    return len(batch.records(OffsetRange(start, batch.header.next_offset)))
