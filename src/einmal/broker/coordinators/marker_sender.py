"""Sends the outcome of each transaction to the leaders of its partitions, until every one has it.

One request is in flight to each broker, with the markers of all transactions that wait for it by then; brokers do not
wait for each other. A transient failure is retried, with growing pauses and at once when leaders have changed, as long
as the coordinator's partition is led here: a reader of committed data waits meanwhile, but never skips. A partition
without a leader is such a failure. Two things end it for a partition: its topic was deleted, or it has seen a later
epoch of the producer and so an end of this transaction. A coordinator that finds itself fenced stops. Knows brokers by
one interface, including this one.

Apache Kafka 4.3 and 4.4 drop the marker of a partition without a leader as if its topic were gone. If their only broker
is killed at that moment, a commit that it has acknowledged lacks that marker, and the transaction hangs for ever.

Each outcome has one sender at a time. Of two, the slower one could send its marker after the faster one's report has
let the next transaction begin, which before TV2 has the same epoch: half of it would be ended by its predecessor. An
earlier coordinator's marker is refused by its epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from einmal.broker.coordinators.marker_writer import Markers, PartitionErrors, TransactionEnd
from einmal.broker.resources.supervision import Supervisor
from einmal.event_log import EventLog
from einmal.metadata.records import NO_LEADER
from einmal.pauses import DoublingPauses
from einmal.transactions.markers import WriteMarkers
from einmal.types import BrokerId, ErrorCode, TopicPartition

log = EventLog(__name__)

_PAUSES_S: Final = DoublingPauses(0.01, 1.0)
_MARKERS_MAX: Final = 10_000
"""Markers of one request: more would block the broker's loop for too long."""


class MarkerTarget(Protocol):
    """A broker that leads partitions."""

    async def write_markers(self, asked: Sequence[Markers]) -> Sequence[PartitionErrors]:
        """The outcome of each marker; network_exception where that is not known."""


LeaderOf = Callable[[TopicPartition], BrokerId | None]
"""The leader of a partition, or ``NO_LEADER``; None: the partition was certainly deleted."""

_SETTLED: Final = (
    ErrorCode.none,
    # The partition has seen a later epoch of the producer, which begins only after this transaction's end.
    ErrorCode.invalid_producer_epoch,
)


class Coordinator(NamedTuple):
    """The sender of markers: a partition of the transaction log, under the leader epoch of this broker."""

    partition: int
    epoch: int


@dataclass(slots=True, eq=False)
class _Outcome:
    """The unfinished markers of one transaction."""

    coordinator: Coordinator
    transactional_id: str
    end: TransactionEnd
    written: Callable[[], Awaitable[object]]
    missing: dict[TopicPartition, BrokerId] = field(default_factory=dict)
    """Partitions without their marker, and the broker of the request; ``NO_LEADER``: they wait for the next try."""
    pauses: int = 0
    timer: asyncio.TimerHandle | None = None
    is_over: bool = False


class _Lane:
    """The markers that wait for one broker, and the task that sends them."""

    __slots__ = ("queue", "task")

    def __init__(self) -> None:
        self.queue: dict[_Outcome, dict[TopicPartition, None]] = {}
        self.task: asyncio.Task[None] | None = None

    def take(self) -> list[tuple[_Outcome, tuple[TopicPartition, ...]]]:
        """As much as one request may hold, the oldest first."""
        taken = []
        count = 0
        while self.queue and count < _MARKERS_MAX:
            outcome, partitions = next(iter(self.queue.items()))
            del self.queue[outcome]
            if partitions and not outcome.is_over:
                taken.append((outcome, tuple(partitions)))
                count += len(partitions)
        return taken


class MarkerSender:
    def __init__(self, leader_of: LeaderOf, target: Callable[[BrokerId], MarkerTarget]) -> None:
        self._leader_of = leader_of
        self._target = target
        self._supervisor = Supervisor()
        self._outcomes: dict[tuple[Coordinator, str], _Outcome] = {}
        self._lanes: dict[BrokerId, _Lane] = {}
        # A dict, not a set: tasks are cancelled in the order in which they began.
        self._reports: dict[asyncio.Task[None], None] = {}

    def send(self, action: WriteMarkers, coordinator: Coordinator, written: Callable[[], Awaitable[object]]) -> None:
        """Begin. ``written`` is called once, when each partition has its marker or needs none.

        A reloaded coordinator may ask for markers that are in flight already: the first call finishes them.
        """
        key = (coordinator, action.transactional_id)
        if key in self._outcomes:
            return
        end = TransactionEnd(
            producer=action.producer,
            committed=action.committed,
            coordinator_epoch=coordinator.epoch,
            transaction_version=action.transaction_version,
        )
        outcome = self._outcomes[key] = _Outcome(coordinator, action.transactional_id, end, written)
        self._route(outcome, action.partitions)

    def forget(self, coordinator: Coordinator) -> None:
        """Its leadership is over: its successor writes the remaining markers, and nothing more is reported here."""
        for outcome in list(self._outcomes.values()):
            if outcome.coordinator == coordinator:
                self._end(outcome)

    def leaders_changed(self) -> None:
        """Send at once to the current leaders, instead of former ones."""
        for outcome in list(self._outcomes.values()):
            moved = [
                topic_partition
                for topic_partition, asked in outcome.missing.items()
                if asked != self._leader_of(topic_partition)
            ]
            for topic_partition in moved:
                lane = self._lanes.get(outcome.missing[topic_partition])
                if lane is not None:
                    lane.queue.get(outcome, {}).pop(topic_partition, None)
            if moved:
                outcome.pauses = 0
                self._route(outcome, moved)

    def stop(self) -> None:
        for outcome in list(self._outcomes.values()):
            self._end(outcome)
        for lane in self._lanes.values():
            if lane.task is not None:
                lane.task.cancel()
        for report in list(self._reports):
            report.cancel()

    # --- sending -----------------------------------------------------------------------------------------------------

    def _route(self, outcome: _Outcome, partitions: Iterable[TopicPartition]) -> None:
        for topic_partition in partitions:
            leader = self._leader_of(topic_partition)
            if leader is None:
                outcome.missing.pop(topic_partition, None)
                continue
            outcome.missing[topic_partition] = leader
            if leader != NO_LEADER:
                self._enqueue(leader, outcome, topic_partition)
        self._go_on(outcome)

    def _enqueue(self, leader: BrokerId, outcome: _Outcome, topic_partition: TopicPartition) -> None:
        lane = self._lanes.get(leader)
        if lane is None:
            lane = self._lanes[leader] = _Lane()
        lane.queue.setdefault(outcome, {})[topic_partition] = None
        if lane.task is None:
            # Runs in the loop's next turn, with everything else that is decided in this one.
            lane.task = asyncio.get_running_loop().create_task(self._drain(leader, lane))

    async def _drain(self, broker_id: BrokerId, lane: _Lane) -> None:
        try:
            while taken := lane.take():
                for (outcome, _partitions), errors in zip(taken, await self._ask(broker_id, taken), strict=True):
                    self._answered(outcome, broker_id, errors)
        finally:
            lane.task = None

    async def _ask(
        self, broker_id: BrokerId, taken: list[tuple[_Outcome, tuple[TopicPartition, ...]]]
    ) -> Sequence[PartitionErrors]:
        try:
            return await self._target(broker_id).write_markers(
                [Markers(outcome.end, partitions) for outcome, partitions in taken]
            )
        except Exception as error:  # noqa: BLE001 - a marker that nobody sends again leaves its transaction open.
            self._supervisor.report(f"sending markers to broker {broker_id}", error)
            return [dict.fromkeys(partitions, ErrorCode.unknown_server_error) for _outcome, partitions in taken]

    def _answered(self, outcome: _Outcome, broker_id: BrokerId, errors: PartitionErrors) -> None:
        if outcome.is_over:
            return
        if ErrorCode.transaction_coordinator_fenced in errors.values():
            log.warning(
                "markers_left_to_successor",
                "another coordinator speaks for producer %(producer_id)d; its markers are left to it",
                producer_id=outcome.end.producer[0],
            )
            self._end(outcome)
            return
        for topic_partition, error in errors.items():
            if error in _SETTLED:
                # Whoever leads by now: a committed marker stays.
                outcome.missing.pop(topic_partition, None)
            elif outcome.missing.get(topic_partition) == broker_id:
                outcome.missing[topic_partition] = NO_LEADER
        self._go_on(outcome)

    def _go_on(self, outcome: _Outcome) -> None:
        if not outcome.missing:
            # Before the report: with it the next transaction may begin, and end.
            self._end(outcome)
            report = asyncio.get_running_loop().create_task(self._report(outcome))
            self._reports[report] = None
            report.add_done_callback(lambda done: self._reports.pop(done, None))
        elif outcome.timer is None and NO_LEADER in outcome.missing.values():
            log.debug(
                "markers_missing",
                "markers of producer %(producer_id)d are still missing: %(missing)s",
                producer_id=outcome.end.producer[0],
                missing=outcome.missing,
            )
            pause_s = _PAUSES_S.after(outcome.pauses)
            outcome.timer = asyncio.get_running_loop().call_later(pause_s, self._try_again, outcome)

    def _try_again(self, outcome: _Outcome) -> None:
        outcome.timer = None
        outcome.pauses += 1
        self._route(
            outcome, [topic_partition for topic_partition, asked in outcome.missing.items() if asked == NO_LEADER]
        )

    async def _report(self, outcome: _Outcome) -> None:
        await outcome.written()

    def _end(self, outcome: _Outcome) -> None:
        outcome.is_over = True
        del self._outcomes[outcome.coordinator, outcome.transactional_id]
        if outcome.timer is not None:
            outcome.timer.cancel()
            outcome.timer = None
