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
    events = sorted(_events(traced, seen, lanes), key=lambda event: event.at)
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
        tuple(knowledge(moment, traced) for moment in known),
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
            keys += [(role, exchange.broker) for exchange in (*exchanges, *fetches) if _role(exchange) == role]
            # A transaction after the first may be seen before anything is asked of its coordinator.
            keys += [("coordinator", None)] if len(keys) == 1 else []
        keys += [("reader", client_id) for client_id in self.seen]
        self._keys = list(dict.fromkeys(keys))

    def of(self, exchange: Exchange) -> int:
        """The lane of the broker that was asked."""
        return self._keys.index((_role(exchange), exchange.broker))

    def of_coordinator(self) -> int:
        return max(index for index, (role, _) in enumerate(self._keys) if role == "coordinator")

    def reader(self, client_id: str) -> int:
        return self._keys.index(("reader", client_id))

    def drawn(self) -> Iterator[Lane]:
        for role, who in self._keys:
            if role == "producer":
                yield Lane(self.traced.transactional_id, f"producer{_software(self.traced.exchanges)}")
            elif role == "reader":
                fetches = [fetch for fetch in _shown(self.seen) if fetch.client_id == who]
                yield Lane(str(who) or "no client id", f"read_committed{_software(fetches)}")
            else:
                yield Lane("broker not known" if who is None else f"broker {who}", self._subtitle(role, who))

    def _subtitle(self, role: str, broker: str | int | None) -> str:
        if role != "leader":
            return role
        asked = (
            exchange for exchange in self.traced.exchanges if exchange.api == "Produce" and exchange.broker == broker
        )
        names = sorted({partition.name for exchange in asked for partition in exchange.parts})
        return _leader_of(names)


def _leader_of(names: Sequence[str]) -> str:
    if not names:
        return "replica"
    return f"leader of {', '.join(names) if len(names) <= _PARTITIONS_NAMED else f'{len(names)} partitions'}"


def _role(exchange: Exchange) -> str:
    if exchange.api in ("Produce", "Fetch"):
        return "leader"
    return "group coordinator" if exchange.api == "TxnOffsetCommit" else "coordinator"


def _software(exchanges: Iterable[Exchange]) -> str:
    software = ", ".join(dict.fromkeys(exchange.software for exchange in exchanges if exchange.software))
    return f", {software}" if software else ""


def _shown(seen: dict[str, list[ReaderView]]) -> list[Exchange]:
    """The Fetches that are drawn: of each partition the last that was held back, and the first that was not."""
    fetches = (fetch for views in seen.values() for view in views for fetch in (view.held, view.moved))
    return list(dict.fromkeys(fetch for fetch in fetches if fetch is not None))


def _events(traced: Traced, seen: dict[str, list[ReaderView]], lanes: _Lanes) -> Iterator[_Event]:
    for exchange in (*traced.exchanges, *([traced.successor] if traced.successor else [])):
        broker = lanes.of(exchange)
        yield _Event(exchange.sent_at, lanes.producer, broker, request_label(exchange), Tone.REQUEST, exchange)
        if exchange.answered_at is not None:
            knows = exchange is traced.end and exchange.is_done
            tone = Tone.KNOWS if knows else Tone.ANSWER if exchange.is_done else Tone.WRONG
            yield _Event(exchange.answered_at, broker, lanes.producer, answer_label(exchange), tone, exchange)
    for fetch in _shown(seen):
        reader, broker = lanes.reader(fetch.client_id), lanes.of(fetch)
        yield _Event(fetch.sent_at, reader, broker, "Fetch", Tone.REQUEST, fetch)
        views = seen[fetch.client_id]
        tone = Tone.KNOWS if any(view.moved is fetch for view in views) else Tone.ANSWER
        yield _Event(fetch.answered_at or fetch.sent_at, broker, reader, fetched_label(fetch, views), tone, fetch)


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
    for broker in dict.fromkeys(partition.broker for partition in written):
        own = [partition for partition in written if partition.broker == broker]
        begun = min(partition.acknowledged_at for partition in own)
        first = next(
            index for index, event in enumerate(events) if event.at == begun and event.exchange.api == "Produce"
        )
        released = [_released_at(partition.name, seen) for partition in own]
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
