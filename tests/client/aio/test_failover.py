"""Claims about a leader that moves: what scripted brokers answer, and where the client goes.

Two brokers know the same cluster. Which of them leads, coordinates, answers or keeps silent is up to each test.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from einmal.client.aio import Consumer, Producer
from einmal.client.aio.network import overdue
from einmal.client.aio.network.cluster import Cluster
from einmal.client.aio.network.coordinators import TRANSACTION
from einmal.client.aio.producing.transaction_requests import TransactionRequests
from einmal.client.apis import ApiKey
from einmal.client.config import AdminSettings, parse
from einmal.client.errors import AbortableError, KafkaError, UnknownOutcome
from einmal.rpc import connection as client_connection
from einmal.seams import SystemClock, TcpNetwork
from einmal.types import (
    ErrorCode,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)
from einmal.wire.fetch import FetchedPartition, FetchResponse, decode_fetch_request, encode_fetch_response
from einmal.wire.frames import frame
from einmal.wire.messages import RequestHeader, decode_request_header, encode_response_header
from einmal.wire.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    ProducedPartition,
    ProduceResponse,
    decode_produce_request,
    encode_produce_response,
)
from einmal.wire.record_batch import NewRecord, encode_batch, read_header
from tests.client.aio.scripted_broker import ScriptedBroker, Session
from tests.suite.patience import patient

TOPIC_ID = UUID(int=77)
T0 = TopicPartition("t", 0)
QUICK = {"retry.backoff.ms": 10, "reconnect.backoff.ms": 5, "request.timeout.ms": 1_000_000}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who does not answer is silent after a moment instead of a second."""
    for module in (client_connection, overdue):
        monkeypatch.setattr(module, "PATIENCE_S", 0.1)


@dataclass
class World:
    """What the two brokers answer. ``leaders``: by partition, node and epoch; ``silent``: who answers nothing."""

    brokers: dict[int, ScriptedBroker] = field(default_factory=dict)
    leaders: dict[int, tuple[int, int]] = field(default_factory=lambda: {0: (1, 0)})
    told: dict[int, tuple[int, int]] | None = None
    """Leaders in Metadata responses, if these are behind the truth."""
    coordinator: int = 1
    silent: set[int] = field(default_factory=set)
    points: bool = False
    """Whether a broker that does not lead returns the leader (KIP-951)."""
    appended: list[tuple[int, int, int]] = field(default_factory=list)
    """Node, partition, base sequence."""
    ends: dict[int, int] = field(default_factory=dict)
    codes: list[ErrorCode | None] = field(default_factory=list)
    """What EndTxn is answered, in turn; None: hang up."""
    refusals: dict[int, ErrorCode] = field(default_factory=dict)
    """What Produce to a partition is answered."""
    fetched: list[tuple[int, int]] = field(default_factory=list)
    """Node and offset."""
    asked_epochs: list[int] = field(default_factory=list)
    log: bytes = b""
    epoch_end: int = 0

    def of(self, node_id: int) -> Callable[[Session, RequestHeader, bytes], None]:
        return lambda session, header, request: self.answer(node_id, session, header, request)

    def answer(self, node_id: int, session: Session, header: RequestHeader, request: bytes) -> None:
        if node_id in self.silent:
            return
        match header.api_key:
            case ApiKey.METADATA:
                session.answer(header, self.metadata())
            case ApiKey.FIND_COORDINATOR:
                host, port = self.brokers[self.coordinator].bootstrap.split(":")
                found = {"key": "id", "node_id": self.coordinator, "host": host, "port": int(port)}
                session.answer(header, {"coordinators": [found]})
            case ApiKey.INIT_PRODUCER_ID:
                session.answer(header, {"producer_id": 7, "producer_epoch": 0})
            case ApiKey.ADD_PARTITIONS_TO_TXN:
                results = [{"partition_index": index} for index in self.leaders]
                session.answer(
                    header, {"results_by_topic_v3_and_below": [{"name": "t", "results_by_partition": results}]}
                )
            case ApiKey.PRODUCE:
                self.produce(node_id, session, header, request)
            case ApiKey.FETCH:
                self.fetch(node_id, session, header, request)
            case ApiKey.LIST_OFFSETS:
                partition = {"partition_index": 0, "offset": 0, "leader_epoch": 0}
                session.answer(header, {"topics": [{"name": "t", "partitions": [partition]}]})
            case ApiKey.OFFSET_FOR_LEADER_EPOCH:
                self.asked_epochs.append(node_id)
                partition = {"partition": 0, "leader_epoch": 0, "end_offset": self.epoch_end}
                session.answer(header, {"topics": [{"topic": "t", "partitions": [partition]}]})
            case ApiKey.END_TXN:
                code = self.codes.pop(0) if self.codes else ErrorCode.none
                if code is None:
                    session.transport.close()
                else:
                    session.answer(header, {"error_code": code, "producer_id": 7, "producer_epoch": 1})
            case _:
                raise AssertionError(header)

    def metadata(self) -> dict[str, Any]:
        brokers = []
        for node_id, broker in self.brokers.items():
            host, port = broker.bootstrap.split(":")
            brokers.append({"node_id": node_id, "host": host, "port": int(port)})
        partitions = [
            {"partition_index": index, "leader_id": node_id, "leader_epoch": epoch, "replica_nodes": [1, 2]}
            for index, (node_id, epoch) in (self.told or self.leaders).items()
        ]
        topics = [{"name": "t", "topic_id": TOPIC_ID, "partitions": partitions}]
        return {"brokers": brokers, "controller_id": 1, "topics": topics}

    def hint(self, partition: int) -> tuple[LeaderIdAndEpoch | None, list[NodeEndpoint]]:
        if not self.points:
            return None, []
        leader = LeaderIdAndEpoch(*self.leaders[partition])
        host, port = self.brokers[leader.leader_id].bootstrap.split(":")
        return leader, [NodeEndpoint(leader.leader_id, host, int(port))]

    def produce(self, node_id: int, session: Session, header: RequestHeader, request: bytes) -> None:
        _header, position = decode_request_header(request)
        asked = decode_produce_request(header.api_version, request, position)
        answers: list[ProducedPartition] = []
        endpoints: list[NodeEndpoint] = []
        # One topic, called as the request calls it: by its name or by its id.
        ((topic, partitions),) = asked.topics
        for index, records in partitions:
            assert records is not None
            leads = self.leaders[index][0] == node_id
            code = self.refusals.get(index, ErrorCode.none) if leads else ErrorCode.not_leader_or_follower
            leader = None
            if not leads:
                leader, endpoints = self.hint(index)
            offset = self.ends.get(index, 0)
            if code is ErrorCode.none:
                batch = read_header(bytes(records))
                self.appended.append((node_id, index, batch.base_sequence))
                self.ends[index] = offset + batch.last_offset_delta + 1
            answers.append(ProducedPartition(index, code, offset, current_leader=leader))
        response = ProduceResponse([(topic, answers)], node_endpoints=endpoints)
        self.reply(session, header, [encode_produce_response(header.api_version, response)])

    def fetch(self, node_id: int, session: Session, header: RequestHeader, request: bytes) -> None:
        _header, position = decode_request_header(request)
        asked = decode_fetch_request(header.api_version, request, position)
        ((_topic, (partition,)),) = asked.topics
        self.fetched.append((node_id, partition.fetch_offset))
        if self.leaders[0][0] != node_id:
            leader, endpoints = self.hint(0)
            answer = FetchedPartition(0, ErrorCode.not_leader_or_follower, current_leader=leader)
        elif partition.fetch_offset == 0:
            end = read_header(self.log).next_offset
            endpoints, answer = [], FetchedPartition(0, ErrorCode.none, end, end, 0, [], self.log)
        else:
            return
        response = FetchResponse([(TOPIC_ID, [answer])], node_endpoints=endpoints)
        self.reply(session, header, encode_fetch_response(header.api_version, response))

    @staticmethod
    def reply(session: Session, header: RequestHeader, body: Any) -> None:
        head = encode_response_header(header.api_key, header.api_version, header.correlation_id)
        session.transport.write(frame(head, *body))

    def requests(self, api_key: ApiKey) -> int:
        return sum(each.api_key == api_key for broker in self.brokers.values() for each in broker.requests)


@asynccontextmanager
async def brokers_of(world: World, *, dead_first: bool = False) -> AsyncIterator[str]:
    """Their bootstrap addresses; ``dead_first``: those of nobody before them."""
    async with asyncio.timeout(patient(15)), ScriptedBroker(world.of(1)) as one, ScriptedBroker(world.of(2)) as two:
        world.brokers = {1: one, 2: two}
        known = f"{one.bootstrap},{two.bootstrap}"
        yield f"127.0.0.1:1,localhost:1,{known}" if dead_first else known


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - the broker's side has no event for everything.
        await asyncio.sleep(0.005)


# --- producing -----------------------------------------------------------------------------------------------------


async def test_a_broker_that_points_to_the_leader_spares_the_look_at_the_metadata() -> None:
    world = World(points=True)
    async with (
        brokers_of(world) as bootstrap,
        Producer(QUICK, bootstrap_servers=bootstrap, linger_ms=0) as producer,
    ):
        await producer.send("t", b"a", partition=0)
        asked = world.requests(ApiKey.METADATA)
        world.leaders, world.told = {0: (2, 1)}, {0: (1, 0)}
        await producer.send("t", b"b", partition=0)
        assert world.appended == [(1, 0, 0), (2, 0, 1)]
        assert world.requests(ApiKey.METADATA) == asked


async def test_what_was_on_its_way_to_the_former_leader_is_written_by_the_next_in_order_and_once() -> None:
    world = World()
    async with (
        brokers_of(world) as bootstrap,
        Producer(QUICK, bootstrap_servers=bootstrap, linger_ms=0, batch_size=0) as producer,
    ):
        await producer.send("t", b"first", partition=0)
        world.silent.add(1)
        futures = [producer.send("t", b"%d" % number, partition=0) for number in range(7)]
        await until(lambda: len(world.brokers[1].requests) > 5)
        world.leaders = {0: (2, 1)}
        for session in world.brokers[1].sessions:
            session.transport.abort()
        await asyncio.gather(*futures)
        assert world.appended == [(1, 0, 0), *((2, 0, number + 1) for number in range(7))]


async def test_a_leader_that_falls_silent_is_left_once_another_one_leads() -> None:
    world = World()
    async with (
        brokers_of(world) as bootstrap,
        Producer(QUICK, bootstrap_servers=bootstrap, linger_ms=0) as producer,
    ):
        await producer.send("t", b"a", partition=0)
        world.silent.add(1)
        second = producer.send("t", b"b", partition=0)
        world.leaders = {0: (2, 1)}
        async with asyncio.timeout(patient(5)):
            await second
        assert world.appended[-1] == (2, 0, 1)


async def test_a_transaction_of_which_one_record_is_refused_flushes_at_once() -> None:
    # Its remaining records are not sent any more: flush() must not wait for them until delivery.timeout.ms.
    world = World(leaders={0: (1, 0), 1: (2, 0)}, coordinator=2, refusals={1: ErrorCode.invalid_txn_state})
    async with (
        brokers_of(world) as bootstrap,
        Producer(QUICK, bootstrap_servers=bootstrap, transactional_id="id", linger_ms=0) as producer,
    ):
        await producer.init_transactions()
        producer.begin_transaction()
        await producer.send("t", b"first", partition=0)
        world.silent.add(1)
        kept = producer.send("t", b"a", partition=0)
        refused = producer.send("t", b"b", partition=1)
        await until(refused.done)
        later = producer._outbox.core.unsettled()
        assert [batch.topic_partition.partition for batch in later] == [0]
        for session in world.brokers[1].sessions:
            session.transport.abort()
        async with asyncio.timeout(patient(5)):
            await producer.flush()
        assert kept.done()
        world.silent.clear()
        with pytest.raises(AbortableError):
            await producer.commit_transaction()
        await producer.abort_transaction()


# --- consuming -----------------------------------------------------------------------------------------------------


def a_log() -> bytes:
    """Two records of leader epoch 0."""
    batch = bytearray(encode_batch([NewRecord(None, b"a", 1_000), NewRecord(None, b"b", 1_000)]))
    batch[12:16] = bytes(4)
    return bytes(batch)


@pytest.mark.parametrize("points", [True, False])
async def test_a_consumer_resumes_at_the_new_leader_where_the_former_one_ended(points: bool) -> None:
    world = World(points=points, log=a_log(), epoch_end=2)
    async with (
        brokers_of(world) as bootstrap,
        Consumer(QUICK, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign([T0])
        assert [record.value for record in await consumer.poll(60_000)] == [b"a", b"b"]
        world.leaders = {0: (2, 1)}
        for session in world.brokers[1].sessions:
            session.transport.abort()
        while (2, 2) not in world.fetched:
            assert await consumer.poll(20) == []
        assert world.asked_epochs == [2]


async def test_a_consumer_leaves_a_leader_that_does_not_answer_once_another_one_leads() -> None:
    world = World(log=a_log(), epoch_end=2)
    async with (
        brokers_of(world) as bootstrap,
        Consumer(QUICK, bootstrap_servers=bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=10) as consumer,
    ):
        consumer.assign([T0])
        assert len(await consumer.poll(60_000)) == 2
        world.silent.add(1)
        world.leaders = {0: (2, 1)}
        async with asyncio.timeout(patient(6)):
            while (2, 2) not in world.fetched:
                assert await consumer.poll(20) == []


async def test_a_log_that_was_cut_off_is_not_read_on_as_if_nothing_had_happened() -> None:
    world = World(log=a_log(), epoch_end=1)
    async with (
        brokers_of(world) as bootstrap,
        Consumer(QUICK, bootstrap_servers=bootstrap, auto_offset_reset="none") as consumer,
    ):
        consumer.assign([T0])
        consumer.seek(T0, 0)
        assert len(await consumer.poll(60_000)) == 2
        world.leaders = {0: (2, 1)}
        for session in world.brokers[1].sessions:
            session.transport.abort()
        with pytest.raises(KafkaError, match="t-0 ends at 1"):
            while True:
                await consumer.poll(20)
        assert (2, 2) not in world.fetched


# --- asking --------------------------------------------------------------------------------------------------------


def a_cluster(bootstrap: str, **settings: Any) -> Cluster:
    told = parse(AdminSettings, {**QUICK, "bootstrap.servers": bootstrap}, settings)
    return Cluster(told, network=TcpNetwork(), clock=SystemClock(), source=random.Random(1))


async def test_dead_entries_of_the_bootstrap_list_are_passed_over() -> None:
    world = World()
    async with brokers_of(world, dead_first=True) as bootstrap:
        cluster = a_cluster(bootstrap)
        await cluster.refresh_metadata(["t"])
        assert sorted(cluster.metadata.brokers) == [1, 2]
        await cluster.close()


async def test_a_question_that_one_broker_does_not_answer_is_put_to_another() -> None:
    world = World(silent={1})
    async with brokers_of(world) as bootstrap:
        cluster = a_cluster(bootstrap)
        async with asyncio.timeout(patient(5)):
            await cluster.refresh_metadata(["t"])
        await cluster.close()


@pytest.mark.parametrize(("strategy", "finds"), [("rebootstrap", True), ("none", False)])
async def test_where_no_known_broker_can_be_reached_bootstrap_servers_are_asked_again(
    strategy: str, finds: bool
) -> None:
    world = World()
    async with brokers_of(world) as bootstrap:
        cluster = a_cluster(bootstrap, metadata_recovery_strategy=strategy)
        known = world.metadata()
        for broker in known["brokers"]:
            broker["port"] = 1
        world.metadata = lambda: known  # type: ignore[method-assign]
        await cluster.refresh_metadata(["t"])
        del world.metadata
        for broker in world.brokers.values():
            for session in broker.sessions:
                session.transport.abort()
        await until(lambda: not any(each.is_open for each in cluster._connections._open.values()))
        if finds:
            await cluster.refresh_metadata(["t"])
        else:
            with pytest.raises(KafkaError):
                await cluster.refresh_metadata(["t"])
        await cluster.close()


async def test_while_nothing_changes_metadata_requests_become_less_frequent() -> None:
    world = World()
    async with brokers_of(world) as bootstrap:
        cluster = a_cluster(bootstrap)
        cluster.want_topic("t", may_create=False)
        began = cluster.now_ms()
        # A machine that stands still for a while makes fewer requests in the time, never more.
        while cluster.now_ms() - began < 300 or world.requests(ApiKey.METADATA) <= 3:
            await cluster.refresh_soon()
        assert world.requests(ApiKey.METADATA) < 25
        await cluster.close()


def end_txn(cluster: Cluster) -> Awaitable[Any]:
    requests = TransactionRequests(cluster, "id", timeout_ms=60_000, max_block_ms=1_000_000)
    identity = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(0))
    return requests.end_txn(identity, TransactionVersion.TV_2, committed=True)


async def test_a_commit_that_a_deposed_coordinator_refused_and_its_successor_too_is_of_unknown_outcome() -> None:
    # The first may have written its decision, and the second may have found it.
    world = World(codes=[ErrorCode.not_coordinator, ErrorCode.producer_fenced])
    async with brokers_of(world) as bootstrap:
        cluster = a_cluster(bootstrap)
        with pytest.raises(UnknownOutcome):
            await end_txn(cluster)
        await cluster.close()


async def test_a_coordinator_that_falls_silent_is_left_once_another_broker_coordinates() -> None:
    world = World()
    async with brokers_of(world) as bootstrap:
        cluster = a_cluster(bootstrap)
        assert await cluster.coordinators.find(TRANSACTION, "id", deadline=cluster.deadline()) == 1
        world.silent.add(1)
        world.coordinator = 2
        async with asyncio.timeout(patient(6)):
            await end_txn(cluster)
        await cluster.close()
