"""Runs a coordinator's shard for one leadership of its partition: one order for requests, records, answers and time.

Pipelined: a request is decided, its records are appended and replayed, without waiting for the one before. Its answer
and its actions are parked behind the end of the log as it is then, and released in order once the high watermark has
passed it: also an answer without records, which was decided on state that may not be committed yet. A decision that
is appended is never reverted. A request that waits too long gets COORDINATOR_NOT_AVAILABLE, and the state stays.

While too few replicas are in sync nothing is decided that would have to be written: requests are refused before they
are decided, and overdue timers wait. Records that cannot be appended for another reason are not replayed either. But
deciding may have moved a shard's timers, so after a refused append the shard is dropped and loaded from the log again
(not after a pure decision, as of offsets that a client commits).

Some decisions come before all others (``decide_first``): until they are in the log every request is refused, except
those that they are nothing to.

A runtime serves under one leader epoch. When that is over, all waiting requests get NOT_COORDINATOR: their records may
or may not survive, and a retry at the next coordinator finds out. Knows no API and no shard in particular. Everything
happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

from einmal.broker.coordinators.decided_batches import Codec, decided_batches
from einmal.broker.replicas.partition import Partition
from einmal.broker.resources.supervision import Supervisor
from einmal.log.errors import LogCorruption
from einmal.log.producer_state import AppendOrigin, VerificationGuard
from einmal.seams import Clock
from einmal.shard.decision import Decision, RecordT, S
from einmal.types import ErrorCode, Instant, Offset, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TransactionVersion
from einmal.wire.control_batch import ABORT, COMMIT, control_type, decode_marker
from einmal.wire.errors import WireError
from einmal.wire.record_batch import BatchHeader, decode_records, iter_headers, validate

R = TypeVar("R")
ActionT = TypeVar("ActionT")

_READ_BYTES: Final = 128 * 1024
"""Replayed in one turn: others on the same loop must not wait for the load of a large log."""
_RELOAD_SECONDS: Final = 1.0
_REPLICAS_AWAITED_SECONDS: Final = 0.5
"""Between two checks whether overdue timers may be served by now."""
_INSIST_SECONDS: Final = 0.5
_TICK_SECONDS_MIN: Final = 0.1
"""A shard that cannot serve an overdue timer yet (without a free producer id, for example) is not asked in a tight
loop."""

_REFUSALS: Final = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
}
"""The code that a coordinator's client gets when the coordinator's own log refuses; other codes are unchanged."""
_INSISTED: Final = (
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.message_too_large,
    ErrorCode.record_list_too_large,
)
"""Refusals that end by themselves, or when an operator frees space or allows larger segments again. NOT_COORDINATOR of
a shard that stays loaded is a disk's refusal."""


class _Parked(NamedTuple, Generic[ActionT]):
    """``settle``: answers with the decision's response on ``none``, else with the error."""

    end: Offset
    settle: Callable[[ErrorCode], None] | None
    actions: tuple[ActionT, ...]


class ShardRuntime(Generic[S, RecordT, ActionT]):
    """``perform`` is called with each action, in order, once the records that decided it are committed.

    ``dropped`` is called when a loaded shard is dropped: its later actions never happen. ``first_offset``: a new shard
    already knows the records before it; None: it knows nothing.
    """

    def __init__(
        self,
        partition: Partition,
        new_shard: Callable[[], S],
        codec: Codec[RecordT],
        *,
        clock: Clock,
        perform: Callable[[ActionT], None],
        dropped: Callable[[], None] | None = None,
        first_offset: Callable[[], Offset] | None = None,
        wait_seconds: float = 5.0,
    ) -> None:
        self._partition = partition
        self.leader_epoch = partition.leader_epoch
        """Epoch of the leadership that this runtime serves; a coordinator's epoch."""
        self._new_shard = new_shard
        self._codec = codec
        self._clock = clock
        self._perform = perform
        self._dropped = dropped
        self._first_offset = first_offset
        self._wait_seconds = wait_seconds
        self._supervisor = Supervisor()
        self._shard: S | None = None
        self._unavailable = ErrorCode.coordinator_load_in_progress
        self._parked: deque[_Parked[ActionT]] = deque()
        self._first: deque[Callable[[S, Instant], Decision[RecordT, ActionT, object]]] = deque()
        self._awaits_replicas = False
        """The first decision has records, and too few replicas are in sync."""
        self._first_not_before_ms = 0
        """The log has refused the first decision, which is made again then: making it may take long."""
        self._is_watching = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_deadline: int | None = None
        self._reload: asyncio.TimerHandle | None = None
        self._loading: asyncio.Task[None] | None = None

    @property
    def partition(self) -> Partition:
        return self._partition

    @property
    def is_loaded(self) -> bool:
        return self._shard is not None

    @property
    def shard(self) -> S | None:
        """As replayed so far, also from records that are not committed; None: it is not loaded."""
        return self._shard

    @property
    def _is_over(self) -> bool:
        return not self._partition.is_leader or self._partition.leader_epoch != self.leader_epoch

    # --- requests --------------------------------------------------------------------------------------------------

    async def submit(
        self,
        decide: Callable[[S, Instant], Decision[RecordT, ActionT, R]],
        *,
        verification: VerificationGuard | None = None,
        reads_only: bool = False,
        awaits_first: bool = True,
    ) -> R | ErrorCode:
        """The answer, once it is committed; an ErrorCode where there is none.

        ``verification`` guards the append of a decision with a producer. ``reads_only``: no records come of it, so it
        is decided also while too few replicas are in sync. ``awaits_first``: it is refused until what comes first is
        decided. The decision is made before the first wait.
        """
        self.catch_up()
        shard = self._shard
        if shard is None:
            return self._unavailable
        if (awaits_first and self.is_behind) or (not reads_only and not self._partition.has_enough_replicas):
            return ErrorCode.coordinator_not_available
        now = self._clock.now()
        decision = decide(shard, now)
        assert not (reads_only and decision.records), "a question has written something"
        error = self._write(shard, decision, now, verification)
        if error is not ErrorCode.none:
            return error
        answer: asyncio.Future[R | ErrorCode] = asyncio.get_running_loop().create_future()

        def settle(error: ErrorCode) -> None:
            if not answer.done():
                answer.set_result(decision.response if error is ErrorCode.none else error)

        self._park(decision, settle)
        self._arm_timer()
        if answer.done():
            return answer.result()
        return await self._bounded(answer)

    async def insist(self, decide: Callable[[S, Instant], Decision[RecordT, ActionT, object]]) -> None:
        """Make a decision without a waiting client, and retry until it is committed or the shard is dropped."""
        shard = self._shard
        while shard is not None and self._shard is shard:
            if await self.submit(decide) not in _INSISTED:
                return
            await asyncio.sleep(_INSIST_SECONDS)

    def decide_first(self, decide: Callable[[S, Instant], Decision[RecordT, ActionT, object]]) -> None:
        """Make a decision before any other, once a shard is loaded and, if it has records, enough replicas are in
        sync."""
        self._first.append(decide)

    @property
    def is_behind(self) -> bool:
        """Whether there are decisions to be made first."""
        return bool(self._first)

    def catch_up(self) -> None:
        """Make the decisions that come first, if they can be written now."""
        if self._is_over:
            self.stop()
        shard = self._shard
        while self._first and shard is not None:
            has_enough_replicas = self._partition.has_enough_replicas
            if self._awaits_replicas and not has_enough_replicas:
                return
            now = self._clock.now()
            if now.monotonic_ms < self._first_not_before_ms:
                return
            decision = self._first[0](shard, now)
            self._awaits_replicas = bool(decision.records) and not has_enough_replicas
            if self._awaits_replicas:
                return
            if self._write(shard, decision, now) is not ErrorCode.none:
                self._first_not_before_ms = now.monotonic_ms + int(_INSIST_SECONDS * 1000)
                return
            self._first.popleft()
            self._park(decision, None)

    async def _bounded(self, answer: asyncio.Future[R | ErrorCode]) -> R | ErrorCode:
        def give_up() -> None:
            if not answer.done():
                answer.set_result(ErrorCode.coordinator_not_available)

        timer = asyncio.get_running_loop().call_later(self._wait_seconds, give_up)
        try:
            return await answer
        finally:
            timer.cancel()

    def append_marker(
        self,
        producer: ProducerIdAndEpoch,
        *,
        committed: bool,
        coordinator_epoch: int,
        transaction_version: TransactionVersion,
    ) -> ErrorCode | asyncio.Future[ErrorCode]:
        """End a transaction in the shard's own partition: append its marker and replay it. The future: committed."""
        if self._is_over:
            self.stop()
        shard = self._shard
        if shard is None:
            return self._unavailable
        if not self._partition.has_enough_replicas:
            return ErrorCode.not_enough_replicas
        result = self._partition.append_marker(
            producer,
            self._clock.now(),
            committed=committed,
            coordinator_epoch=coordinator_epoch,
            transaction_version=transaction_version,
        )
        if result.error is not ErrorCode.none:
            return result.error
        shard.replay_marker(producer, committed)
        self._arm_timer()
        return self._partition.when_committed(result.last_offset)

    # --- deciding, appending, replaying ----------------------------------------------------------------------------

    def _write(
        self,
        shard: S,
        decision: Decision[RecordT, ActionT, object],
        now: Instant,
        verification: VerificationGuard | None = None,
    ) -> ErrorCode:
        """Append and replay the records. On an error nothing was appended and nothing is replayed, or of a decision
        that is not atomic a part."""
        for records, batch in decided_batches(decision, self._codec, now.wall_ms, self._partition.segment_bytes):
            result = self._partition.append(batch, now, AppendOrigin.COORDINATOR, verification)
            if result.error is not ErrorCode.none:
                if not decision.is_pure:
                    self._drop(ErrorCode.coordinator_load_in_progress)
                    self._reload_later()
                return _REFUSALS.get(result.error, result.error)
            for record in records:
                shard.replay(record)
        return ErrorCode.none

    # --- parking and releasing --------------------------------------------------------------------------------------

    def _park(self, decision: Decision[RecordT, ActionT, object], settle: Callable[[ErrorCode], None] | None) -> None:
        end = self._partition.log_end_offset
        self._parked.append(_Parked(end, settle, decision.actions))
        self._release()

    def _release(self) -> None:
        parked = self._parked
        while parked and parked[0].end <= self._partition.high_watermark:
            _, settle, actions = parked.popleft()
            if settle is not None:
                settle(ErrorCode.none)
            for action in actions:
                self._perform(action)
        if parked and not self._is_watching:
            self._is_watching = True
            committed = self._partition.when_committed(Offset(parked[0].end - 1))
            committed.add_done_callback(self._high_watermark_moved)

    def _high_watermark_moved(self, committed: asyncio.Future[ErrorCode]) -> None:
        self._is_watching = False
        if committed.cancelled():
            return
        error = committed.result()
        if error is ErrorCode.none:
            self._release()
            return
        # The parked records can never be committed here: no answer and no action may follow from them.
        self._stop(_REFUSALS.get(error, error))

    # --- time --------------------------------------------------------------------------------------------------------

    def _arm_timer(self) -> None:
        shard = self._shard
        deadline = None if shard is None else shard.next_deadline()
        if deadline == self._timer_deadline:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._timer_deadline = deadline
        if deadline is not None:
            self._set_timer(max(0.0, (deadline - self._clock.now().monotonic_ms) / 1000))

    def _set_timer(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._timer_deadline = None
        shard = self._shard
        assert shard is not None, "no timer outlives its shard"
        if self._is_over:
            self.stop()
            return
        if not self._partition.has_enough_replicas:
            self._timer_deadline = shard.next_deadline()
            self._set_timer(_REPLICAS_AWAITED_SECONDS)
            return
        now = self._clock.now()
        try:
            is_written = self._run(shard, shard.tick(now), now)
        except Exception as error:  # noqa: BLE001 - without its timer no transaction would time out any more.
            self._supervisor.report(f"the timer of {self._partition.topic_partition}", error)
            self._set_timer(_RELOAD_SECONDS)
            return
        if not is_written:
            return
        deadline = shard.next_deadline()
        if deadline is not None and deadline <= now.monotonic_ms:
            self._timer_deadline = deadline
            self._set_timer(_TICK_SECONDS_MIN)
        else:
            self._arm_timer()

    def _run(self, shard: S, decisions: tuple[Decision[RecordT, ActionT, None], ...], now: Instant) -> bool:
        """Make the decisions that are due by the clock. False: an append was refused, and with it the rest."""
        for decision in decisions:
            if self._write(shard, decision, now) is not ErrorCode.none:
                return False
            self._park(decision, None)
        return True

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Read the log, replay it, and begin to serve. Requests meanwhile: COORDINATOR_LOAD_IN_PROGRESS.

        At once where there is nothing to read, else in the background.
        """
        self._drop(ErrorCode.coordinator_load_in_progress)
        if self._loading is not None:
            self._loading.cancel()
            self._loading = None
        first = self._partition.log_start_offset if self._first_offset is None else self._first_offset()
        if first == self._partition.log_end_offset:
            self._serve(self._new_shard())
        else:
            self._loading = asyncio.get_running_loop().create_task(self._load(self._new_shard(), first))

    async def load(self) -> None:
        """As ``start``, and wait until loading ends; ``is_loaded`` is then whether it succeeded."""
        self.start()
        await self.loaded()

    async def loaded(self) -> None:
        """Wait for the end of the current load. Cancelled when that is."""
        if self._loading is not None:
            await self._loading

    async def _load(self, shard: S, offset: Offset) -> None:
        # Also uncommitted records: this leader will never remove them, and no answer leaves before they are committed.
        try:
            while offset < self._partition.log_end_offset:
                batches = self._partition.read(offset, _READ_BYTES, below=self._partition.log_end_offset)
                if not batches:
                    # Compaction may leave nothing before the end.
                    break
                for position, header in iter_headers(batches):
                    self._check(batches, position, header)
                    self._replay(shard, batches, position, header)
                    offset = header.next_offset
                await asyncio.sleep(0)
        except Exception as error:  # noqa: BLE001 - whatever is in the log, whoever asks is answered.
            self._supervisor.report(f"loading {self._partition.topic_partition} at offset {offset}", error)
            self._unavailable = ErrorCode.coordinator_not_available
            self._partition.report(error, is_logged=True)
            if isinstance(error, OSError):
                # A failing disk may recover; corruption is permanent, and another replica loads.
                self._reload_later()
            return
        self._serve(shard)

    def _check(self, batches: bytes, position: int, header: BatchHeader) -> None:
        """A log that this process has written is not checked when it is read; a coordinator believes what it reads."""
        try:
            validate(batches, position, header)
        except WireError as error:
            raise LogCorruption(f"{self._partition.topic_partition} at offset {header.base_offset}: {error}") from error

    def _serve(self, shard: S) -> None:
        self._shard = shard
        now = self._clock.now()
        if self._run(shard, shard.loaded(now), now):
            self._arm_timer()

    def _replay(self, shard: S, batches: bytes, position: int, header: BatchHeader) -> None:
        records = decode_records(batches, position, header)
        producer = ProducerIdAndEpoch(ProducerId(header.producer_id), ProducerEpoch(header.producer_epoch))
        if header.is_control:
            for record in records:
                if control_type(record) in (ABORT, COMMIT):
                    shard.replay_marker(producer, decode_marker(record).committed)
            return
        producer_id = producer.producer_id if header.is_transactional else None
        for record in records:
            decoded = self._codec.decode(record.key, record.value, producer_id)
            if decoded is not None:
                shard.replay(decoded)

    def _drop(self, unavailable: ErrorCode) -> None:
        """Drop the shard. Parked answers stay: their records are in the log."""
        was_loaded, self._shard = self._shard is not None, None
        self._unavailable = unavailable
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._timer_deadline = None
        if was_loaded and self._dropped is not None:
            self._dropped()

    def _reload_later(self) -> None:
        def reload() -> None:
            self._reload = None
            self.start()

        if self._reload is None:
            self._reload = asyncio.get_running_loop().call_later(_RELOAD_SECONDS, reload)

    def stop(self) -> None:
        """Leadership is over, or the node is stopping: waiting requests get NOT_COORDINATOR."""
        self._stop(ErrorCode.not_coordinator)

    def _stop(self, error: ErrorCode) -> None:
        self._drop(error)
        self._first.clear()
        if self._loading is not None:
            self._loading.cancel()
        if self._reload is not None:
            self._reload.cancel()
            self._reload = None
        while self._parked:
            settle = self._parked.popleft().settle
            if settle is not None:
                settle(error)
