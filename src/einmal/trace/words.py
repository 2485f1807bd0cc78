"""The sentences beside a diagram."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from einmal.trace.diagram import Knowledge
from einmal.trace.moments import LearningMoment, ReaderView, Side
from einmal.trace.transactions import LearntOutcome, Traced

MARKERS_UNSEEN: Final = (
    "WriteTxnMarkers, by which the coordinator has the markers written, passes between brokers and not through the "
    "proxy: no arrow shows it."
)
ADDED_BY_LEADERS: Final = (
    "A partition without AddPartitionsToTxn is added by its leader, which asks the coordinator (transaction.version "
    "2); this request passes between brokers, too."
)
NO_READER: Final = "No read_committed reader fetched its partitions through the proxy."


def verdict(traced: Traced, known: Sequence[LearningMoment]) -> str:
    """One sentence: how it ended, who learnt it when."""
    name = traced.transactional_id
    readers = [moment.latest for moment in known if moment.side is Side.READER]
    seen = [reader for reader in readers if reader is not None]
    match traced.outcome:
        case LearntOutcome.NOT_ENDED if traced.successor is not None:
            return f"Transaction of {name}: not ended by its producer, but by the next one with this id."
        case LearntOutcome.NOT_ENDED if traced.is_refused:
            return f"Transaction of {name}: not begun. Each of its writes was refused."
        case LearntOutcome.NOT_ENDED if seen:
            return f"Transaction of {name}: ended without an EndTxn through the proxy, as readers show."
        case LearntOutcome.NOT_ENDED:
            return f"Transaction of {name}: open. Nobody has asked to end it."
        case LearntOutcome.UNKNOWN:
            return f"Transaction of {name}: its producer does not know the outcome; no answer to EndTxn has it."
    (producer,) = (moment for moment in known if moment.side is Side.PRODUCER)
    text = f"Transaction of {name}: {traced.outcome.value}. Its producer knew after {_after(producer.latest, traced)}"
    if not seen:
        return f"{text}; no reader was seen to pass it."
    return f"{text}, the first reader after {_after(min(seen), traced)}."


def knowledge(moment: LearningMoment, traced: Traced) -> Knowledge:
    earliest, latest = (
        None if at is None else round((at - traced.begun_at) * 1000, 1) for at in (moment.earliest, moment.latest)
    )
    return Knowledge(
        moment.side.value, moment.who, moment.what, earliest, latest, _words(moment.side, earliest, latest)
    )


def _words(side: Side, earliest: float | None, latest: float | None) -> str:
    if latest is None:
        return "not seen" if earliest is None else f"not before {earliest:,.1f} ms; not seen"
    match side:
        case Side.PRODUCER:
            return f"at {latest:,.1f} ms, with the answer to EndTxn"
        case Side.COORDINATOR:
            return f"between {earliest or 0:,.1f} and {latest:,.1f} ms, from EndTxn to its answer"
    return f"between {earliest or 0:,.1f} and {latest:,.1f} ms, by the last stable offset in its Fetch"


def remarks(traced: Traced, views: dict[str, list[ReaderView]]) -> Iterator[str]:
    """Name what the proxy cannot see, and what it saw instead."""
    if traced.outcome is not LearntOutcome.NOT_ENDED or traced.successor is not None:
        yield MARKERS_UNSEEN
    if set(traced.written()) - _added(traced):
        yield ADDED_BY_LEADERS
    end = traced.end
    moved = [view.latest for seen in views.values() for view in seen if view.latest is not None]
    if end is not None and end.is_done and end.answered_at is not None and moved:
        between = (max(moved) - end.answered_at) * 1000
        order = "after" if between >= 0 else "before"
        yield (
            f"Readers saw the last stable offset of every partition that they fetched move {abs(between):,.1f} ms "
            f"{order} the answer to EndTxn; a marker is older than the Fetch that shows it."
        )
    if not views:
        yield NO_READER
    unread = sorted(set(traced.written()) - {view.written.name for seen in views.values() for view in seen})
    if views and unread:
        yield f"No read_committed reader showed the last stable offset of {', '.join(unread)}."
    if any(exchange.api == "TxnOffsetCommit" for exchange in traced.exchanges):
        yield "Offsets of a group become valid with the same decision; no Fetch shows when."


def _added(traced: Traced) -> set[str]:
    asked = (exchange for exchange in traced.exchanges if exchange.api == "AddPartitionsToTxn")
    return {partition.name for exchange in asked for partition in exchange.parts}


def _after(at: float | None, traced: Traced) -> str:
    return f"{((at or traced.begun_at) - traced.begun_at) * 1000:,.1f} ms"
