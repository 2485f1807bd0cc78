"""The words on the arrows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from einmal.trace.exchanges import Exchange, ExchangePart
from einmal.trace.moments import ReaderView

_NAMED: Final = 2


def request_label(each: Exchange) -> str:
    match each.api:
        case "Produce":
            records = sum(part.records for part in each.parts)
            return f"Produce {_names(each.parts)}, {records:,} record{'' if records == 1 else 's'}"
        case "AddPartitionsToTxn":
            return f"AddPartitionsToTxn {_names(each.parts)}"
        case "AddOffsetsToTxn":
            return f"AddOffsetsToTxn, group {each.group}"
        case "TxnOffsetCommit":
            return f"TxnOffsetCommit, group {each.group}: {_names(each.parts)}"
        case "EndTxn":
            return f"EndTxn, {'commit' if each.committed else 'abort'}"
    return each.api


def answer_label(each: Exchange) -> str:
    took = f"{((each.answered_at or each.sent_at) - each.sent_at) * 1000:,.1f} ms"
    return f"{_meaning(each)} · {took}"


def _meaning(each: Exchange) -> str:
    errors = [*([each.error] if each.error else []), *(part.error for part in each.parts if part.error)]
    if errors:
        return ", ".join(dict.fromkeys(errors))
    match each.api:
        case "InitProducerId":
            return f"producer {each.producer_id}, epoch {each.producer_epoch}"
        case "Produce":
            return _offsets(each.parts)
        case "EndTxn":
            return "committed" if each.committed else "aborted"
    return "done"


def _offsets(parts: Sequence[ExchangePart]) -> str:
    known = [each for each in parts if each.first_offset is not None]
    if len(known) > _NAMED:
        return f"written to {len(known)} partitions"
    written = (
        f"{each.name} at {each.first_offset:,}"
        if each.first_offset == each.last_offset
        else f"{each.name} at {each.first_offset:,} to {each.last_offset:,}"
        for each in known
    )
    return ", ".join(written)


def fetched_label(each: Exchange, seen: Sequence[ReaderView]) -> str:
    """Describe how far a Fetch shows the transaction's partitions to be readable."""
    moved = [view for view in seen if view.moved is each]
    held = [view for view in seen if view.held is each and view.moved is not each]
    readable = [f"{view.written.name}{_marker(view)}" for view in moved]
    stopped = [f"{view.written.name} only below {_stable(each, view):,}" for view in held]
    return f"readable: {', '.join(sorted([*readable, *stopped]))}"


def _marker(view: ReaderView) -> str:
    if view.marker is None:
        return ""
    return f" ({'commit' if view.marker.committed else 'abort'} marker at {view.marker.offset:,})"


def _stable(each: Exchange, view: ReaderView) -> int:
    (offset,) = (part.last_stable_offset for part in each.parts if part.name == view.written.name)
    return offset or 0


def _names(parts: Sequence[ExchangePart]) -> str:
    names = sorted({each.name for each in parts})
    return ", ".join(names) if len(names) <= _NAMED else f"{len(names)} partitions"
