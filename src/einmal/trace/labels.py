"""The words on the arrows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from einmal.trace.exchanges import Exchange, ExchangePart
from einmal.trace.moments import ReaderView

_NAMED: Final = 2


def request_label(exchange: Exchange) -> str:
    match exchange.api:
        case "Produce":
            records = sum(partition.records for partition in exchange.parts)
            return f"Produce {_names(exchange.parts)}, {records:,} record{'' if records == 1 else 's'}"
        case "AddPartitionsToTxn":
            return f"AddPartitionsToTxn {_names(exchange.parts)}"
        case "AddOffsetsToTxn":
            return f"AddOffsetsToTxn, group {exchange.group}"
        case "TxnOffsetCommit":
            return f"TxnOffsetCommit, group {exchange.group}: {_names(exchange.parts)}"
        case "EndTxn":
            return f"EndTxn, {'commit' if exchange.committed else 'abort'}"
    return exchange.api


def answer_label(exchange: Exchange) -> str:
    took = f"{((exchange.answered_at or exchange.sent_at) - exchange.sent_at) * 1000:,.1f} ms"
    return f"{_meaning(exchange)} · {took}"


def _meaning(exchange: Exchange) -> str:
    errors = [
        *([exchange.error] if exchange.error else []),
        *(partition.error for partition in exchange.parts if partition.error),
    ]
    if errors:
        return ", ".join(dict.fromkeys(errors))
    match exchange.api:
        case "InitProducerId":
            return f"producer {exchange.producer_id}, epoch {exchange.producer_epoch}"
        case "Produce":
            return _offsets(exchange.parts)
        case "EndTxn":
            return "committed" if exchange.committed else "aborted"
    return "done"


def _offsets(parts: Sequence[ExchangePart]) -> str:
    known = [partition for partition in parts if partition.first_offset is not None]
    if len(known) > _NAMED:
        return f"written to {len(known)} partitions"
    written = (
        f"{partition.name} at {partition.first_offset:,}"
        if partition.first_offset == partition.last_offset
        else f"{partition.name} at {partition.first_offset:,} to {partition.last_offset:,}"
        for partition in known
    )
    return ", ".join(written)


def fetched_label(exchange: Exchange, seen: Sequence[ReaderView]) -> str:
    """Describe how far a Fetch shows the transaction's partitions to be readable."""
    moved = [view for view in seen if view.moved is exchange]
    held = [view for view in seen if view.held is exchange and view.moved is not exchange]
    readable = [f"{view.written.name}{_marker(view)}" for view in moved]
    stopped = [f"{view.written.name} only below {_stable(exchange, view):,}" for view in held]
    return f"readable: {', '.join(sorted([*readable, *stopped]))}"


def _marker(view: ReaderView) -> str:
    if view.marker is None:
        return ""
    return f" ({'commit' if view.marker.committed else 'abort'} marker at {view.marker.offset:,})"


def _stable(exchange: Exchange, view: ReaderView) -> int:
    (offset,) = (partition.last_stable_offset for partition in exchange.parts if partition.name == view.written.name)
    return offset or 0


def _names(parts: Sequence[ExchangePart]) -> str:
    names = sorted({partition.name for partition in parts})
    return ", ".join(names) if len(names) <= _NAMED else f"{len(names)} partitions"
