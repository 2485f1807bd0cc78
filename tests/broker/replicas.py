"""The replicas' runtimes of several brokers on virtual time: real partitions, sessions, fetchers and ISR updates.

Between them is a network that delays, loses and cuts, above them a controller that is always there: it decides at once,
and each broker hears of it a little later, in order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from uuid import UUID

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.config import broker_config
from einmal.broker.identity import Identity
from einmal.broker.replicas.isr_updates import IsrUpdates
from einmal.broker.replicas.partition import Partition
from einmal.broker.replicas.partitions import Partitions
from einmal.broker.replicas.replica_fetcher import ReplicaFetchers
from einmal.broker.replicas.replica_sessions import ReplicaSessions
from einmal.metadata.image import ClusterImage, ImageDelta
from einmal.metadata.records import (
    FENCE,
    NO_LEADER,
    UNFENCE,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from einmal.rpc.connection import Answer, NoAnswer
from einmal.simulation.clock import SimulatedClock
from einmal.simulation.disk import SimulatedDisk
from einmal.simulation.loop import Host
from einmal.simulation.trace import Trace
from einmal.types import BrokerId, ErrorCode, LeaderEpoch, TopicPartition
from einmal.wire.api.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    RequestPartitionData,
    ResponsePartitionData,
    ResponseTopicData,
)
from einmal.wire.fetch import decode_fetch_request
from einmal.wire.record_batch import iter_headers
from tests.broker.nodes import batch
from tests.virtual_time import running_loop

T = TypeVar("T")
TOPIC = "t"
TOPIC_ID = UUID(int=77)
LATENCY = 0.001


class Stand:
    """One process of a broker, with nothing but its replicas."""

    def __init__(self, world: World, broker_id: BrokerId) -> None:
        self.world = world
        self.broker_id = broker_id
        self.host = Host(f"broker {broker_id}")
        self.clock = SimulatedClock(world.loop)
        self.config, unknown = broker_config(
            {"node.id": str(broker_id), "log.dirs": "/data", "listeners": "PLAINTEXT://127.0.0.1:0", **world.settings}
        )
        assert not unknown
        self.partitions = Partitions(
            self.config, PurePosixPath("/data"), world.disks[broker_id].view(self.host), self.clock
        )
        self.metadata = SimpleNamespace(image=ClusterImage())
        self.identity = Identity(broker_id, directory_id=UUID(int=broker_id))
        network: Any = Network(self)
        self.isr_updates = IsrUpdates(self.config, self.identity, self.partitions, network, self.clock)
        self.replica_sessions = ReplicaSessions(
            self.config,
            cast(ClusterMetadata, self.metadata),
            self.partitions,
            self.clock,
            random.Random(broker_id),
            self.isr_updates.look_at,
        )
        self.fetchers = ReplicaFetchers(self.config, self.identity, self.partitions, network)
        self.applied = 0

    def call(self, work: Callable[..., T], *args: Any) -> T:
        """Do something in this process."""
        return self.host.context.run(work, *args)

    def partition(self, index: int = 0) -> Partition:
        partition = self.partitions.get(TopicPartition(TOPIC, index))
        assert partition is not None
        return partition

    def catch_up(self) -> None:
        """Apply what the controller has recorded since; at first all of it at once, up to the own registration."""
        batches = self.world.records[self.applied :]
        is_first = self.applied == 0
        self.applied += len(batches)
        image = self.metadata.image
        if is_first:
            image.apply([record for records in batches for record in records])
            everything = dict.fromkeys(image.topics)
            self.apply(ImageDelta(everything, configs=everything, cluster_configs=True, brokers=True))
        else:
            for records in batches:
                self.apply(image.apply(records))

    def apply(self, delta: ImageDelta) -> None:
        self.partitions.apply(delta, self.metadata.image)
        self.fetchers.apply(delta)
        if delta.brokers:
            self.isr_updates.look_at_all()

    def answer(self, version: int, frame: bytes, done: Callable[[bytes], None]) -> None:
        request = decode_fetch_request(version, frame, 0)
        self.world.fetches.append((request.replica_id, sum(len(partitions) for _topic, partitions in request.topics)))
        assert self.replica_sessions.is_from_replica(request)
        result = self.replica_sessions.handle(version, request)
        if isinstance(result, asyncio.Future):
            result.add_done_callback(lambda body: done(b"".join(body.result())))
        else:
            done(b"".join(result))


class Network:
    """Of one broker: to the others, and to the controller."""

    def __init__(self, stand: Stand) -> None:
        self._stand = stand
        self._world = stand.world
        self._answered: dict[tuple[int, str], asyncio.Future[Answer]] = {}

    async def exchange(
        self, node_id: BrokerId, api_key: int, version: int, body: Sequence[bytes], *, timeout_ms: int, lane: str
    ) -> Answer:
        """In order there and back, as on one connection."""
        world, loop = self._world, asyncio.get_running_loop()
        before = self._answered.get((node_id, lane))
        future: asyncio.Future[Answer] = loop.create_future()
        self._answered[node_id, lane] = future
        target = world.stands.get(node_id)
        if target is None:
            future.cancel()
            raise NoAnswer("refused", was_sent=False)
        world.pending.setdefault(target.broker_id, []).append(future)

        def arrive(frame: bytes) -> None:
            if not future.done():
                future.set_result(Answer(frame, 0))

        def answered(frame: bytes) -> None:
            if world.is_linked(node_id, self._stand.broker_id):
                world.in_order(node_id, self._stand.broker_id, self._stand, arrive, frame)

        if world.is_linked(self._stand.broker_id, node_id):
            world.in_order(
                self._stand.broker_id, node_id, target, lambda: target.answer(version, b"".join(body), answered)
            )
        timer = loop.call_later(timeout_ms / 1000, world.break_off, future)
        try:
            if before is not None and not before.done():
                await asyncio.shield(before)
            return await future
        finally:
            timer.cancel()
            world.break_off(future)

    async def ask(self, api: Any, version: int, request: AlterPartitionRequest, *, timeout_ms: int) -> Any:
        await asyncio.sleep(LATENCY)
        if self._stand.broker_id in self._world.cut_off:
            await asyncio.sleep(timeout_ms / 1000)
            raise NoAnswer("no answer", was_sent=True)
        answer = self._world.alter(request)
        await asyncio.sleep(LATENCY)
        return answer


def is_of_the_dead(context: dict[str, Any]) -> bool:
    """A task of a killed process never ends."""
    return "was destroyed but" in context["message"] or isinstance(context.get("exception"), NoAnswer)


class World:
    def __init__(self, *, brokers: int = 3, seed: int = 1, **settings: object) -> None:
        self.loop = running_loop()
        self.loop.is_expected = is_of_the_dead
        self.random = random.Random(seed)
        self.settings = {key.replace("_", "."): str(value) for key, value in settings.items()}
        self.ids = tuple(BrokerId(number) for number in range(1, brokers + 1))
        self.disks = {broker_id: SimulatedDisk(self.loop, self.random, Trace()) for broker_id in self.ids}
        for broker_id, disk in self.disks.items():
            view = disk.view(Host(f"installer of {broker_id}"))
            view.make_directory(PurePosixPath("/data"))
            view.sync_directory(PurePosixPath("/"))
        self.stands: dict[BrokerId, Stand] = {}
        self.records: list[list[Any]] = []
        self.image = ClusterImage()
        self.cut_off: dict[BrokerId, None] = {}
        self.untold: dict[BrokerId, None] = {}
        """Brokers that the controller's news do not reach, though everything else does."""
        self.pending: dict[BrokerId, list[asyncio.Future[Answer]]] = {}
        self.fetches: list[tuple[int, int]] = []
        """Who fetched, and how many partitions the request named."""
        self._arrival: dict[tuple[BrokerId, BrokerId], float] = {}

    # --- network -----------------------------------------------------------------------------------------------------

    def is_linked(self, source: BrokerId, target: BrokerId) -> bool:
        return source not in self.cut_off and target not in self.cut_off

    def in_order(self, source: BrokerId, target: BrokerId, stand: Stand, work: Callable[..., None], *args: Any) -> None:
        at = self.loop.time() + LATENCY * (1 + self.random.random())
        at = self._arrival[source, target] = max(at, self._arrival.get((source, target), 0.0))
        self.loop.call_at(at, work, *args, context=stand.host.context)

    @staticmethod
    def break_off(future: asyncio.Future[Answer]) -> None:
        if not future.done():
            future.set_exception(NoAnswer("connection lost", was_sent=True))

    # --- controller --------------------------------------------------------------------------------------------------

    def record(self, *records: Any) -> None:
        self.records.append(list(records))
        self.image.apply(list(records))
        for broker_id in self.stands:
            self.tell(broker_id)

    def tell(self, broker_id: BrokerId) -> None:
        """What is recorded reaches a broker."""
        stand = self.stands[broker_id]
        if broker_id not in self.cut_off and broker_id not in self.untold:
            self.in_order(BrokerId(0), broker_id, stand, stand.catch_up)

    def cut(self, broker_id: int) -> None:
        self.cut_off[BrokerId(broker_id)] = None

    def heal(self, broker_id: int) -> None:
        self.cut_off.pop(BrokerId(broker_id), None)
        if broker_id in self.stands:
            self.tell(BrokerId(broker_id))

    def create_topic(
        self, partitions: int = 1, *, replicas: Sequence[int] | None = None, leader: int = 1, **configs: str
    ) -> None:
        members = self.ids if replicas is None else tuple(BrokerId(replica) for replica in replicas)
        self.record(
            TopicRecord(TOPIC, TOPIC_ID),
            *(
                PartitionRecord(index, TOPIC_ID, members, members, BrokerId(leader), LeaderEpoch(0), 0)
                for index in range(partitions)
            ),
            *(ConfigRecord(2, TOPIC, key.replace("_", "."), value) for key, value in configs.items()),
        )

    def change(self, index: int, **changes: Any) -> None:
        self.record(PartitionChangeRecord(index, TOPIC_ID, **changes))

    def elect(self) -> None:
        """For each partition without a leader that may lead one out of its ISR."""
        topic = self.image.topics.get(TOPIC)
        for index, partition in enumerate(topic.partitions if topic else ()):
            if self._may_lead(partition.leader) and partition.leader in partition.isr:
                continue
            leader = next((broker_id for broker_id in partition.isr if self._may_lead(broker_id)), NO_LEADER)
            if leader != partition.leader:
                self.change(index, leader=leader)

    def _may_lead(self, broker_id: BrokerId) -> bool:
        broker = self.image.brokers.get(broker_id)
        return broker is not None and broker.is_active

    def fence(self, broker_id: int) -> None:
        broker = self.image.brokers[BrokerId(broker_id)]
        self.record(BrokerRegistrationChangeRecord(broker.broker_id, broker.broker_epoch, FENCE))
        self._drop_from_isr(broker.broker_id)
        self.elect()

    def unfence(self, broker_id: int) -> None:
        broker = self.image.brokers[BrokerId(broker_id)]
        self.record(BrokerRegistrationChangeRecord(broker.broker_id, broker.broker_epoch, UNFENCE))
        self.elect()

    def _drop_from_isr(self, broker_id: BrokerId) -> None:
        topic = self.image.topics.get(TOPIC)
        for index, partition in enumerate(topic.partitions if topic else ()):
            rest = tuple(member for member in partition.isr if member != broker_id)
            if rest and rest != partition.isr:
                self.change(index, isr=rest)

    def alter(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        topics = [
            ResponseTopicData(topic.topic_id, [self._alter(asked) for asked in topic.partitions])
            for topic in request.topics
        ]
        return AlterPartitionResponse(topics=topics)

    def _alter(self, asked: RequestPartitionData) -> ResponsePartitionData:
        index = asked.partition_index
        image = self.image.topics[TOPIC].partitions[index]
        error = ErrorCode.none
        if asked.leader_epoch != image.leader_epoch:
            error = ErrorCode.fenced_leader_epoch
        elif asked.partition_epoch != image.partition_epoch:
            error = ErrorCode.invalid_update_version
        elif any(
            not self._may_lead(BrokerId(member.broker_id))
            or member.broker_epoch != self.image.brokers[BrokerId(member.broker_id)].broker_epoch
            for member in asked.new_isr_with_epochs
        ):
            error = ErrorCode.ineligible_replica
        else:
            self.change(index, isr=tuple(BrokerId(member.broker_id) for member in asked.new_isr_with_epochs))
        image = self.image.topics[TOPIC].partitions[index]
        return ResponsePartitionData(index, error, isr=image.isr, partition_epoch=image.partition_epoch)

    # --- brokers -----------------------------------------------------------------------------------------------------

    def start(self, *broker_ids: int, is_clean: bool = True) -> None:
        """Start these, or all; each is registered, and hears of it."""
        for broker_id in [BrokerId(number) for number in broker_ids] or self.ids:
            stand = self.stands[broker_id] = Stand(self, broker_id)
            stand.identity.broker_epoch = len(self.records)
            if not is_clean:
                self._drop_from_isr(broker_id)
            self.record(
                RegisterBrokerRecord(
                    broker_id, UUID(int=len(self.records)), stand.identity.broker_epoch, (), is_fenced=False
                )
            )
            topic = self.image.topics.get(TOPIC)
            for index, partition in enumerate(topic.partitions if topic else ()):
                if partition.leader == broker_id:
                    self.change(index, leader=broker_id)
            stand.call(stand.catch_up)
            stand.call(stand.isr_updates.start)
        self.elect()

    def crash(self, broker_id: int, *, power: bool = False) -> None:
        """The process is killed; with ``power`` also what is not synced may be lost. Only its peers notice."""
        stand = self.stands.pop(BrokerId(broker_id))
        stand.host.is_alive = False
        if power:
            self.disks[stand.broker_id].cut_power()
        for future in self.pending.pop(stand.broker_id, []):
            self.loop.call_later(LATENCY, self.break_off, future)

    # --- clients -----------------------------------------------------------------------------------------------------

    def leader(self, index: int = 0) -> Stand:
        return self.stands[self.image.topics[TOPIC].partitions[index].leader]

    def append(self, *values: bytes, index: int = 0, to: int | None = None) -> asyncio.Future[ErrorCode]:
        """One batch; done when it is committed or its outcome stays unknown."""
        stand = self.leader(index) if to is None else self.stands[BrokerId(to)]
        return stand.call(self._append, stand, index, values)

    @staticmethod
    def _append(stand: Stand, index: int, values: Sequence[bytes]) -> asyncio.Future[ErrorCode]:
        partition = stand.partition(index)
        result = partition.append(bytearray(batch(*values)), stand.clock.now())
        if result.error is ErrorCode.none:
            return partition.when_committed(result.last_offset)
        refused: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        refused.set_result(result.error)
        return refused

    async def until(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        deadline = self.loop.time() + seconds
        while not condition():
            assert self.loop.time() < deadline, "it never happens"
            await asyncio.sleep(0.001)

    def isr(self, index: int = 0) -> set[int]:
        return set(self.image.topics[TOPIC].partitions[index].isr)

    def log_of(self, broker_id: int, index: int = 0) -> bytes:
        partition_log = self.stands[BrokerId(broker_id)].partition(index)
        data, offset = b"", partition_log.log_start_offset
        while offset < partition_log.log_end_offset:
            more = partition_log.read(offset, 1 << 20, below=partition_log.log_end_offset)
            for _position, header in iter_headers(more):
                offset = header.next_offset
            data += more
        return data

    def are_equal(self, partitions: int = 1) -> bool:
        """Whether all replicas have the same, and it is all committed."""
        return all(
            len({self.log_of(broker_id, index) for broker_id in self.ids}) == 1
            and all(
                self.stands[broker_id].partition(index).high_watermark
                == self.stands[broker_id].partition(index).log_end_offset
                for broker_id in self.ids
            )
            for index in range(partitions)
        )
