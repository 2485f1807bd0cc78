"""The result of a replicated state machine's method, and the order of its effects.

A shard is one partition of a coordinator (``__transaction_state``, ``__consumer_offsets``, ``__cluster_metadata``).
Its runtime decides, appends the records and replays them, without waiting in between. It then parks the answer and the
actions at the end offset and releases them, in order, when the high watermark has passed it. So an action (such as a
marker) cannot run before the record that decided it is committed: the type enforces the order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from einmal.types import Instant, ProducerIdAndEpoch

R = TypeVar("R", covariant=True)
RecordT = TypeVar("RecordT", contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[R]):
    """Append these records; once they are committed, send this answer and do these actions.

    Every answer waits, also one without records: it was decided on state that may not be committed yet.
    ``producer``: append the records as one transactional batch of this producer (offsets in a transaction).
    """

    records: tuple[Any, ...] = ()
    response: R
    actions: tuple[Any, ...] = ()
    producer: ProducerIdAndEpoch | None = None


class Shard(Protocol[RecordT]):
    """The shard runtime's interface of a machine. The machine's other methods have the API's names."""

    def replay(self, record: RecordT) -> None:
        """Apply one record: the only mutator of hard state, at run time and while loading alike."""

    def replay_marker(self, producer: ProducerIdAndEpoch, committed: bool) -> None:
        """Apply an end-of-transaction marker that was appended to this shard's partition."""

    def loaded(self, now: Instant) -> tuple[Decision[None], ...]:
        """Once, after the log was replayed: start ages and timers, resume unfinished work."""

    def next_deadline(self) -> int | None:
        """``monotonic_ms`` of the next ``tick``; None: nothing is due."""

    def tick(self, now: Instant) -> tuple[Decision[None], ...]:
        """Decisions by time alone (timeouts, expiry)."""
