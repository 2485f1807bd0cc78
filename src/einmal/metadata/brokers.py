"""Membership of brokers: registration, heartbeats, fencing, controlled shutdown (KIP-500, KIP-631, KIP-841, KIP-966).

A broker is fenced when it registers. It is unfenced once it has seen its own registration record, until its session
times out, its connection is lost, or it shuts down. Fenced or shutting down it leads nothing and is in no ISR: the same
decision changes both. Fencing is always safe; it costs only availability.

Sessions are soft state: they are not logged, a new controller restarts them. Times are monotonic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from einmal.metadata.image import BrokerImage
from einmal.metadata.plan import BrokerFenced, BrokerUnfenced, ControllerDefaults, Deciding, MetadataDecision, Plan
from einmal.metadata.records import (
    FENCE,
    UNFENCE,
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    RegisterBrokerRecord,
    SupportedFeature,
    UnregisterBrokerRecord,
)
from einmal.shard.decision import Decision
from einmal.types import BrokerId, ErrorCode, Instant, Offset

LOST_GRACE_MS: Final = 100
"""Time for a broker that has lost its connection to send a heartbeat on another one."""
_NO_OFFSET: Final = Offset(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A broker's registration when its process has started.

    ``previous_broker_epoch``: the one under which it stopped without losing data; -1: it may have lost data.
    """

    broker_id: BrokerId
    incarnation_id: UUID
    end_points: tuple[BrokerEndpoint, ...] = ()
    rack: str | None = None
    features: tuple[SupportedFeature, ...] = ()
    log_dirs: tuple[UUID, ...] = ()
    previous_broker_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Registered:
    error: ErrorCode = ErrorCode.none
    broker_epoch: int = -1
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Unregistered:
    error: ErrorCode = ErrorCode.none
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """``metadata_offset``: of the last record that the broker has applied.

    ``is_disk_broken``: it cannot write any more, and reports this until its process ends.
    """

    broker_id: BrokerId
    broker_epoch: int
    metadata_offset: int
    wants_fence: bool = False
    wants_shutdown: bool = False
    is_disk_broken: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    error: ErrorCode = ErrorCode.none
    is_caught_up: bool = False
    is_fenced: bool = True
    should_shut_down: bool = False


@dataclass(slots=True)
class _Session:
    """Session of a broker that is not fenced. ``is_heard``: this controller has received a heartbeat of its process."""

    deadline_ms: int
    is_heard: bool = False
    metadata_offset: int = -1
    shutdown_offset: int | None = None
    """Others must have seen the metadata up to here before the broker may shut down."""


class BrokerDecisions(Deciding):
    def __init__(self, defaults: ControllerDefaults) -> None:
        super().__init__(defaults)
        self._sessions: dict[BrokerId, _Session] = {}

    # --- registration --------------------------------------------------------------------------------------------

    def register_broker(
        self, registration: Registration, next_offset: Offset, now: Instant
    ) -> MetadataDecision[Registered]:
        """A broker process has started, or retries. Its epoch is the offset of its registration record.

        If it may have lost unflushed data it is not eligible to lead; if its folder was wiped, not even as the last
        leader.
        """
        existing = self.image.brokers.get(registration.broker_id)
        if (message := self._unsupported_by(registration)) is not None:
            return Decision(response=Registered(ErrorCode.unsupported_version, message=message))
        if existing is None or existing.incarnation_id != registration.incarnation_id:
            return self._new_incarnation(registration, existing, next_offset, now)
        amended = _register_record(registration, existing.broker_epoch, existing)
        records = () if amended == existing.record() else (amended,)
        return Decision(records=records, response=Registered(broker_epoch=existing.broker_epoch))

    def _new_incarnation(
        self, registration: Registration, existing: BrokerImage | None, next_offset: Offset, now: Instant
    ) -> MetadataDecision[Registered]:
        broker_id = registration.broker_id
        session = self._sessions.get(broker_id)
        if session is not None and session.is_heard and now.monotonic_ms < session.deadline_ms:
            message = f"Another broker is registered with the id {broker_id}."
            return Decision(response=Registered(ErrorCode.duplicate_broker_registration, message=message))
        plan = self._plan({broker_id: False})
        plan.records.append(_register_record(registration, next_offset, None))
        is_clean = existing is not None and registration.previous_broker_epoch == existing.broker_epoch
        # By the id of the directory, not by its contents: a wiped one may not be elected as the last known leader.
        is_wiped = existing is not None and _is_wiped(existing.log_dirs, registration.log_dirs)
        self._withdraw(plan, broker_id, is_unclean=is_wiped or not is_clean, is_wiped=is_wiped)
        return plan.decision(Registered(broker_epoch=next_offset))

    def _unsupported_by(self, registration: Registration) -> str | None:
        supported = {feature.name: feature for feature in registration.features}
        for name, level in self.image.features.items():
            feature = supported.get(name, SupportedFeature(name, 0, 0))
            if not feature.min_supported_version <= level <= feature.max_supported_version:
                return (
                    f"Broker {registration.broker_id} does not support level {level} of {name}, but "
                    f"{feature.min_supported_version} to {feature.max_supported_version}."
                )
        return None

    def _withdraw(self, plan: Plan, broker_id: BrokerId, *, is_unclean: bool = False, is_wiped: bool = False) -> None:
        """Remove a broker from every ISR, and if it may have lost records also from every ELR."""
        unclean = (broker_id,) if is_unclean else ()
        wiped = (broker_id,) if is_wiped else ()
        for topic, partition_id, partition in plan.partitions():
            if (
                broker_id in partition.isr
                or (is_unclean and broker_id in partition.elr)
                or (is_wiped and broker_id in partition.last_known_elr)
            ):
                isr = tuple(other for other in partition.isr if other != broker_id)
                plan.change(topic, partition_id, replace(partition, isr=isr), unclean=unclean, wiped=wiped)

    def unregister_broker(self, broker_id: BrokerId) -> MetadataDecision[Unregistered]:
        """Forget a broker that will not return; refused for an unfenced one, which would only register again."""
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            message = f"Broker {broker_id} is not registered."
            return Decision(response=Unregistered(ErrorCode.broker_id_not_registered, message))
        if not broker.is_fenced:
            return Decision(response=Unregistered(ErrorCode.invalid_request, f"Broker {broker_id} is alive: stop it."))
        plan = self._plan({broker_id: False})
        self._withdraw(plan, broker_id, is_unclean=True)
        plan.records.append(UnregisterBrokerRecord(broker_id, broker.broker_epoch))
        return plan.decision(Unregistered())

    # --- heartbeats ----------------------------------------------------------------------------------------------

    def heartbeat(self, beat: Heartbeat, next_offset: Offset, now: Instant) -> MetadataDecision[HeartbeatAnswer]:
        broker = self.image.brokers.get(beat.broker_id)
        if broker is None or broker.broker_epoch != beat.broker_epoch:
            return Decision(response=HeartbeatAnswer(error=ErrorCode.stale_broker_epoch))
        if broker.is_fenced:
            return self._fenced_beat(broker, beat, now)
        session = self._session(broker.broker_id, now)
        session.is_heard = True
        session.metadata_offset = beat.metadata_offset
        if (reason := self._why_fence(broker, beat, session)) is not None:
            answer = _answer(broker, beat, is_fenced=True, should_shut_down=beat.wants_shutdown)
            return self._fence(broker, reason).decision(answer)
        answer = _answer(broker, beat, is_fenced=False)
        if not beat.wants_shutdown:
            return Decision(response=answer)
        plan = self._plan({broker.broker_id: False})
        if not broker.in_controlled_shutdown:
            plan.records.append(
                BrokerRegistrationChangeRecord(broker.broker_id, broker.broker_epoch, in_controlled_shutdown=1)
            )
            self._withdraw(plan, broker.broker_id)
        if session.shutdown_offset is None:
            session.shutdown_offset = next_offset + len(plan.records) - 1
        return plan.decision(answer)

    def _fenced_beat(self, broker: BrokerImage, beat: Heartbeat, now: Instant) -> MetadataDecision[HeartbeatAnswer]:
        is_back = (
            not beat.wants_fence
            and not beat.wants_shutdown
            and not broker.in_controlled_shutdown
            and not self._is_useless(beat)
            and beat.metadata_offset >= broker.broker_epoch
        )
        answer = _answer(broker, beat, is_fenced=not is_back, should_shut_down=beat.wants_shutdown)
        if not is_back:
            return Decision(response=answer)
        session = self._session(broker.broker_id, now)
        session.is_heard = True
        session.metadata_offset = beat.metadata_offset
        plan = self._plan({broker.broker_id: True})
        plan.records.append(BrokerRegistrationChangeRecord(broker.broker_id, broker.broker_epoch, fenced=UNFENCE))
        for topic, partition_id, partition in plan.partitions():
            if not partition.isr and broker.broker_id in partition.replicas:
                plan.change(topic, partition_id, partition)
        plan.actions.append(BrokerUnfenced(broker.broker_id, broker.broker_epoch))
        return plan.decision(answer)

    def _is_useless(self, beat: Heartbeat) -> bool:
        """A broker with a broken disk is useless while there are others; the only broker does what it still can."""
        return beat.is_disk_broken and len(self.image.brokers) > 1

    def _why_fence(self, broker: BrokerImage, beat: Heartbeat, session: _Session) -> str | None:
        """The reason to fence an unfenced broker; None: there is none."""
        if self._is_useless(beat):
            return "its disk is broken"
        if beat.wants_shutdown and (beat.wants_fence or self._may_go(broker, session)):
            return "it shuts down"
        return "it asks for that" if beat.wants_fence else None

    def _session(self, broker_id: BrokerId, now: Instant) -> _Session:
        deadline_ms = now.monotonic_ms + self.defaults.session_timeout_ms
        session = self._sessions.setdefault(broker_id, _Session(deadline_ms))
        session.deadline_ms = deadline_ms
        return session

    def _may_go(self, broker: BrokerImage, session: _Session) -> bool:
        """Whether it may shut down: it leads nothing, and all active brokers know that."""
        leads = any(partition.leader == broker.broker_id for _, _, partition in self._plan().partitions())
        if leads or not broker.in_controlled_shutdown:
            return not leads
        if session.shutdown_offset is None:
            return False
        return all(
            session.shutdown_offset <= self._sessions[other.broker_id].metadata_offset
            for other in self.image.brokers.values()
            if other.is_active
        )

    # --- fencing -------------------------------------------------------------------------------------------------

    def _fence(self, broker: BrokerImage, reason: str) -> Plan:
        plan = self._plan({broker.broker_id: False})
        self._withdraw(plan, broker.broker_id)
        plan.records.append(BrokerRegistrationChangeRecord(broker.broker_id, broker.broker_epoch, fenced=FENCE))
        plan.actions.append(BrokerFenced(broker.broker_id, broker.broker_epoch, reason))
        return plan

    def broker_lost(
        self, broker_id: BrokerId, broker_epoch: int, now: Instant, *, is_gone: bool = False
    ) -> MetadataDecision[None]:
        """A broker does not answer, or its connection is lost: its session ends soon, unless it sends a heartbeat.

        ``is_gone``: nothing listens at its address; then the session ends at once.
        """
        session = self._sessions.get(broker_id)
        broker = self.image.brokers.get(broker_id)
        if session is not None and broker is not None and broker.broker_epoch == broker_epoch:
            grace_ms = 0 if is_gone else LOST_GRACE_MS
            session.deadline_ms = min(session.deadline_ms, now.monotonic_ms + grace_ms)
            # A new process of the same broker need not wait.
            session.is_heard = False
        return Decision(response=None)

    def _begin_sessions(self, now: Instant) -> None:
        for broker in self.image.brokers.values():
            if not broker.is_fenced:
                self._session(broker.broker_id, now)

    def _end_sessions(self) -> None:
        """After a record about brokers: only one that is not fenced has a session."""
        for broker_id in list(self._sessions):
            broker = self.image.brokers.get(broker_id)
            if broker is None or broker.is_fenced:
                del self._sessions[broker_id]

    def _next_session_deadline(self) -> int | None:
        return min((session.deadline_ms for session in self._sessions.values()), default=None)

    def _fence_one_stale(self, now: Instant) -> Plan | None:
        """One at a time: the next one is decided on the cluster without this one.

        The only broker, in the controller's own process, is as alive as the controller: if it is late both are starved,
        and no other could take over.
        """
        for broker_id, session in self._sessions.items():
            if session.deadline_ms <= now.monotonic_ms:
                if list(self.image.brokers) != [self.defaults.own_broker]:
                    return self._fence(self.image.brokers[broker_id], "its session timed out")
                self._session(broker_id, now)
        return None


def _answer(
    broker: BrokerImage, beat: Heartbeat, *, is_fenced: bool, should_shut_down: bool = False
) -> HeartbeatAnswer:
    return HeartbeatAnswer(
        is_caught_up=beat.metadata_offset >= broker.broker_epoch,
        is_fenced=is_fenced,
        should_shut_down=should_shut_down,
    )


def _register_record(
    registration: Registration, broker_epoch: int, existing: BrokerImage | None
) -> RegisterBrokerRecord:
    """``existing``: the same process's earlier registration; a repeated one does not fence it."""
    return RegisterBrokerRecord(
        registration.broker_id,
        registration.incarnation_id,
        broker_epoch,
        registration.end_points,
        registration.rack,
        registration.features,
        is_fenced=existing is None or existing.is_fenced,
        in_controlled_shutdown=existing is not None and existing.in_controlled_shutdown,
        log_dirs=registration.log_dirs,
    )


def _is_wiped(before: tuple[UUID, ...], now: tuple[UUID, ...]) -> bool:
    return bool(before and now) and not any(log_dir in before for log_dir in now)
