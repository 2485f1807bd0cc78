"""``story``: the diagram of one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from einmal.trace.diagram import Arrow, Bar, Diagram, Lane, Tone
from einmal.trace.exchanges import Exchange
from einmal.trace.labels import answer_label, fetched_label, request_label
from einmal.trace.moments import ReaderView, moments, views
from einmal.trace.transactions import LearntOutcome, Traced
from einmal.trace.words import knowledge, remarks, verdict

_PARTITIONS_NAMED: Final = 3


def story(traced: Traced, exchanges: Sequence[Exchange]) -> Diagram:
    """``exchanges``: all that were seen; the readers' are found among them."""
    seen = views(traced, exchanges)
    known = moments(traced, seen)
    lanes = _Lanes(traced, seen)
    events = sorted(_events(traced, seen, lanes), key=lambda each: each.at)
    rows = [Arrow(_ms(event.at, traced), event.source, event.target, event.label, event.tone) for event in events]
    rows += [Arrow(None, lanes.producer, target, label, Tone.WRONG) for target, label in _missing(traced, lanes)]
    return Diagram(
        traced.transactional_id,
        traced.producer_id,
        traced.producer_epoch,
        traced.outcome.value,
        traced.begun_at,
        verdict(traced, known),
        tuple(lanes.drawn()),
        tuple(rows),
        tuple(_bars(traced, seen, events, len(rows), lanes)),
        tuple(knowledge(each, traced) for each in known),
        tuple(remarks(traced, seen)),
    )


def _ms(at: float, traced: Traced) -> float:
    return round((at - traced.begun_at) * 1000, 1)


@dataclass(frozen=True, slots=True)
class _Event:
    at: float
    source: int
    target: int
    label: str
    tone: Tone
    exchange: Exchange


@dataclass(slots=True)
class _Lanes:
    """Producer, coordinators, leaders, readers: from left to right."""

    traced: Traced
    seen: dict[str, list[ReaderView]]
    producer: int = 0
    _keys: list[tuple[str, str | int | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        exchanges = [*self.traced.exchanges, *([self.traced.successor] if self.traced.successor else [])]
        fetches = _shown(self.seen)
        keys: list[tuple[str, str | int | None]] = [("producer", None)]
        for role in ("coordinator", "group coordinator", "leader"):
            keys += [(role, each.broker) for each in (*exchanges, *fetches) if _role(each) == role]
            # A transaction after the first may be seen before anything is asked of its coordinator.
            keys += [("coordinator", None)] if len(keys) == 1 else []
        keys += [("reader", each) for each in self.seen]
        self._keys = list(dict.fromkeys(keys))

    def of(self, each: Exchange) -> int:
        """The lane of the broker that was asked."""
        return self._keys.index((_role(each), each.broker))

    def of_coordinator(self) -> int:
        return max(index for index, (role, _) in enumerate(self._keys) if role == "coordinator")

    def reader(self, client_id: str) -> int:
        return self._keys.index(("reader", client_id))

    def drawn(self) -> Iterator[Lane]:
        for role, who in self._keys:
            if role == "producer":
                yield Lane(self.traced.transactional_id, f"producer{_software(self.traced.exchanges)}")
            elif role == "reader":
                fetches = [each for each in _shown(self.seen) if each.client_id == who]
                yield Lane(str(who) or "no client id", f"read_committed{_software(fetches)}")
            else:
                yield Lane("broker not known" if who is None else f"broker {who}", self._subtitle(role, who))

    def _subtitle(self, role: str, broker: str | int | None) -> str:
        if role != "leader":
            return role
        asked = (
            exchange for exchange in self.traced.exchanges if exchange.api == "Produce" and exchange.broker == broker
        )
        names = sorted({part.name for each in asked for part in each.parts})
        return _leader_of(names)


def _leader_of(names: Sequence[str]) -> str:
    if not names:
        return "replica"
    return f"leader of {', '.join(names) if len(names) <= _PARTITIONS_NAMED else f'{len(names)} partitions'}"


def _role(each: Exchange) -> str:
    if each.api in ("Produce", "Fetch"):
        return "leader"
    return "group coordinator" if each.api == "TxnOffsetCommit" else "coordinator"


def _software(exchanges: Iterable[Exchange]) -> str:
    found = ", ".join(dict.fromkeys(exchange.software for exchange in exchanges if exchange.software))
    return f", {found}" if found else ""


def _shown(seen: dict[str, list[ReaderView]]) -> list[Exchange]:
    """The Fetches that are drawn: of each partition the last that was held back, and the first that was not."""
    found = (each for views in seen.values() for view in views for each in (view.held, view.moved))
    return list(dict.fromkeys(each for each in found if each is not None))


def _events(traced: Traced, seen: dict[str, list[ReaderView]], lanes: _Lanes) -> Iterator[_Event]:
    for each in (*traced.exchanges, *([traced.successor] if traced.successor else [])):
        broker = lanes.of(each)
        yield _Event(each.sent_at, lanes.producer, broker, request_label(each), Tone.REQUEST, each)
        if each.answered_at is not None:
            knows = each is traced.end and each.is_done
            tone = Tone.KNOWS if knows else Tone.ANSWER if each.is_done else Tone.WRONG
            yield _Event(each.answered_at, broker, lanes.producer, answer_label(each), tone, each)
    for each in _shown(seen):
        reader, broker = lanes.reader(each.client_id), lanes.of(each)
        yield _Event(each.sent_at, reader, broker, "Fetch", Tone.REQUEST, each)
        views = seen[each.client_id]
        tone = Tone.KNOWS if any(view.moved is each for view in views) else Tone.ANSWER
        yield _Event(each.answered_at or each.sent_at, broker, reader, fetched_label(each, views), tone, each)


def _missing(traced: Traced, lanes: _Lanes) -> Iterator[tuple[int, str]]:
    """Find requests and answers that the proxy did not see."""
    for exchange in traced.exchanges:
        if exchange.answered_at is None:
            yield lanes.of(exchange), f"no answer to {exchange.api}"
    if traced.outcome is LearntOutcome.NOT_ENDED and traced.successor is None:
        yield lanes.of_coordinator(), "no EndTxn"


def _bars(
    traced: Traced, seen: dict[str, list[ReaderView]], events: Sequence[_Event], rows: int, lanes: _Lanes
) -> Iterator[Bar]:
    """A bar for each leader: from its first acknowledgement until a reader sees all its partitions readable."""
    written = traced.written().values()
    for broker in dict.fromkeys(each.broker for each in written):
        own = [each for each in written if each.broker == broker]
        begun = min(each.acknowledged_at for each in own)
        first = next(
            index for index, event in enumerate(events) if event.at == begun and event.exchange.api == "Produce"
        )
        released = [_released_at(each.name, seen) for each in own]
        ends = [at for at in released if at is not None]
        is_released = len(ends) == len(released)
        last = rows - 1
        if is_released:
            last = max(index for index, event in enumerate(events) if event.at == max(ends))
        yield Bar(lanes.of(events[first].exchange), first, last, is_released)


def _released_at(name: str, seen: dict[str, list[ReaderView]]) -> float | None:
    """When the first reader saw the partition's last stable offset behind the transaction."""
    latest = [view.latest for views in seen.values() for view in views if view.written.name == name]
    return min((at for at in latest if at is not None), default=None)
