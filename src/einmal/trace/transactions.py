"""Exchanges divided into transactions, by transactional id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from einmal.trace.exchanges import WRITES, Exchange

_FENCED: Final = frozenset(("PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"))
_REFUSALS: Final = _FENCED | {
    "INVALID_PRODUCER_ID_MAPPING",
    "INVALID_TXN_STATE",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "OPERATION_NOT_ATTEMPTED",
    "CONCURRENT_TRANSACTIONS",
    "NOT_COORDINATOR",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "NOT_LEADER_OR_FOLLOWER",
    "UNKNOWN_TOPIC_OR_PARTITION",
    "UNKNOWN_TOPIC_ID",
}
"""After others, such as NOT_ENOUGH_REPLICAS_AFTER_APPEND, the log may have the records."""


class LearntOutcome(StrEnum):
    """The outcome as the producer learnt it by the answer to EndTxn."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """EndTxn was asked, and no answer without an error was seen."""
    NOT_ENDED = "not_ended"
    """No EndTxn was seen: it is open, or its coordinator has aborted it."""


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """The acknowledged records of a transaction in one partition, and the broker that acknowledged them."""

    name: str
    broker: int | None
    first_offset: int
    last_offset: int
    records: int
    acknowledged_at: float


@dataclass(frozen=True, slots=True)
class Traced:
    """A transaction: its requests in order, with the InitProducerId before the first of an id.

    ``successor``: the InitProducerId of the same id that ended it, where no EndTxn did.
    """

    transactional_id: str
    exchanges: tuple[Exchange, ...]
    successor: Exchange | None = None

    @property
    def end(self) -> Exchange | None:
        """The EndTxn that had an answer without an error; else the last that was asked."""
        asked = _ends(self.exchanges)
        done = [exchange for exchange in asked if exchange.is_done]
        return done[0] if done else asked[-1] if asked else None

    @property
    def outcome(self) -> LearntOutcome:
        if self.end is None:
            return LearntOutcome.NOT_ENDED
        if not self.end.is_done:
            return LearntOutcome.UNKNOWN
        return LearntOutcome.COMMITTED if self.end.committed else LearntOutcome.ABORTED

    @property
    def asked_at(self) -> float | None:
        """When the outcome was first asked for, if EndTxn decided it: no marker is older.

        A coordinator that has aborted by itself refuses EndTxn, or its answer is not seen.
        """
        if self.end is None or not self.end.is_done:
            return None
        return min(exchange.sent_at for exchange in _ends(self.exchanges))

    @property
    def is_refused(self) -> bool:
        """Whether it has not begun: each write was answered, and none was taken, for any partition."""
        writes = [exchange for exchange in self.exchanges if exchange.api in WRITES]
        return bool(writes) and all(_is_refused(write) for write in writes)

    @property
    def producer_id(self) -> int | None:
        return next((exchange.producer_id for exchange in self._identified()), None)

    @property
    def producer_epoch(self) -> int | None:
        return next((exchange.producer_epoch for exchange in self._identified()), None)

    def _identified(self) -> Iterator[Exchange]:
        """Those that have the identity of the producer, the latest one first."""
        for exchange in reversed(self.exchanges):
            if exchange.producer_id is not None and not _is_zombies(exchange, self.exchanges):
                yield exchange

    @property
    def topics(self) -> frozenset[str]:
        """Those that it wrote to."""
        asked = (exchange for exchange in self.exchanges if exchange.api in ("AddPartitionsToTxn", "Produce"))
        return frozenset(partition.topic for exchange in asked for partition in exchange.parts)

    @property
    def begun_at(self) -> float:
        return self.exchanges[0].sent_at

    def written(self) -> dict[str, WrittenPart]:
        """By the partition's name."""
        written: dict[str, WrittenPart] = {}
        for exchange in self.exchanges:
            if exchange.api != "Produce" or exchange.answered_at is None:
                continue
            for partition in exchange.parts:
                if partition.first_offset is None or partition.last_offset is None:
                    continue
                new = WrittenPart(
                    partition.name,
                    exchange.broker,
                    partition.first_offset,
                    partition.last_offset,
                    partition.records,
                    exchange.answered_at,
                )
                written[partition.name] = _joined(written[partition.name], new) if partition.name in written else new
        return written


def _joined(one: WrittenPart, other: WrittenPart) -> WrittenPart:
    return WrittenPart(
        one.name,
        other.broker,
        min(one.first_offset, other.first_offset),
        max(one.last_offset, other.last_offset),
        one.records + other.records,
        min(one.acknowledged_at, other.acknowledged_at),
    )


def transactions(exchanges: Sequence[Exchange]) -> list[Traced]:
    """In the order in which they ended; those that nobody was seen to end come last.

    ``exchanges``: in the order of their requests.
    """
    finished: list[Traced] = []
    current: dict[str, list[Exchange]] = {}
    for exchange in exchanges:
        name = exchange.transactional_id
        if name is None:
            continue
        known = current.setdefault(name, [])
        if _begins(known, exchange) and _is_transaction(known):
            is_replaced = exchange.api == "InitProducerId" and not any(other.api == "EndTxn" for other in known)
            finished.append(Traced(name, tuple(known), exchange if is_replaced else None))
            known.clear()
        known.append(exchange)
    rest = [Traced(name, tuple(known)) for name, known in current.items() if _is_transaction(known)]
    return sorted(
        [*finished, *rest], key=lambda traced: (_seems_open(traced), (traced.end or traced.exchanges[-1]).sent_at)
    )


def _seems_open(traced: Traced) -> bool:
    return traced.outcome is LearntOutcome.NOT_ENDED and traced.successor is None and not traced.is_refused


def _ends(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """The EndTxns, without those of zombies."""
    return [exchange for exchange in exchanges if exchange.api == "EndTxn" and not _is_zombies(exchange, exchanges)]


def _errors(exchange: Exchange) -> list[str | None]:
    """Return the error of the whole exchange, or those of its partitions."""
    return [exchange.error] if exchange.error or not exchange.parts else [part.error for part in exchange.parts]


def _is_refused(write: Exchange) -> bool:
    return write.answered_at is not None and all(error in _REFUSALS for error in _errors(write))


def _is_zombies(exchange: Exchange, others: Sequence[Exchange]) -> bool:
    """Whether an earlier instance of the transactional id has sent it, and was refused as such: that ends nothing."""
    if exchange.producer_epoch is None or _FENCED.isdisjoint(_errors(exchange)):
        return False
    return any(
        other.is_done
        and other.producer_epoch is not None
        and (other.producer_id != exchange.producer_id or other.producer_epoch > exchange.producer_epoch)
        for other in others
    )


def _is_transaction(known: Sequence[Exchange]) -> bool:
    return any(exchange.api in WRITES or exchange.api == "EndTxn" for exchange in known)


def _begins(known: Sequence[Exchange], exchange: Exchange) -> bool:
    """Whether a request belongs to the next transaction. A repeated EndTxn does not, nor what was sent beside one."""
    if exchange.api == "InitProducerId":
        return True
    if _is_zombies(exchange, known):
        return False
    ends = _ends(known)
    if exchange.api == "EndTxn" or not ends:
        return False
    return any(other.answered_at is not None and other.answered_at <= exchange.sent_at for other in ends)
