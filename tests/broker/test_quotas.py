"""Clients above a quota learn so at once, and then wait; all others are served (KIP-13, 124, 219, 546, 599, 612)."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from einmal.seams import Clock
from einmal.simulation.clock import SimulatedClock
from einmal.types import ErrorCode, Instant, TopicPartition
from einmal.wire import produce
from einmal.wire.fetch import FetchPartition
from einmal.wire.messages import response_body_position
from tests.broker.nodes import Client, batch, running_node, until, until_watched
from tests.broker.three_nodes import ThreeNodes
from tests.broker.virtual_node import ADDRESS, VirtualMachine, client_of
from tests.virtual_time import running_loop, virtual_time

CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS, DESCRIBE, ALTER, METADATA = 19, 20, 37, 48, 49, 3
TWO_SECONDS = {"quota.window.num": 2, "controller.quota.window.num": 2}
"""Of windows: a rate is measured over one second at least."""
DEFAULT_USER = {"user": None}


async def alter(client: Client, entity: Mapping[str, str | None], **values: float | None) -> Any:
    return await alter_by(client, 1, entity, values)


async def alter_by(
    client: Client, version: int, entity: Mapping[str, str | None], values: Mapping[str, float | None]
) -> Any:
    entry = {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
        "ops": [
            {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
            for key, value in values.items()
        ],
    }
    return (await client.call(ALTER, version, {"entries": [entry], "validate_only": False})).entries[0]


class CostlyClock:
    """Each look at it takes a millisecond: virtual time stands still while a request is handled."""

    def __init__(self) -> None:
        self._clock = SimulatedClock(running_loop())
        self._looks = 0

    def now(self) -> Instant:
        self._looks += 1
        now = self._clock.now()
        return Instant(now.wall_ms + self._looks, now.monotonic_ms + self._looks)


@asynccontextmanager
async def limited(
    entity: Mapping[str, str | None] = DEFAULT_USER, clock: Clock | None = None, **values: float
) -> AsyncIterator[tuple[VirtualMachine, Client]]:
    """The machine of a node with a topic and a quota, and a client that it applies to."""
    machine = VirtualMachine(clock)
    async with machine.running(TWO_SECONDS), machine.client() as client, machine.client() as admin:
        await admin.create_topic("t")
        assert (await alter(admin, entity, **values)).error_code == ErrorCode.none
        yield machine, client


async def produced(client: Client, size: int, *, acks: int = -1, version: int = 9) -> produce.ProduceResponse:
    request = produce.ProduceRequest(None, acks, 10_000, [("t", [(0, batch(bytes(size)))])])
    client.send(0, version, b"".join(produce.encode_produce_request(version, request)))
    answer = await client.receive()
    return produce.decode_produce_response(version, answer, response_body_position(0, version, answer))


async def seconds_until_answered(client: Client) -> float:
    begun = running_loop().time()
    await client.answers()
    return running_loop().time() - begun


# --- the two APIs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
@virtual_time
async def test_quotas_are_altered_and_described(version: int) -> None:
    machine = VirtualMachine()
    async with machine.running() as node, machine.client() as client:
        entity = {"user": "alice", "client-id": None}
        done = await alter_by(client, version, entity, {"producer_byte_rate": 5.0})
        assert done.error_code == ErrorCode.none
        refused = await alter_by(client, version, entity, {"producer_byte_rate": -5.0})
        assert (refused.error_code, {each.entity_type for each in refused.entity}) == (
            ErrorCode.invalid_request,
            {"user", "client-id"},
        )
        component = {"entity_type": "user", "match_type": 0, "match": "alice"}
        await until(lambda: node.metadata.image.client_quotas)
        answer = await client.call(DESCRIBE, version, {"components": [component], "strict": False})
        (entry,) = answer.entries
        assert {part.entity_type: part.entity_name for part in entry.entity} == entity
        assert [(each.key, each.value) for each in entry.values] == [("producer_byte_rate", 5.0)]
        answer = await client.call(DESCRIBE, version, {"components": [component], "strict": True})
        assert (answer.error_code, answer.entries) == (ErrorCode.none, ())


@virtual_time
async def test_a_senseless_filter_is_answered_with_its_problem() -> None:
    machine = VirtualMachine()
    async with machine.running(), machine.client() as client:
        component = {"entity_type": "user", "match_type": 9, "match": None}
        answer = await client.call(DESCRIBE, 1, {"components": [component] * 5_000, "strict": False})
        assert (answer.error_code, answer.entries) == (ErrorCode.invalid_request, None)


@virtual_time
async def test_an_entity_of_very_many_parts_is_refused_and_its_neighbours_are_not() -> None:
    def entry(*names: str) -> dict[str, Any]:
        entity = [{"entity_type": "user", "entity_name": name} for name in names]
        return {"entity": entity, "ops": [{"key": "request_percentage", "value": 1.0, "remove": False}]}

    machine = VirtualMachine()
    async with machine.running(), machine.client() as client:
        entries = [entry("a"), entry(*("x" * 50)), entry("b")]
        answer = await client.call(ALTER, 1, {"entries": entries, "validate_only": False})
        assert [each.error_code for each in answer.entries] == [
            ErrorCode.none,
            ErrorCode.invalid_request,
            ErrorCode.none,
        ]


@virtual_time
async def test_quotas_outlive_a_restart() -> None:
    machine = VirtualMachine()
    async with machine.running() as node, machine.client() as client:
        await alter(client, {"user": "alice"}, producer_byte_rate=5.0)
    async with machine.running() as node:
        assert node.metadata.image.client_quotas.limit_of("producer_byte_rate", "alice", "") == (5.0, "alice", None)


# --- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 8, 9, 12])
@virtual_time
async def test_a_producer_above_its_quota_is_answered_at_once_and_then_not_read(version: int) -> None:
    async with limited(producer_byte_rate=100_000) as (machine, client):
        begun = running_loop().time()
        answer = await produced(client, 150_000, version=version)
        assert answer.topics[0][1][0].error_code == ErrorCode.none
        assert 450 <= answer.throttle_time_ms <= 600
        async with machine.client() as other:
            assert await seconds_until_answered(other) < 0.4
        assert await seconds_until_answered(client) > 0.2
        assert running_loop().time() - begun >= answer.throttle_time_ms / 1000 - 0.05


async def test_a_throttled_producer_waits_on_a_real_connection_too(tmp_path: Path) -> None:
    async with running_node(tmp_path, TWO_SECONDS) as node, Client.connect(node) as client:
        await client.create_topic("t")
        assert (await alter(client, DEFAULT_USER, producer_byte_rate=100_000)).error_code == ErrorCode.none
        begun = time.monotonic()
        answer = await produced(client, 150_000)
        assert await client.answers()
        assert time.monotonic() - begun >= answer.throttle_time_ms / 1000 - 0.05 > 0.3


@virtual_time
async def test_a_producer_without_answers_is_throttled_too() -> None:
    async with limited(producer_byte_rate=100_000) as (_machine, client):
        request = produce.ProduceRequest(None, 0, 10_000, [("t", [(0, batch(bytes(150_000)))])])
        client.send(0, 9, b"".join(produce.encode_produce_request(9, request)))
        assert await seconds_until_answered(client) > 0.3


@virtual_time
async def test_requests_sent_beforehand_wait_for_the_end_of_the_throttling() -> None:
    async with limited(producer_byte_rate=100_000) as (_machine, client):
        request = produce.ProduceRequest(None, 1, 10_000, [("t", [(0, batch(bytes(150_000)))])])
        client.send(0, 9, b"".join(produce.encode_produce_request(9, request)))
        begun = running_loop().time()
        for _ in range(3):
            client.send(18, 0, b"")
        await client.receive()
        answered = running_loop().time()
        for _ in range(3):
            await client.receive()
        assert running_loop().time() - begun > 0.4
        assert running_loop().time() - answered > 0.2, "the first answer came before the throttling ended"


@virtual_time
async def test_a_quota_of_another_client_does_not_matter() -> None:
    async with limited({"client-id": "someone else"}, producer_byte_rate=1) as (_machine, client):
        assert (await produced(client, 150_000)).throttle_time_ms == 0
        assert await seconds_until_answered(client) < 0.4


@virtual_time
async def test_a_quota_that_is_removed_does_not_throttle_any_more() -> None:
    async with limited(producer_byte_rate=100_000) as (machine, client), machine.client() as other:
        assert (await produced(client, 150_000)).throttle_time_ms > 0
        await alter(other, DEFAULT_USER, producer_byte_rate=None)
        await until(lambda: not machine.node.metadata.image.client_quotas)
        assert (await produced(other, 150_000)).throttle_time_ms == 0


@pytest.mark.parametrize("version", [4, 12])
@virtual_time
async def test_a_fetch_above_its_quota_is_answered_without_records(version: int) -> None:
    async with limited(consumer_byte_rate=100_000) as (machine, client), machine.client() as other:
        for _ in range(2):
            await produced(other, 80_000)
        wanted = [("t", [FetchPartition(0, 0, 2**20)])]
        first = await client.fetch_all(wanted, version=version)
        assert 80_000 < len(first.topics[0][1][0].records) < 160_000
        assert first.throttle_time_ms == 0
        refused = await client.fetch_all(wanted, version=version)
        assert refused.topics == []
        assert refused.throttle_time_ms > 400
        assert await seconds_until_answered(client) > 0.3
        # What was not sent does not count.
        await asyncio.sleep(2)
        again = await client.fetch_all(wanted, version=version)
        assert len(again.topics[0][1][0].records) > 80_000


@virtual_time
async def test_a_throttled_fetch_leaves_its_session_as_it_is() -> None:
    async with limited(consumer_byte_rate=100_000) as (machine, client), machine.client() as other:
        await produced(other, 80_000)
        opened = await client.fetch_all([("t", [FetchPartition(0, 0, 2**20)])], session_id=0, session_epoch=0)
        assert opened.session_id != 0
        throttled = await client.fetch_all([], session_id=opened.session_id, session_epoch=1)
        assert (throttled.session_id, throttled.topics) == (opened.session_id, [])
        assert throttled.throttle_time_ms > 0
        await asyncio.sleep(2)
        records = await client.fetch_all([], session_id=opened.session_id, session_epoch=2)
        assert len(records.topics[0][1][0].records) > 80_000
        # A full Fetch that is throttled leaves no session behind: its client begins again.
        before = len(machine.node.fetch_sessions)
        full = await client.fetch_all([("t", [FetchPartition(0, 0, 2**20)])], session_id=0, session_epoch=0)
        assert (full.session_id, full.topics) == (0, [])
        assert len(machine.node.fetch_sessions) == before


@virtual_time
async def test_a_batch_larger_than_a_quota_is_read_by_whoever_has_used_nothing() -> None:
    async with limited(consumer_byte_rate=1_000) as (machine, client), machine.client() as other:
        await produced(other, 80_000)
        wanted = [("t", [FetchPartition(0, 0, 2**20)])]
        assert len((await client.fetch_all(wanted)).topics[0][1][0].records) > 80_000
        assert (await other.fetch_all(wanted)).topics == []


@virtual_time
async def test_a_fetch_that_waits_is_throttled_when_it_is_answered() -> None:
    async with limited(consumer_byte_rate=100_000) as (machine, client), machine.client() as other:
        await produced(other, 95_000)
        await client.fetch("t", 0)
        waiting = asyncio.create_task(client.fetch_all([("t", [FetchPartition(0, 1, 2**20)])], max_wait_ms=10_000))
        await until_watched(machine.node, "t")
        await produced(other, 50_000)
        answer = await waiting
        assert answer.topics == []
        assert answer.throttle_time_ms > 300


# --- time ------------------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_client_that_uses_too_much_time_is_throttled_in_every_answer() -> None:
    """At most for one window at once, as in Kafka."""
    async with limited(clock=CostlyClock(), request_percentage=0.01) as (_machine, client):
        topics = [{"name": f"n{number}"} for number in range(3_000)]
        described = await client.call(75, 0, {"topics": topics})
        told_ms = described.throttle_time.total_seconds() * 1000
        assert 0 < told_ms <= 1_000
        # Its first part has passed on the way of the answer.
        assert await seconds_until_answered(client) > told_ms / 2000


@pytest.mark.parametrize(
    ("api_key", "version", "fields"),
    [
        (METADATA, 12, {"topics": None}),
        (METADATA, 1, {"topics": None}),
        (18, 3, {"client_software_name": "a", "client_software_version": "1"}),
        (10, 4, {"key": "g", "key_type": 0, "coordinator_keys": ["g"]}),
        (CREATE_TOPICS, 7, {"topics": []}),
        (55, 1, {"topics": []}),
    ],
)
@virtual_time
async def test_an_answer_states_the_time_where_its_version_has_the_field(
    api_key: int, version: int, fields: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with limited(request_percentage=1) as (machine, client):
        monkeypatch.setattr(machine.node.throttles, "use_time", lambda *_: 123)
        answer = await client.call(api_key, version, fields)
        if hasattr(answer, "throttle_time"):
            assert answer.throttle_time.total_seconds() == 0.123
        monkeypatch.undo()
        assert await seconds_until_answered(client) > 0.05


# --- changes of partitions -------------------------------------------------------------------------------------------


def _topic(name: str, partitions: int) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": 1}


@virtual_time
async def test_topics_beyond_the_quota_of_partitions_are_refused() -> None:
    """A bucket of 2 seconds holds two partitions; one topic may overdraw it."""
    async with limited(controller_mutation_rate=1) as (machine, client), machine.client() as other:
        topics = [_topic("a", 1), _topic("b", 2), _topic("c", 1)]
        answer = await client.call(CREATE_TOPICS, 7, {"topics": topics, "timeout": 10_000})
        errors = [each.error_code for each in answer.topics]
        assert errors == [ErrorCode.none, ErrorCode.none, ErrorCode.throttling_quota_exceeded]
        assert 0.5 <= answer.throttle_time.total_seconds() <= 1.1
        names = {"topics": [{"name": "a", "topic_id": None}], "timeout": 10_000}
        deleted = await other.call(DELETE_TOPICS, 6, names)
        assert deleted.responses[0].error_code == ErrorCode.throttling_quota_exceeded
        assert deleted.throttle_time.total_seconds() > 0
        await asyncio.sleep(1.1)
        wanted = {"topics": [{"name": "b", "count": 5, "assignments": None}], "timeout": 10_000}
        grown = await client.call(CREATE_PARTITIONS, 3, wanted)
        assert (grown.results[0].error_code, grown.throttle_time.total_seconds()) == (ErrorCode.none, 0)


@virtual_time
async def test_older_clients_are_throttled_instead() -> None:
    async with limited(controller_mutation_rate=5) as (_machine, client):
        answer = await client.call(CREATE_TOPICS, 5, {"topics": [_topic("a", 12)], "timeout": 10_000})
        assert answer.topics[0].error_code == ErrorCode.none
        assert 0.3 <= answer.throttle_time.total_seconds() <= 0.5
        assert await seconds_until_answered(client) > 0.2


# --- bounds ----------------------------------------------------------------------------------------------------------


@virtual_time
async def test_very_many_client_ids_of_one_user_cost_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from einmal.broker.front.quotas import client_throttles

    monkeypatch.setattr(client_throttles, "RATES_MAX", 100)
    async with limited({"client-id": None}, producer_byte_rate=100) as (machine, _client):
        for number in range(1_000):
            machine.node.throttles.use("producer_byte_rate", "ANONYMOUS", f"invented-{number}", 1)
        assert machine.node.throttles.tracked("producer_byte_rate") == 100
        # The most recently used ones are known.
        assert machine.node.throttles.use("producer_byte_rate", "ANONYMOUS", "invented-999", 1_000) > 0


@virtual_time
async def test_very_long_client_ids_cost_bounded_memory_and_have_rates_of_their_own() -> None:
    async with limited({"client-id": None}, producer_byte_rate=100) as (machine, _client):
        tracemalloc.start()
        try:
            before, _peak = tracemalloc.get_traced_memory()
            for number in range(500):
                long = str(number) + "x" * 32_000
                assert machine.node.throttles.use("producer_byte_rate", "ANONYMOUS", long, 1) == 0
            held = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert machine.node.throttles.tracked("producer_byte_rate") == 500
        assert held < 500 * 2_000
        assert machine.node.throttles.use("producer_byte_rate", "ANONYMOUS", "499" + "x" * 32_000, 100_000) > 0
        assert machine.node.throttles.use("producer_byte_rate", "ANONYMOUS", "498" + "x" * 32_000, 1) == 0


@virtual_time
async def test_a_connection_that_ends_while_throttled_leaves_nothing_behind() -> None:
    async with limited(producer_byte_rate=10_000) as (machine, client), machine.client() as other:
        await produced(client, 150_000)
        request = produce.ProduceRequest(None, 1, 10_000, [("t", [(0, batch(bytes(10_000)))])])
        client.send(0, 9, b"".join(produce.encode_produce_request(9, request)))
        client.writer.transport.abort()
        assert await seconds_until_answered(other) < 0.4


# --- connections -----------------------------------------------------------------------------------------------------


@virtual_time
async def test_connections_above_the_rate_wait_for_their_turn() -> None:
    """A burst of ten, and then five a second: nobody is refused."""
    settings = {"max.connection.creation.rate": 5, "quota.window.num": 2}
    machine = VirtualMachine()
    async with machine.running(settings):

        async def answered() -> float:
            begun = running_loop().time()
            async with machine.client() as client:
                await client.answers()
                return running_loop().time() - begun

        times = sorted(await asyncio.gather(*(answered() for _ in range(15))))
    assert times[9] < 0.5 < times[-1]
    assert 0.7 <= times[-1] <= 2


@virtual_time
async def test_a_flood_of_connections_keeps_others_waiting_for_seconds_only() -> None:
    """Else each of them, closed by now or not, would delay all that come later."""
    settings = {"max.connection.creation.rate": 20, "quota.window.num": 1}
    machine = VirtualMachine()
    async with machine.running(settings):
        for _ in range(400):
            async with machine.client():
                pass
        async with machine.client() as refused:
            assert await refused.is_closed()
        begun = running_loop().time()
        while True:
            async with machine.client() as client:
                try:
                    await client.answers()
                    break
                except (asyncio.IncompleteReadError, ConnectionError):
                    continue
        assert running_loop().time() - begun < 15, "400 of 20 per second would take 20"


@virtual_time
async def test_an_address_above_its_rate_is_disconnected_after_a_pause() -> None:
    async with limited({"ip": ADDRESS}, connection_creation_rate=3) as (machine, _client):
        closed = 0
        for _ in range(8):
            async with machine.client() as client:
                try:
                    async with asyncio.timeout(0.05):
                        await client.answers()
                except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
                    assert await client.is_closed()
                    closed += 1
        assert 0 < closed < 8


async def test_an_address_above_its_rate_is_disconnected_on_a_real_connection_too(tmp_path: Path) -> None:
    async with running_node(tmp_path, TWO_SECONDS) as node, Client.connect(node) as client:
        assert (await alter(client, {"ip": "127.0.0.1"}, connection_creation_rate=1)).error_code == ErrorCode.none
        for _ in range(1_000):
            async with Client.connect(node) as other:
                try:
                    await other.answers()
                except (asyncio.IncompleteReadError, ConnectionError):
                    assert await other.is_closed()
                    break
        else:
            pytest.fail("no connection was too many")
        assert await client.answers()


# --- clusters --------------------------------------------------------------------------------------------------------


@virtual_time
async def test_nodes_of_a_cluster_are_not_throttled_and_its_clients_are() -> None:
    """Also a client whose request another node decides: the controller's answer states the time."""
    cluster = ThreeNodes(secret=b"a secret of the whole cluster", quota_window_num=2)
    await cluster.start()
    first = next(node_id for node_id, node in cluster.nodes.items() if not node.controller.is_active)
    async with client_of(cluster.network, f"b{first}", 9092) as admin:
        topic = {"name": "t", "num_partitions": 1, "replication_factor": 3}
        await admin.call(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 10_000})
        values = {"producer_byte_rate": 50_000, "consumer_byte_rate": 1, "controller_mutation_rate": 1}
        assert (await alter(admin, DEFAULT_USER, **values)).error_code == ErrorCode.none
    await cluster.until(lambda: all(node.metadata.image.client_quotas for node in cluster.nodes.values()))
    leader = await cluster.led(TopicPartition("t", 0))
    async with client_of(cluster.network, f"b{leader}", 9092) as client:
        # With acks=all the followers have fetched it, although nobody may consume so much.
        answer = await produced(client, 100_000)
        assert answer.topics[0][1][0].error_code == ErrorCode.none
        assert answer.throttle_time_ms > 500
    async with client_of(cluster.network, f"b{first}", 9092) as client:
        topics = [{"name": "many", "num_partitions": 12, "replication_factor": 1}]
        created = await client.call(CREATE_TOPICS, 5, {"topics": topics, "timeout": 10_000})
        assert created.topics[0].error_code == ErrorCode.none
        assert created.throttle_time.total_seconds() > 0.5
        assert await seconds_until_answered(client) > 0.4
