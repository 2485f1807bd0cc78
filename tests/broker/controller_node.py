"""An active controller without the rest of its node: the real runtime and handlers on a real metadata log.

On virtual time and a disk in memory. Requests and answers go through their bytes. How far the log is committed can be
held back; whom it can reach is a list.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable, Hashable, Mapping
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.config import BrokerConfig
from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handlers.allocate_producer_ids import AllocateProducerIdsHandler
from einmal.broker.front.handlers.alter_partition import AlterPartitionHandler
from einmal.broker.front.handlers.alter_partition_reassignments import AlterPartitionReassignmentsHandler
from einmal.broker.front.handlers.broker_heartbeat import BrokerHeartbeatHandler
from einmal.broker.front.handlers.broker_registration import BrokerRegistrationHandler
from einmal.broker.front.handlers.elect_leaders import ElectLeadersHandler
from einmal.broker.front.handlers.list_partition_reassignments import ListPartitionReassignmentsHandler
from einmal.broker.front.handlers.unregister_broker import UnregisterBrokerHandler
from einmal.broker.front.handlers.update_features import UpdateFeaturesHandler
from einmal.broker.listeners import PLAINTEXT, Audience, Endpoint, NamedListener
from einmal.broker.replicas.partition import Partition
from einmal.broker.resources.turns import Turns
from einmal.log.config import LogConfig
from einmal.log.partition_log import PartitionLog
from einmal.metadata import records
from einmal.metadata.features import SUPPORTED_FEATURES
from einmal.metadata.image import ClusterImage
from einmal.metadata.topics import NewTopic
from einmal.rpc.connection import NoAnswer
from einmal.simulation.clock import SimulatedClock
from einmal.simulation.disk import SimulatedDisk
from einmal.simulation.loop import Host
from einmal.simulation.trace import Trace
from einmal.types import BrokerId, ErrorCode, LeaderEpoch, Offset, TopicPartition
from einmal.wire.messages import Api, Q, R, RequestHeader
from einmal.wire.record_batch import decode_records, iter_headers
from tests.virtual_time import running_loop
from tests.wire.mapped import decode_response, encode_request

REGISTER, HEARTBEAT, ALTER_PARTITION, PRODUCER_IDS = 62, 63, 56, 67
ELECT, REASSIGN, LIST_REASSIGNMENTS, UPDATE_FEATURES, UNREGISTER = 43, 45, 46, 57, 64
TP = TopicPartition("__cluster_metadata", 0)

_CONTROLLER = NamedListener("CONTROLLER", Endpoint("c", 1), PLAINTEXT, Audience.CONTROLLERS, is_between_nodes=True)


class _Quorum:
    """Commits what there is, or nothing more while ``is_held``; the image follows."""

    def __init__(self, node: ControllerNode) -> None:
        self._node = node
        self.is_held = False

    def resign(self) -> None:
        """There is no other replica."""

    def local_end_moved(self, end: Offset) -> Offset:
        node = self._node
        if self.is_held:
            return node.partition.high_watermark
        log = node.partition
        while node.metadata.next_offset < end:
            batches = log.read(node.metadata.next_offset, 1 << 20, below=end)
            for position, header in iter_headers(batches):
                decoded = [records.decode(None, item.value) for item in decode_records(batches, position, header)]
                node.metadata.image.apply([record for record in decoded if record is not None])
                node.metadata.next_offset = header.next_offset
        return end


class _Connection:
    """A broker's: it can be lost."""

    def __init__(self) -> None:
        self._callbacks: dict[Hashable, Callable[[], None]] = {}

    def when_lost(self, key: Hashable, callback: Callable[[], None]) -> None:
        self._callbacks[key] = callback

    def lose(self) -> None:
        for callback in self._callbacks.values():
            callback()


class ControllerNode:
    """``reachable``: brokers that answer when they are called on."""

    def __init__(self, **settings: Any) -> None:
        self.loop = running_loop()
        self.clock = SimulatedClock(self.loop)
        self.config = BrokerConfig(node_id=1, default_replication_factor=3, min_insync_replicas=2, **settings)
        disk = SimulatedDisk(self.loop, random.Random(1), Trace()).view(Host("controller"))
        log = PartitionLog.open(disk, PurePosixPath("/data") / str(TP), TP, LogConfig(), self.clock.now())
        self.partition = Partition(log, UUID(int=1), self.clock, broker_id=BrokerId(1), flush_each=False)
        self.metadata = SimpleNamespace(image=ClusterImage(), next_offset=Offset(0))
        self.commitment = _Quorum(self)
        self.reachable: list[int] = []
        self.called_on: list[int] = []
        self.connections: dict[int, _Connection] = {}
        self.epochs: dict[int, int] = {}
        self.incarnations = 0
        metadata = cast(ClusterMetadata, self.metadata)
        self.controller = ControllerRuntime(self.config, metadata, self, self.clock, random.Random(1))

    @property
    def image(self) -> ClusterImage:
        image: ClusterImage = self.metadata.image
        return image

    # --- the quorum ----------------------------------------------------------------------------------------------

    async def lead(self, epoch: int = 1) -> None:
        self.partition.lead(self.commitment, LeaderEpoch(epoch))
        self.controller.lead(self.partition)
        for _ in range(1_000):
            if self.controller.is_active:
                return
            await asyncio.sleep(0.001)
        raise AssertionError("the controller was never loaded")

    def follow(self, epoch: int) -> None:
        self.partition.follow(BrokerId(2), LeaderEpoch(epoch))
        self.controller.resign()

    def release(self) -> None:
        self.commitment.is_held = False
        self.partition.advance(self.commitment.local_end_moved(self.partition.log_end_offset))

    async def ask(
        self,
        node_id: int,
        api: Api[Q, R],
        version: int,
        request: Q,
        *,
        timeout_ms: int,
        lane: str = "control",
    ) -> Any:
        """As peers do, where only being there counts."""
        self.called_on.append(node_id)
        if node_id not in self.reachable:
            raise NoAnswer("refused", was_sent=False) from ConnectionRefusedError()

    # --- requests ------------------------------------------------------------------------------------------------

    @property
    def _handlers(self) -> Mapping[int, Any]:
        controller = self.controller
        access = Access(None)
        handlers: tuple[Any, ...] = (
            AllocateProducerIdsHandler(access, controller),
            AlterPartitionHandler(access, controller),
            AlterPartitionReassignmentsHandler(access, controller),
            BrokerHeartbeatHandler(access, controller),
            BrokerRegistrationHandler(access, controller, cast(Any, SimpleNamespace(cluster_id="cluster"))),
            ElectLeadersHandler(access, controller),
            ListPartitionReassignmentsHandler(access, controller),
            UnregisterBrokerHandler(access, controller),
            UpdateFeaturesHandler(access, controller),
        )
        return {handler.api.key: handler for handler in handlers}

    async def call(self, api_key: int, version: int, fields: Mapping[str, Any], connection: Any = None) -> Any:
        """Ask the controller, through the bytes of the request and of its answer."""
        handler = self._handlers[api_key]
        request = handler.api.decode_request(version, encode_request(api_key, version, fields), 0)
        header = RequestHeader(api_key, version, 0, "test")
        context = RequestContext(header, "test", Turns(self.clock), _CONTROLLER, origin=connection)
        result = handler.handle(context, request)
        if inspect.iscoroutine(result):
            result = await result
        return decode_response(api_key, version, handler.api.encode_response(version, result), 0)

    async def register(self, number: int, version: int = 4, **fields: Any) -> Any:
        self.incarnations += 1
        request = {
            "broker_id": number,
            "cluster_id": "cluster",
            "incarnation_id": UUID(int=self.incarnations),
            "listeners": [{"name": "PLAINTEXT", "host": "h", "port": 9_000 + number, "security_protocol": 0}],
            "features": [
                {
                    "name": feature.name,
                    "min_supported_version": feature.min_supported_version,
                    "max_supported_version": feature.max_supported_version,
                }
                for feature in SUPPORTED_FEATURES
            ],
            "rack": None,
            "log_dirs": [UUID(int=100 + number)],
            "previous_broker_epoch": -1,
            **fields,
        }
        answer = await self.call(REGISTER, version, request)
        if answer.error_code is ErrorCode.none:
            self.epochs[number] = answer.broker_epoch
        return answer

    async def beat(self, number: int, **fields: Any) -> Any:
        request = {
            "broker_id": number,
            "broker_epoch": self.epochs[number],
            "current_metadata_offset": self.metadata.next_offset - 1,
            "want_fence": False,
            "want_shut_down": False,
            **fields,
        }
        connection = self.connections.setdefault(number, _Connection())
        return await self.call(HEARTBEAT, 1, request, connection)

    async def join(self, *numbers: int) -> None:
        for number in numbers:
            assert (await self.register(number)).error_code is ErrorCode.none
            assert not (await self.beat(number)).is_fenced

    async def create(self, name: str, *replicas: tuple[int, ...]) -> UUID:
        topic = NewTopic(
            name=name,
            topic_id=UUID(int=7_000 + self.partition.log_end_offset),
            assignments=list(enumerate(replicas)),
        )
        results = await self.controller.submit(lambda shard, _: shard.create_topics([topic]))
        assert not isinstance(results, ErrorCode)
        assert results[0].error is ErrorCode.none
        return topic.topic_id
