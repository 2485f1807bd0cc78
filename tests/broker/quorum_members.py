"""Members of the metadata quorum without the rest of their nodes: the real runtime, log, files and handlers.

They run on the simulator's loop and disks and speak real bytes to each other, over links that can be cut. In place of
the controller and of the cluster's metadata stands what notes that it was called.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, cast

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.config import BrokerConfig
from einmal.broker.control.quorum_runtime import QuorumRuntime
from einmal.broker.control.quorum_storage import QuorumStorage
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handlers.begin_quorum_epoch import BeginQuorumEpochHandler
from einmal.broker.front.handlers.describe_quorum import DescribeQuorumHandler
from einmal.broker.front.handlers.end_quorum_epoch import EndQuorumEpochHandler
from einmal.broker.front.handlers.fetch_snapshot import FetchSnapshotHandler
from einmal.broker.front.handlers.vote import VoteHandler
from einmal.broker.identity import Identity
from einmal.broker.listeners import PLAINTEXT, Audience, Endpoint, NamedListener
from einmal.broker.replicas.partition import Partition
from einmal.broker.replicas.partitions import Partitions
from einmal.broker.resources.turns import Turns
from einmal.broker.rpc.peers import Peers
from einmal.log.producer_state import AppendOrigin
from einmal.metadata import records
from einmal.metadata.image import ClusterImage
from einmal.metadata.records import FeatureLevelRecord
from einmal.rpc.connection import Answer, NoAnswer
from einmal.simulation.clock import SimulatedClock
from einmal.simulation.disk import SimulatedDisk
from einmal.simulation.loop import Host
from einmal.simulation.trace import Trace
from einmal.types import Offset
from einmal.wire import fetch
from einmal.wire.messages import Api, Q, R, RequestHeader
from einmal.wire.record_batch import NewRecord, encode_batch
from tests.virtual_time import running_loop
from tests.wire.mapped import decode_response, encode_request

HANDLERS: dict[int, Callable[[Access, QuorumRuntime], Any]] = {
    handler.api.key: handler
    for handler in (VoteHandler, BeginQuorumEpochHandler, EndQuorumEpochHandler, FetchSnapshotHandler)
}
FETCH = 1
_CONTROLLER = NamedListener("CONTROLLER", Endpoint("c", 1), PLAINTEXT, Audience.CONTROLLERS, is_between_nodes=True)


class NotedMetadata:
    """The image, and up to where it was published."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self.next_offset = Offset(0)

    def committed(self, records: Sequence[Any], next_offset: Offset) -> None:
        self.image.apply(records)
        self.next_offset = next_offset

    def load_snapshot(self, loaded: Sequence[Any], end_offset: Offset, epoch: int) -> None:
        self.image = ClusterImage()
        self.image.apply(loaded)
        self.next_offset = end_offset


class NotedController:
    def __init__(self) -> None:
        self.epoch: int | None = None

    def lead(self, partition: Partition) -> None:
        assert self.epoch is None
        self.epoch = partition.leader_epoch

    def resign(self) -> None:
        assert self.epoch is not None
        self.epoch = None


class Member:
    """A node with nothing but its member of the quorum."""

    def __init__(self, world: Quorum, node_id: int, host: Host) -> None:
        self.world = world
        self.host = host
        self.config = world.config(node_id)
        self.clock = SimulatedClock(world.loop)
        self.disk = world.disks[node_id].view(host)
        self.random = random.Random(f"{world.seed}/{node_id}/{world.starts}")
        directory = self.config.directory
        self.disk.make_directory(directory)
        self.disk.sync_directory(directory.parent)
        self.partitions = Partitions(self.config, directory, self.disk, self.clock)
        self.metadata = NotedMetadata()
        self.controller = NotedController()
        storage = QuorumStorage(self.config, Identity(node_id, "quorum"), self.partitions, self.disk)
        self.quorum = QuorumRuntime(
            self.config,
            storage,
            cast(ClusterMetadata, self.metadata),
            self.controller,
            cast(Peers, self),
            self.clock,
            self.random,
        )

    @property
    def node_id(self) -> int:
        return self.quorum.node_id

    def append(self, name: str, level: int = 1) -> Offset:
        """As the controller does; the record's offset."""
        record = records.encode(FeatureLevelRecord(name, level))
        batch = encode_batch([NewRecord(*record, 0)])
        append = self.quorum.partition.append
        # What follows from it, such as a flush, is this machine's and dies with it.
        context = self.host.context.copy()
        result = context.run(append, bytearray(batch), self.clock.now(), AppendOrigin.COORDINATOR)
        assert not result.error, result
        return result.last_offset

    # --- peers ---------------------------------------------------------------------------------------------------

    async def ask(self, node_id: int, api: Api[Q, R], version: int, request: Q, *, timeout_ms: int, lane: str) -> R:
        body = api.encode_request(version, request)
        answer = await self.exchange(node_id, api.key, version, [body], timeout_ms=timeout_ms, lane=lane)
        return api.decode_response(version, answer.frame, answer.position)

    async def exchange(
        self, node_id: int, api_key: int, version: int, body: Sequence[Any], *, timeout_ms: int, lane: str
    ) -> Answer:
        return await self.world.exchange(self, node_id, api_key, version, b"".join(body), timeout_ms)


class Quorum:
    """The machines, and the links between them."""

    def __init__(self, seed: int = 0, voters: int = 3, observers: int = 0, **settings: Any) -> None:
        self.seed = seed
        self.source = random.Random(seed)
        self.loop = running_loop()
        self.voters = tuple(range(1, voters + 1))
        self.settings = settings
        self.ids = tuple(range(1, voters + observers + 1))
        trace = Trace(keep=False)
        self.disks = {n: SimulatedDisk(self.loop, random.Random(f"{seed}/disk {n}"), trace) for n in self.ids}
        self.members: dict[int, Member] = {}
        self.cut: set[tuple[int, int]] = set()
        self.starts = 0
        self._asked: list[tuple[int, int, asyncio.Future[bytes]]] = []

    def config(self, node_id: int) -> BrokerConfig:
        voters = ",".join(f"{voter}@node:{9000 + voter}" for voter in self.voters) if len(self.ids) > 1 else ""
        return BrokerConfig(node_id=node_id, log_dirs="/data", controller_quorum_voters=voters, **self.settings)

    # --- machines ------------------------------------------------------------------------------------------------

    async def start(self, *node_ids: int) -> None:
        for node_id in node_ids or self.ids:
            self.starts += 1
            host = Host(f"node {node_id}")
            context = host.context.copy()
            member = context.run(Member, self, node_id, host)
            self.members[node_id] = member
            await self.loop.create_task(_start(member), context=context)

    def kill(self, node_id: int, *, power_cut: bool = False) -> None:
        member = self.members.pop(node_id)
        self.loop.kill(member.host)
        if power_cut:
            self.disks[node_id].cut_power()
        self._break({(node_id, other) for other in self.ids} | {(other, node_id) for other in self.ids})

    async def stop(self, node_id: int) -> None:
        member = self.members[node_id]

        async def stop() -> None:
            await member.quorum.stop()
            await member.partitions.close()

        await self.loop.create_task(stop(), context=member.host.context.copy())
        self.kill(node_id)

    def _break(self, links: set[tuple[int, int]]) -> None:
        for source, target, answer in list(self._asked):
            if (source, target) in links and not answer.done():
                answer.set_exception(NoAnswer("gone", was_sent=True))

    async def exchange(
        self, asker: Member, node_id: int, api_key: int, version: int, body: bytes, timeout_ms: int
    ) -> Answer:
        await asyncio.sleep(self.source.uniform(0.0001, 0.002))
        if node_id not in self.members and (asker.node_id, node_id) not in self.cut:
            raise NoAnswer("refused", was_sent=False)
        answer: asyncio.Future[bytes] = self.loop.create_future()
        asked = (asker.node_id, node_id, answer)
        self._asked.append(asked)
        member = self.members.get(node_id)
        if member is not None and (asker.node_id, node_id) not in self.cut:
            self.loop.call_soon(self._serve, member, asked, api_key, version, body, context=member.host.context.copy())
        timer = self.loop.call_later(timeout_ms / 1000, self._break, {asked[:2]})
        try:
            frame = await answer
        finally:
            timer.cancel()
            self._asked.remove(asked)
        await asyncio.sleep(self.source.uniform(0.0001, 0.002))
        return Answer(frame, 0)

    def _serve(
        self, member: Member, asked: tuple[int, int, asyncio.Future[bytes]], api_key: int, version: int, body: bytes
    ) -> None:
        def done(result: Any) -> None:
            if (asked[1], asked[0]) in self.cut or asked[2].done():
                return
            asked[2].set_result(b"".join(result) if api_key == FETCH else handler.api.encode_response(version, result))

        header = RequestHeader(api_key, version, 0, None)
        context = RequestContext(header, "member", Turns(member.clock), _CONTROLLER)
        handler: Any = None
        if api_key == FETCH:
            asked_for = fetch.decode_fetch_request(version, body, 0)
            result: Any = member.quorum.handle_fetch(version, asked_for, is_from_member=True)
        else:
            handler = HANDLERS[api_key](Access(None), member.quorum)
            result = handler.handle(context, handler.api.decode_request(version, body, 0))
        if isinstance(result, asyncio.Future):
            result.add_done_callback(lambda body: None if body.cancelled() else done(body.result()))
        else:
            done(result)

    # --- what is so ------------------------------------------------------------------------------------------------

    @property
    def leader(self) -> Member | None:
        leaders = [member for member in self.members.values() if member.quorum.is_leader]
        return max(leaders, key=lambda member: member.quorum.leader_epoch, default=None)

    def is_settled(self) -> bool:
        """Everybody follows the leader."""
        leader = self.leader
        return leader is not None and all(
            (m.quorum.leader_id, m.quorum.leader_epoch) == (leader.node_id, leader.quorum.leader_epoch)
            for m in self.members.values()
        )

    async def settled(self, seconds: float = 10.0) -> Member:
        await self.until(self.is_settled, seconds)
        assert self.leader is not None
        return self.leader

    async def until(self, reached: Any, seconds: float = 10.0) -> None:
        end = self.loop.time() + seconds
        while not reached():
            assert self.loop.time() < end, f"not within {seconds} s"
            await asyncio.sleep(0.001)

    async def committed_everywhere(self, offset: Offset, seconds: float = 10.0) -> None:
        await self.until(lambda: all(m.metadata.next_offset > offset for m in self.members.values()), seconds)

    async def describe(self, member: Member) -> Any:
        request = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}
        context = RequestContext(RequestHeader(55, 2, 0, None), "member", Turns(member.clock))
        handler = DescribeQuorumHandler(Access(None), member.quorum, member.clock)
        asked = handler.api.decode_request(2, encode_request(55, 2, request), 0)
        answer = handler.api.encode_response(2, await handler.handle(context, asked))
        return decode_response(55, 2, answer, 0).topics[0].partitions[0]


async def _start(member: Member) -> None:
    await member.quorum.load()
    await member.quorum.start()
