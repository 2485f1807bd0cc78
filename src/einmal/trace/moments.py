"""When each side knows the outcome of a transaction: what the frames show, and no more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from einmal.trace.exchanges import Exchange, SeenMarker
from einmal.trace.transactions import LearntOutcome, Traced, WrittenPart


class Side(StrEnum):
    COORDINATOR = "coordinator"
    PRODUCER = "producer"
    READER = "reader"


@dataclass(frozen=True, slots=True)
class LearningMoment:
    """Somebody knows. Seconds since the epoch: not before ``earliest``, and not after ``latest``; None: not seen.

    ``who``: of a reader its client id.
    """

    side: Side
    who: str
    what: str
    earliest: float | None
    latest: float | None


@dataclass(frozen=True, slots=True)
class ReaderView:
    """The answers about one partition that one reader got.

    ``held``: the last with a last stable offset (LSO) at or below the transaction's records, after their
    acknowledgement; ``moved``: the first with an LSO behind them, and ``marker`` the transaction's marker in it.
    """

    written: WrittenPart
    held: Exchange | None
    moved: Exchange | None
    marker: SeenMarker | None

    @property
    def latest(self) -> float | None:
        return None if self.moved is None else self.moved.answered_at


def moments(traced: Traced, views: dict[str, list[ReaderView]]) -> list[LearningMoment]:
    """``views``: by the reader's client id."""
    end = traced.end
    done = end if end is not None and end.is_done else None
    asked = traced.asked_at
    decided = "takes the decision"
    knows = "knows the outcome" if done is None else f"knows that it is {traced.outcome.value}"
    at = None if done is None else done.answered_at
    learnt = [
        LearningMoment(Side.COORDINATOR, "coordinator", decided, asked, at),
        LearningMoment(Side.PRODUCER, traced.transactional_id, knows, at, at),
    ]
    what = "reads past it" if traced.outcome is LearntOutcome.ABORTED else "may read the records"
    for reader, seen in views.items():
        learnt.append(LearningMoment(Side.READER, reader, what, *_window(seen, asked)))
    return learnt


def _window(seen: Sequence[ReaderView], asked: float | None) -> tuple[float | None, float | None]:
    """When all partitions that the reader fetches had their last stable offset behind the transaction."""
    latest = [view.latest for view in seen]
    known = [at for at in latest if at is not None]
    # The broker may have made the answer long before it was seen: held back is only what was asked for later.
    held = [view.held.sent_at for view in seen if view.held is not None]
    earliest = max([*held, *([] if asked is None else [asked])], default=None)
    return earliest, max(known) if known and len(known) == len(latest) else None


def views(traced: Traced, exchanges: Sequence[Exchange]) -> dict[str, list[ReaderView]]:
    """Find the answers about the transaction's partitions of each committed reader, by its client id."""
    fetches = [exchange for exchange in exchanges if exchange.api == "Fetch" and exchange.answered_at is not None]
    fetches.sort(key=lambda fetch: fetch.answered_at or 0)
    written = traced.written()
    views_by_reader: dict[str, list[ReaderView]] = {}
    for reader in dict.fromkeys(fetch.client_id for fetch in fetches):
        own = [fetch for fetch in fetches if fetch.client_id == reader]
        seen = [_seen(partition, traced, own) for partition in written.values()]
        seen = [view for view in seen if view.held is not None or view.moved is not None]
        if seen:
            views_by_reader[reader] = seen
    return views_by_reader


def _seen(written: WrittenPart, traced: Traced, fetches: Sequence[Exchange]) -> ReaderView:
    held = moved = marker = None
    for fetch, lso in _stable_offsets(written.name, fetches):
        since = written.acknowledged_at if lso <= written.last_offset else traced.asked_at or written.acknowledged_at
        if (fetch.answered_at or 0) < max(since, written.acknowledged_at):
            continue
        if lso > written.last_offset:
            moved = fetch
            break
        held = fetch
    if moved is not None:
        (marks,) = (partition.markers for partition in moved.parts if partition.name == written.name)
        own = (mark for mark in marks if mark.producer_id == traced.producer_id)
        marker = next((mark for mark in own if mark.offset > written.last_offset), None)
    return ReaderView(written, held, moved, marker)


def _stable_offsets(name: str, fetches: Sequence[Exchange]) -> Iterator[tuple[Exchange, int]]:
    for fetch in fetches:
        for partition in fetch.parts:
            if partition.name == name and partition.last_stable_offset is not None:
                yield fetch, partition.last_stable_offset
