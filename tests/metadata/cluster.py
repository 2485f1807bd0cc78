"""A controller and its brokers, without log and network: what is decided is replayed at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

from einmal.metadata.brokers import LOST_GRACE_MS, Heartbeat, HeartbeatAnswer, Registered, Registration
from einmal.metadata.controller import Controller
from einmal.metadata.features import FIRST_LEVELS, SUPPORTED_FEATURES, TRANSACTION_VERSION
from einmal.metadata.image import ClusterImage, PartitionImage
from einmal.metadata.partitions import IsrRequest, IsrResult
from einmal.metadata.plan import ControllerDefaults, LedAtRisk, MetadataDecision
from einmal.metadata.records import MetadataRecord
from einmal.metadata.topics import NewTopic
from einmal.types import BrokerId, ErrorCode, Instant, Offset

R = TypeVar("R")
DEFAULTS = ControllerDefaults(
    replication_factor=3, min_insync_replicas=2, features={**FIRST_LEVELS, TRANSACTION_VERSION: 2}
)


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


class Cluster:
    """``log``: all records ever decided; the offset of a record is its index. ``decisions``: those that wrote any."""

    def __init__(self, brokers: int = 0, defaults: ControllerDefaults = DEFAULTS) -> None:
        self.now_ms = 0
        self.log: list[MetadataRecord] = []
        self.actions: list[Any] = []
        self.decisions: list[MetadataDecision[Any]] = []
        self.epochs: dict[int, int] = {}
        self.alive: dict[int, None] = {}
        self.controller = Controller(defaults)
        self.take_over()
        for number in range(1, brokers + 1):
            self.join(number)

    @property
    def now(self) -> Instant:
        return Instant(0, self.now_ms)

    @property
    def image(self) -> ClusterImage:
        return self.controller.image

    @property
    def end(self) -> Offset:
        return Offset(len(self.log))

    def done(self, decision: MetadataDecision[R]) -> R:
        for record in decision.records:
            self.log.append(record)
            self.controller.replay(record)
        self.actions += decision.actions
        if decision.records:
            self.decisions.append(decision)
        return decision.response

    def take_over(self) -> None:
        """A new controller, with nothing but the state from the records."""
        self.controller = Controller(self.controller.defaults, self.controller.image.copy())
        for decision in self.controller.loaded(self.now):
            self.done(decision)

    # --- brokers -------------------------------------------------------------------------------------------------

    def register(self, number: int, *, clean: bool = False, **fields: Any) -> Registered:
        """A new process of the broker."""
        registration = Registration(
            broker_id=BrokerId(number),
            incarnation_id=UUID(int=len(self.log)),
            features=SUPPORTED_FEATURES,
            previous_broker_epoch=self.epochs.get(number, -1) if clean else -1,
        )
        registered = self.done(self.controller.register_broker(replace(registration, **fields), self.end, self.now))
        if registered.error is ErrorCode.none:
            self.epochs[number] = registered.broker_epoch
        return registered

    def beat(self, number: int, *, seen: int | None = None, **wants: bool) -> HeartbeatAnswer:
        """``seen``: offset of the last record that the broker has seen; None: all of them."""
        offset = len(self.log) - 1 if seen is None else seen
        beat = Heartbeat(broker_id=BrokerId(number), broker_epoch=self.epochs[number], metadata_offset=offset, **wants)
        return self.done(self.controller.heartbeat(beat, self.end, self.now))

    def join(self, number: int, *, clean: bool = False, **fields: Any) -> None:
        assert self.register(number, clean=clean, **fields).error is ErrorCode.none
        assert not self.beat(number).is_fenced
        self.alive[number] = None

    def lose(self, number: int) -> None:
        """The broker's connection is gone, and it is not heard of any more."""
        self.alive.pop(number, None)
        self.done(self.controller.broker_lost(BrokerId(number), self.epochs[number], self.now))
        self.pass_time(LOST_GRACE_MS, alive=list(self.alive))

    def shut_down(self, number: int) -> None:
        """A clean stop."""
        for _ in range(5):
            answer = self.beat(number, wants_shutdown=True)
            if answer.should_shut_down:
                self.alive.pop(number, None)
                return
            for other, broker in self.image.brokers.items():
                if broker.is_active:
                    self.beat(other)
        raise AssertionError(f"broker {number} may not go")

    def pass_time(self, ms: int, alive: Sequence[int] = ()) -> None:
        self.now_ms += ms
        for number in alive:
            self.beat(number)
        while (deadline := self.controller.next_deadline()) is not None and deadline <= self.now_ms:
            for decision in self.controller.tick(self.now):
                self.done(decision)

    # --- partitions ----------------------------------------------------------------------------------------------

    def create(self, name: str, *replicas: tuple[int, ...], **configs: str) -> None:
        topic = NewTopic(
            name=name,
            topic_id=UUID(int=1_000 + len(self.log)),
            assignments=list(enumerate(replicas)),
            configs={key.replace("_", "."): value for key, value in configs.items()},
        )
        results = self.done(self.controller.create_topics([topic]))
        assert results[0].error is ErrorCode.none, results

    def partition(self, name: str = "t", partition_id: int = 0) -> PartitionImage:
        return self.image.topics[name].partitions[partition_id]

    def is_at_risk(self) -> bool:
        """Whether anybody was elected who may lack committed records."""
        return any(isinstance(action, LedAtRisk) for action in self.actions)

    def ask_isr(self, *isr: int, name: str = "t", partition_id: int = 0, **fields: Any) -> IsrResult:
        """The leader of a partition asks for another ISR."""
        partition = self.partition(name, partition_id)
        request = IsrRequest(
            partition_id=partition_id,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            isr=tuple((BrokerId(number), self.epochs[number]) for number in isr),
        )
        topic_id = self.image.topics[name].topic_id
        leader = fields.pop("sender", partition.leader)
        results = self.done(
            self.controller.alter_partition(
                BrokerId(leader), self.epochs[leader], [(topic_id, [replace(request, **fields)])]
            )
        )
        assert not isinstance(results, ErrorCode)
        return results[0][1][0]
