"""Produce, Fetch, ListOffsets and DeleteRecords where a partition has three replicas."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from einmal.broker.front.handlers import delete_records
from einmal.replication.leader import Leader
from einmal.rpc.connection import NoAnswer
from einmal.types import BrokerId, ErrorCode, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from einmal.wire.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    decode_fetch_response,
    encode_fetch_request,
)
from einmal.wire.produce import (
    ProducedPartition,
    ProduceRequest,
    ProduceResponse,
    decode_produce_response,
    encode_produce_request,
)
from tests.broker.nodes import batch
from tests.broker.three_nodes import IDS, ThreeNodes
from tests.virtual_time import virtual_time
from tests.wire.mapped import APIS, request_of

T0 = TopicPartition("t", 0)
PRODUCE, FETCH, LIST_OFFSETS, DELETE_RECORDS = 0, 1, 2, 21
LATEST, EARLIEST = -1, -2
PRODUCER = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(0))


class Cluster(ThreeNodes):
    """Three nodes, and a client that is no node: it asks through another node's connections."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"num_partitions": 1, "replica_lag_time_max_ms": 2_000, **settings})

    async def exchange(self, number: int, api_key: int, version: int, body: list[Any], asker: int | None = None) -> Any:
        if asker is None:
            asker = next(each for each in self.nodes if each != number and not self.hosts[each].is_paused)
        peers = self.nodes[asker].peers
        return await self.on(
            asker, peers.exchange(number, api_key, version, body, timeout_ms=30_000, lane=f"client-{api_key}")
        )

    async def ask(self, number: int, api_key: int, version: int, fields: dict[str, Any], **options: Any) -> Any:
        asker = next(each for each in self.nodes if each != number and not self.hosts[each].is_paused)
        peers, request = self.nodes[asker].peers, request_of(api_key, fields)
        options = {"timeout_ms": 30_000, **options}
        return await self.on(asker, peers.ask(number, APIS[api_key], version, request, **options))

    async def produce_at(
        self, number: int, *values: bytes, acks: int = -1, timeout_ms: int = 5_000, version: int = 11
    ) -> ProduceResponse:
        request = ProduceRequest(None, acks, timeout_ms, [("t", [(0, batch(*values))])])
        answer = await self.exchange(number, PRODUCE, version, encode_produce_request(version, request))
        return decode_produce_response(version, answer.frame, answer.position)

    async def produce(self, number: int, *values: bytes, **options: Any) -> ProducedPartition:
        response = await self.produce_at(number, *values, **options)
        return response.topics[0][1][0]

    async def produce_sequence(self, number: int, asker: int, sequence: int) -> ProducedPartition:
        """A batch of an idempotent producer, on the connections of one node."""
        version = 11
        records = batch(b"%d" % sequence, producer=PRODUCER, sequence=sequence)
        body = encode_produce_request(version, ProduceRequest(None, -1, 5_000, [("t", [(0, records)])]))
        answer = await self.exchange(number, PRODUCE, version, body, asker)
        return decode_produce_response(version, answer.frame, answer.position).topics[0][1][0]

    async def fetch_at(self, number: int, offset: int, **fields: Any) -> FetchResponse:
        version = 17
        topic_id = self.nodes[number].metadata.image.topics["t"].topic_id
        topics = [(topic_id, [FetchPartition(0, offset, 1 << 20)])]
        request = FetchRequest(
            **{"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0, **fields}, topics=topics
        )
        answer = await self.exchange(number, FETCH, version, [encode_fetch_request(version, request)])
        return decode_fetch_response(version, answer.frame, answer.position)

    async def fetch(self, number: int, offset: int, **fields: Any) -> FetchedPartition:
        response = await self.fetch_at(number, offset, **fields)
        return response.topics[0][1][0]

    async def list_offset(self, number: int, timestamp: int) -> tuple[ErrorCode, int]:
        partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
        topics = [{"name": "t", "partitions": [partition]}]
        answer = await self.ask(number, LIST_OFFSETS, 6, {"replica_id": -1, "isolation_level": 0, "topics": topics})
        found = answer.topics[0].partitions[0]
        return found.error_code, found.offset

    async def leader_and_followers(self) -> tuple[int, list[int]]:
        leader = await self.led(T0)
        return leader, [number for number in self.nodes if number != leader]


async def started(**settings: Any) -> Cluster:
    cluster = Cluster(**settings)
    await cluster.start()
    await cluster.make_topic("t")
    return cluster


@virtual_time
async def test_a_follower_returns_the_leader_and_its_endpoint() -> None:
    cluster = await started()
    leader, followers = await cluster.leader_and_followers()
    for number in followers:
        response = await cluster.produce_at(number, b"a")
        refused = response.topics[0][1][0]
        assert refused.error_code is ErrorCode.not_leader_or_follower
        assert refused.current_leader is not None
        assert refused.current_leader.leader_id == leader
        assert [(each.node_id, each.host) for each in response.node_endpoints] == [(leader, f"b{leader}")]
        answer = await cluster.fetch_at(number, 0)
        fetched = answer.topics[0][1][0]
        assert fetched.error_code is ErrorCode.not_leader_or_follower
        assert fetched.current_leader == refused.current_leader
        assert answer.node_endpoints == response.node_endpoints
        assert (await cluster.list_offset(number, LATEST))[0] is ErrorCode.not_leader_or_follower


@virtual_time
async def test_batches_behind_a_refused_one_are_refused_even_by_a_new_leader() -> None:
    """The client asks who is to lead before that one knows it. A gap would make librdkafka raise its epoch.

    Then it would send again, as another producer, what the first leader has written and nobody has acknowledged.
    """
    cluster = await started()
    leader, followers = await cluster.leader_and_followers()
    assert (await cluster.produce_sequence(leader, followers[0], 0)).error_code is ErrorCode.none
    for number, asker in (followers, followers[::-1]):
        for sequence in (0, 1):
            refused = await cluster.produce_sequence(number, asker, sequence)
            assert refused.error_code is ErrorCode.not_leader_or_follower
    cluster.crash(leader)
    leader = await cluster.led(T0)
    partition = cluster.nodes[leader].partitions.get(T0)
    assert partition is not None
    await cluster.until(lambda: partition.is_leader)
    asker = next(number for number in followers if number != leader)
    for sequence in (2, 3):
        refused = await cluster.produce_sequence(leader, asker, sequence)
        assert refused.error_code is ErrorCode.not_leader_or_follower
    answers = [await cluster.produce_sequence(leader, asker, sequence) for sequence in range(4)]
    assert [(answer.error_code, answer.base_offset) for answer in answers] == [
        (ErrorCode.none, offset) for offset in range(4)
    ]


@virtual_time
async def test_old_versions_are_refused_without_a_hint() -> None:
    cluster = await started()
    _leader, followers = await cluster.leader_and_followers()
    response = await cluster.produce_at(followers[0], b"a", version=9)
    assert response.topics[0][1][0].error_code is ErrorCode.not_leader_or_follower
    assert not response.node_endpoints


@virtual_time
async def test_acks_1_waits_for_no_replica_and_acks_all_for_the_in_sync_ones() -> None:
    cluster = await started()
    leader, followers = await cluster.leader_and_followers()
    assert (await cluster.produce(leader, b"a")).error_code is ErrorCode.none
    for number in followers:
        cluster.pause(number)
    partition = cluster.nodes[leader].partitions.get(T0)
    assert partition is not None
    appended = partition.append(bytearray(batch(b"b")), cluster.clock.now())
    assert partition.is_written(appended.last_offset)
    assert not partition.is_committed(appended.last_offset)
    for number in followers:
        cluster.resume(number)
    await cluster.until(lambda: partition.is_committed(appended.last_offset))


@virtual_time
async def test_a_fetch_with_a_forged_replica_id_sees_no_uncommitted_records() -> None:
    cluster = await started()
    leader, followers = await cluster.leader_and_followers()
    assert (await cluster.produce(leader, b"a")).error_code is ErrorCode.none
    asker, paused = followers
    cluster.pause(paused)
    partition = cluster.nodes[leader].partitions.get(T0)
    assert partition is not None
    partition.append(bytearray(batch(b"b")), cluster.clock.now())
    leading = partition.replication
    assert isinstance(leading, Leader)
    await cluster.until(lambda: leading._followers[BrokerId(asker)].fetch_offset == 2)
    assert partition.high_watermark == 1
    assert len((await cluster.fetch(leader, 1)).records) == 0
    for replica, epoch in ((paused, -1), (paused, 0), (99, 5), (asker, 10**9)):
        response = await cluster.fetch_at(leader, 1, replica_id=replica, replica_epoch=epoch)
        assert response.error_code is ErrorCode.stale_broker_epoch
        assert not response.topics
    cluster.resume(paused)


@virtual_time
async def test_with_too_few_in_sync_acks_all_is_refused_before_and_after() -> None:
    cluster = await started()
    leader, followers = await cluster.leader_and_followers()
    partition = cluster.nodes[leader].partitions.get(T0)
    assert partition is not None
    for number in followers:
        cluster.crash(number)
    # The asker is the leader itself: nobody else is left.
    node = cluster.nodes[leader]
    request = ProduceRequest(None, -1, 6_000, [("t", [(0, batch(b"a"))])])

    async def produce() -> ErrorCode:
        body = encode_produce_request(11, request)
        answer = await node.peers.exchange(leader, PRODUCE, 11, body, timeout_ms=30_000, lane="client")
        response = decode_produce_response(11, answer.frame, answer.position)
        return response.topics[0][1][0].error_code

    # Without a majority nobody shrinks the ISR: the write waits for its time to be over.
    assert await cluster.on(leader, produce()) is ErrorCode.request_timed_out
    assert partition.high_watermark == 0
    for number in followers:
        await cluster.start(number)
    await cluster.until(lambda: partition.high_watermark == 1)


@virtual_time
async def test_a_started_write_gets_an_error_when_too_few_replicas_remain() -> None:
    cluster = await started()
    leader, followers = await cluster.leader_and_followers()
    partition = cluster.nodes[leader].partitions.get(T0)
    assert partition is not None
    for number in followers:
        # They fetch no more, but the controllers in the same processes live.
        await cluster.on(number, cluster.nodes[number].fetchers.stop())
    produced = await cluster.produce(leader, b"a", timeout_ms=8_000)
    assert produced.error_code is ErrorCode.not_enough_replicas_after_append
    assert not partition.has_enough_replicas
    assert (await cluster.produce(leader, b"b")).error_code is ErrorCode.not_enough_replicas
    assert (await cluster.produce(leader, b"c", acks=1)).error_code is ErrorCode.none
    assert partition.high_watermark == 0
    assert (await cluster.fetch(leader, 0)).records == b""


@virtual_time
async def test_a_new_leader_reports_no_end_offset_before_it_knows_its_predecessors_high_watermark() -> None:
    cluster = await started()
    leader, followers = await cluster.leader_and_followers()
    for number in range(5):
        assert (await cluster.produce(leader, b"%d" % number)).error_code is ErrorCode.none
    for number in followers:
        # They have everything, but have not heard that the last of it is committed.
        await cluster.on(number, cluster.nodes[number].fetchers.stop())
    cluster.crash(leader)
    survivor = await cluster.led(T0)
    partition = cluster.nodes[survivor].partitions.get(T0)
    assert partition is not None
    await cluster.until(lambda: partition.is_leader)
    assert partition.high_watermark < 5 == partition.log_end_offset
    assert await cluster.list_offset(survivor, LATEST) == (ErrorCode.offset_not_available, -1)
    assert await cluster.list_offset(survivor, 0) == (ErrorCode.offset_not_available, -1)
    assert await cluster.list_offset(survivor, EARLIEST) == (ErrorCode.none, 0)
    await cluster.start(leader)
    await cluster.until(lambda: partition.knows_high_watermark)
    assert await cluster.list_offset(survivor, LATEST) == (ErrorCode.none, 5)


@virtual_time
async def test_deleted_records_are_gone_from_every_replica_when_it_is_answered() -> None:
    cluster = await started()
    leader, _followers = await cluster.leader_and_followers()
    for number in range(5):
        assert (await cluster.produce(leader, b"%d" % number)).error_code is ErrorCode.none
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "offset": 3}]}]
    answer = await cluster.ask(leader, DELETE_RECORDS, 2, {"topics": topics, "timeout": 5_000})
    deleted = answer.topics[0].partitions[0]
    assert (deleted.error_code, deleted.low_watermark) == (ErrorCode.none, 3)
    for number in IDS:
        partition = cluster.nodes[number].partitions.get(T0)
        assert partition is not None
        assert partition.log_start_offset == 3
    assert await cluster.list_offset(leader, EARLIEST) == (ErrorCode.none, 3)


@virtual_time
async def test_delete_records_times_out_when_a_replica_does_not_follow() -> None:
    cluster = await started()
    leader, followers = await cluster.leader_and_followers()
    for number in range(5):
        assert (await cluster.produce(leader, b"%d" % number)).error_code is ErrorCode.none
    await cluster.on(followers[0], cluster.nodes[followers[0]].fetchers.stop())
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "offset": 3}]}]
    answer = await cluster.ask(leader, DELETE_RECORDS, 2, {"topics": topics, "timeout": 1_000})
    assert answer.topics[0].partitions[0].error_code is ErrorCode.request_timed_out


async def with_a_follower_that_stays_behind() -> tuple[Cluster, int]:
    """And the leader, whose deletions wait for it."""
    cluster = await started(replica_lag_time_max_ms=600_000)
    leader, followers = await cluster.leader_and_followers()
    for number in range(5):
        assert (await cluster.produce(leader, b"%d" % number)).error_code is ErrorCode.none
    await cluster.on(followers[0], cluster.nodes[followers[0]].fetchers.stop())
    return cluster, leader


def wide_deletion(timeout_ms: int, unknown: int = 1_000) -> dict[str, Any]:
    """Of the records of one topic, and of those of topics that do not exist."""
    names = ["t", *(f"a-topic-that-does-not-exist-on-any-broker-of-this-cluster-{number}" for number in range(unknown))]
    topics = [{"name": name, "partitions": [{"partition_index": 0, "offset": 3}]} for name in names]
    return {"topics": topics, "timeout": timeout_ms}


@virtual_time
async def test_deletions_that_wait_keep_no_other_large_request_out() -> None:
    cluster, leader = await with_a_follower_that_stays_behind()
    parked = cluster.nodes[leader].parked_fetches
    loop = asyncio.get_running_loop()
    before = parked.held
    waiting = [
        asyncio.ensure_future(cluster.ask(leader, DELETE_RECORDS, 2, wide_deletion(20_000), lane=f"lane-{number}"))
        for number in range(4)
    ]
    await cluster.until(lambda: parked.held > before + 4 * 1_000 * 700)
    begun = loop.time()
    topics = [{"name": f"unknown-{number}", "partitions": []} for number in range(4_000)]
    await cluster.ask(leader, LIST_OFFSETS, 6, {"replica_id": -1, "isolation_level": 0, "topics": topics}, lane="other")
    assert loop.time() - begun < 2
    for answer in await asyncio.gather(*waiting):
        errors = [topic.partitions[0].error_code for topic in answer.topics]
        assert errors == [ErrorCode.request_timed_out] + [ErrorCode.unknown_topic_or_partition] * 1_000


@virtual_time
async def test_a_deletion_ends_when_its_client_is_gone() -> None:
    cluster, leader = await with_a_follower_that_stays_behind()
    node = cluster.nodes[leader]
    partition = node.partitions.get(T0)
    assert partition is not None
    watching = len(partition._watchers)
    with pytest.raises(NoAnswer):
        await cluster.ask(leader, DELETE_RECORDS, 2, wide_deletion(2**31 - 1), lane="client", timeout_ms=2_000)
    await cluster.until(lambda: len(partition._watchers) == watching)


@virtual_time
async def test_no_deletion_waits_for_as_long_as_a_client_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delete_records, "WAIT_MS_MAX", 3_000)
    cluster, leader = await with_a_follower_that_stays_behind()
    answer = await cluster.ask(leader, DELETE_RECORDS, 2, wide_deletion(2**31 - 1, 0), timeout_ms=20_000)
    assert answer.topics[0].partitions[0].error_code is ErrorCode.request_timed_out


@virtual_time
async def test_the_widest_of_too_many_waiting_deletions_is_answered_early() -> None:
    cluster, leader = await with_a_follower_that_stays_behind()
    parked = cluster.nodes[leader].parked_fetches
    parked.limit = parked.held + 1_000_000
    narrow = asyncio.ensure_future(cluster.ask(leader, DELETE_RECORDS, 2, wide_deletion(20_000, 0), lane="narrow"))
    answer = await cluster.ask(leader, DELETE_RECORDS, 2, wide_deletion(2**31 - 1, 2_000), lane="wide")
    assert answer.topics[0].partitions[0].error_code is ErrorCode.request_timed_out
    assert not narrow.done()
    await narrow
