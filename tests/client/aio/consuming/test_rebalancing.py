"""How a membership begins and ends, against our broker on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import pytest

from einmal.client.aio import Admin, Consumer, Producer
from einmal.client.descriptions import NewTopic
from einmal.client.errors import FatalError, InvalidState, KafkaError, NotAuthorized
from einmal.client.records import ConsumerRecord
from einmal.security.acl import Acl, AclFilter, AclOperation, PatternType, Permission, ResourceType
from einmal.simulation.loop import Host
from einmal.types import ErrorCode, TopicPartition
from tests.broker.virtual_node import ADDRESS, VirtualMachine
from tests.virtual_time import virtual_time

BOOTSTRAP: Final = "broker:9092"
TOPIC: Final = "t"
COOPERATIVE: Final = {"partition_assignment_strategy": "cooperative-sticky"}


class Cluster:
    """One broker with a topic of two partitions, and its clients."""

    def __init__(self, machine: VirtualMachine) -> None:
        self._seams: Mapping[str, Any] = {"network": machine.network.of(Host(ADDRESS)), "clock": machine.clock}

    def admin(self) -> Admin:
        return Admin(bootstrap_servers=BOOTSTRAP, **self._seams)

    def producer(self) -> Producer:
        return Producer(bootstrap_servers=BOOTSTRAP, **self._seams)

    def consumer(self, **settings: Any) -> Consumer:
        common = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False}
        return Consumer(bootstrap_servers=BOOTSTRAP, **{**common, **settings}, **self._seams)


@asynccontextmanager
async def cluster_of(settings: Mapping[str, Any] = {}) -> AsyncIterator[Cluster]:
    machine = VirtualMachine()
    async with machine.running({"group.initial.rebalance.delay.ms": 0, **settings}):
        cluster = Cluster(machine)
        async with cluster.admin() as admin:
            await admin.create_topics([NewTopic(TOPIC, 2)])
        yield cluster


async def poll_until_assigned(consumer: Consumer, count: int) -> None:
    while len(consumer.assignment()) != count:
        await consumer.poll(100)


async def error_of(consumer: Consumer) -> KafkaError:
    """What ``poll`` raises sooner or later."""
    while True:
        try:
            assert await consumer.poll(100) == []
        except KafkaError as error:
            return error


@virtual_time
@pytest.mark.parametrize("notices", ["heartbeat", "commit", "automatic commit"])
async def test_a_static_member_that_was_replaced_never_polls_again(notices: str) -> None:
    static: dict[str, Any] = {"group_instance_id": "i", "session_timeout_ms": 600_000}
    # Only one of them is answered before the other instance has been polled for long.
    intervals = {"heartbeat_interval_ms": 200 if notices == "heartbeat" else 500_000, "auto_commit_interval_ms": 1_000}
    async with (
        cluster_of({"group.max.session.timeout.ms": 600_000}) as cluster,
        cluster.producer() as producer,
        cluster.consumer(**static, **intervals, enable_auto_commit=notices == "automatic commit") as replaced,
        cluster.consumer(**static) as present,
    ):
        await producer.send(TOPIC, b"before", partition=0)
        replaced.subscribe([TOPIC])
        while not await replaced.poll(100):
            pass
        present.subscribe([TOPIC])
        await poll_until_assigned(present, 2)
        if notices == "commit":
            with pytest.raises(FatalError):
                await replaced.commit()
        assert (await error_of(replaced)).code is ErrorCode.fenced_instance_id
        await producer.send(TOPIC, b"after", partition=0)
        for _ in range(3):
            with pytest.raises(FatalError) as polled:
                await replaced.poll(1_000)
            assert polled.value.code is ErrorCode.fenced_instance_id
        with pytest.raises(FatalError) as committed:
            await replaced.commit({TopicPartition(TOPIC, 0): 1})
        assert committed.value.code is ErrorCode.fenced_instance_id
        with pytest.raises(KafkaError):
            replaced.group_metadata()
        values: list[bytes | None] = []
        while values[-1:] != [b"after"]:
            values += [record.value for record in await present.poll(100)]


@virtual_time
async def test_a_member_whose_heartbeats_were_refused_joins_again_once_they_are_not() -> None:
    denied = Acl(
        ResourceType.GROUP, "g", PatternType.LITERAL, "User:ANONYMOUS", "*", AclOperation.READ, Permission.DENY
    )
    authorizer = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    async with (
        cluster_of(authorizer) as cluster,
        cluster.admin() as admin,
        cluster.producer() as producer,
        cluster.consumer() as consumer,
    ):
        revoked: list[TopicPartition] = []
        consumer.subscribe([TOPIC], on_revoked=revoked.extend)
        await poll_until_assigned(consumer, 2)
        await admin.create_acls([denied])
        for _ in range(3):
            # Each poll, and not only the first: it cannot join either.
            assert isinstance(await error_of(consumer), NotAuthorized)
        with pytest.raises(KafkaError):
            consumer.group_metadata()
        assert sorted(revoked) == [TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)]
        await admin.delete_acls([AclFilter()])
        while len(consumer.assignment()) != 2:
            with suppress(NotAuthorized):
                await consumer.poll(100)
        generation = consumer.group_metadata().generation_id
        # Longer than the session timeout: there are heartbeats again.
        await producer.send(TOPIC, b"v")
        for _ in range(60):
            await consumer.poll(1_000)
        assert consumer.group_metadata().generation_id == generation
        await consumer.commit()


@virtual_time
@pytest.mark.parametrize("settings", [{}, COOPERATIVE])
async def test_an_application_that_waits_in_poll_is_alive(settings: dict[str, Any]) -> None:
    assigned: list[int] = []
    async with cluster_of() as cluster, cluster.consumer(max_poll_interval_ms=10_000, **settings) as consumer:
        consumer.subscribe([TOPIC], on_assigned=lambda partitions: assigned.append(len(partitions)))
        assert await consumer.poll(60_000) == []
        # And the interval begins when poll returns.
        await asyncio.sleep(8)
        assert await consumer.poll(60_000) == []
        assert assigned == [2]
        await asyncio.sleep(20)
        with pytest.raises(KafkaError):
            consumer.group_metadata()


@virtual_time
async def test_an_application_that_waits_in_poll_for_a_slow_member_stays_in_the_group() -> None:
    async with (
        cluster_of() as cluster,
        cluster.consumer(max_poll_interval_ms=10_000, **COOPERATIVE) as waits,
        cluster.consumer(max_poll_interval_ms=50_000, **COOPERATIVE) as slow,
        cluster.consumer(**COOPERATIVE) as third,
    ):
        for consumer in (waits, slow):
            consumer.subscribe([TOPIC])
        while {len(waits.assignment()), len(slow.assignment())} != {1}:
            await waits.poll(100)
            await slow.poll(100)
        member = waits.group_metadata().member_id
        third.subscribe([TOPIC])
        await third.poll(100)
        # The rebalance waits for the slow member for much longer than this one's interval.
        await waits.poll(40_000)
        await slow.poll(1_000)
        await waits.poll(1_000)
        assert waits.group_metadata().member_id == member


class Fails(Exception):
    pass


@virtual_time
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_partitions_are_handed_over_although_their_callback_fails(strategy: str, is_cancelled: bool) -> None:
    settings = {"partition_assignment_strategy": strategy}

    async def on_revoked(_: list[TopicPartition]) -> None:
        if is_cancelled:
            await asyncio.sleep(3_000)
        raise Fails

    async with (
        cluster_of() as cluster,
        cluster.producer() as producer,
        cluster.consumer(**settings) as former,
        cluster.consumer(**settings) as other,
    ):
        former.subscribe([TOPIC], on_revoked=on_revoked)
        await poll_until_assigned(former, 2)
        other.subscribe([TOPIC])
        failures = 0
        while (len(former.assignment()), len(other.assignment())) != (1, 1):
            try:
                async with asyncio.timeout(1):
                    await former.poll(100)
            except (Fails, TimeoutError):
                failures += 1
            await other.poll(100)
        assert failures == 1
        assert not set(former.assignment()) & set(other.assignment())
        for partition in (0, 1):
            await producer.send(TOPIC, b"%d" % partition, partition=partition)
        for consumer in (former, other):
            while not (records := await consumer.poll(100)):
                pass
            assert [record.topic_partition for record in records] == consumer.assignment()


@virtual_time
async def test_partitions_gained_are_read_although_the_callback_of_those_given_up_fails() -> None:
    def on_revoked(_: list[TopicPartition]) -> None:
        raise Fails

    async with cluster_of() as cluster, cluster.admin() as admin, cluster.producer() as producer:
        await admin.create_topics([NewTopic("u", 1)])
        await producer.send("u", b"v")
        async with cluster.consumer(**COOPERATIVE) as consumer:
            consumer.subscribe(["t"], on_revoked=on_revoked)
            await poll_until_assigned(consumer, 2)
            consumer.subscribe(["u"], on_revoked=on_revoked)
            failures = 0
            records: list[ConsumerRecord] = []
            while not records:
                try:
                    records = await consumer.poll(100)
                except Fails:
                    failures += 1
                    assert failures == 1
            assert failures == 1
            assert consumer.assignment() == [TopicPartition("u", 0)]


@virtual_time
async def test_polls_at_the_same_time_take_turns() -> None:
    async with cluster_of() as cluster, cluster.consumer() as consumer:
        consumer.subscribe(iter([TOPIC]))
        assert await asyncio.gather(*(consumer.poll(1_000) for _ in range(3))) == [[], [], []]
        assert len(consumer.assignment()) == 2


@virtual_time
async def test_a_poll_inside_a_rebalance_callback_is_refused() -> None:
    async with cluster_of() as cluster, cluster.consumer() as consumer:

        async def on_revoked(_: list[TopicPartition]) -> None:
            await consumer.poll(100)

        consumer.subscribe([TOPIC], on_revoked=on_revoked)
        await poll_until_assigned(consumer, 2)
        consumer.subscribe([TOPIC], on_revoked=on_revoked)
        with pytest.raises(InvalidState, match="inside a rebalance callback"):
            await consumer.poll(100)


@virtual_time
async def test_a_topic_that_cannot_be_subscribed_to_is_an_error_once_and_holds_back_no_other() -> None:
    async with cluster_of() as cluster, cluster.consumer() as consumer:
        consumer.subscribe(["no topic", TOPIC])
        assert (await error_of(consumer)).code is ErrorCode.invalid_topic_exception
        await poll_until_assigned(consumer, 2)
