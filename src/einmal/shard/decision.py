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

RecordT_co = TypeVar("RecordT_co", covariant=True)
ActionT_co = TypeVar("ActionT_co", covariant=True)
R_co = TypeVar("R_co", covariant=True)
RecordT = TypeVar("RecordT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[RecordT_co, ActionT_co, R_co]):
    """Append these records; once they are committed, send this answer and do these actions.

    Every answer waits, also one without records: it was decided on state that may not be committed yet.
    ``producer``: append the records as one transactional batch of this producer (offsets in a transaction).
    ``is_atomic``: the records are one batch, so that all of them are in the log or none. Others may be separated: each
    is right without the rest (tombstones of what has expired), and they are as many batches as their bytes need.
    ``is_pure``: deciding has changed nothing that the log's refusal of the records would have to undo.
    """

    records: tuple[RecordT_co, ...] = ()
    response: R_co
    actions: tuple[ActionT_co, ...] = ()
    producer: ProducerIdAndEpoch | None = None
    is_atomic: bool = True
    is_pure: bool = False


class Shard(Protocol[RecordT, ActionT_co]):
    """The shard runtime's interface of a machine. The machine's other methods have the API's names."""

    def replay(self, record: RecordT) -> None:
        """Apply one record: the only mutator of hard state, at run time and while loading alike."""

    def replay_marker(self, producer: ProducerIdAndEpoch, committed: bool) -> None:
        """Apply an end-of-transaction marker that was appended to this shard's partition."""

    def loaded(self, now: Instant) -> tuple[Decision[RecordT, ActionT_co, None], ...]:
        """Once, after the log was replayed: start ages and timers, resume unfinished work."""

    def next_deadline(self) -> int | None:
        """``monotonic_ms`` of the next ``tick``; None: nothing is due."""

    def tick(self, now: Instant) -> tuple[Decision[RecordT, ActionT_co, None], ...]:
        """Decisions by time alone (timeouts, expiry)."""


S = TypeVar("S", bound=Shard[Any, Any])
"""A machine. A bound cannot name the machine's own types of records and actions."""
