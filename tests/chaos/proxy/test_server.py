"""Claims about the proxy in front of one broker of ours: what a client sees of each fault, and what the broker got."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from einmal.broker.node import Node
from einmal.chaos.proxy.frames import AnswerFrame, RequestFrame
from einmal.chaos.proxy.server import KafkaProxy
from einmal.types import ErrorCode
from einmal.wire.frames import frame
from einmal.wire.messages import encode_request_header, response_body_position
from tests.broker.cluster import running_cluster
from tests.broker.nodes import Client, batch, running_node, until
from tests.broker.sasl_client import sasl_node
from tests.broker.tls_node import LISTENERS, Tls, port_of
from tests.suite.patience import patient
from tests.wire.mapped import decode_response, encode_request

SILENT_S = 0.2
METADATA = 3, 12, {"topics": [{"topic_id": None, "name": "t"}], "allow_auto_topic_creation": False}
FIND_COORDINATOR = 10, 3, {"key": "group", "key_type": 0}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        yield node


def proxy_of(node: Node, **options: Any) -> KafkaProxy:
    return KafkaProxy(f"127.0.0.1:{node.port}", **options)


def send_batch(client: Client, acks: int = -1, version: int = 9) -> None:
    topic = {"name": "t", "partition_data": [{"index": 0, "records": batch(b"x")}]}
    client.send(0, version, encode_request(0, version, {"acks": acks, "timeout": 60_000, "topic_data": [topic]}))


def ask(client: Client) -> None:
    client.send(18, 3, encode_request(18, 3, {"client_software_name": "a", "client_software_version": "1"}))


def port(proxy: KafkaProxy) -> int:
    return int(proxy.bootstrap_servers.rpartition(":")[2])


async def end_of(node: Node) -> int:
    """The number of records in the topic."""
    async with Client.connect(node) as client:
        partitions = [{"partition_index": 0, "timestamp": -1}]
        fields = {"replica_id": -1, "topics": [{"name": "t", "partitions": partitions}]}
        (topic,) = (await client.call(2, 5, fields)).topics
        return int(topic.partitions[0].offset)


async def is_silent(client: Client) -> bool:
    try:
        await asyncio.wait_for(client.reader.read(1), SILENT_S)
    except TimeoutError:
        return True
    return False


async def test_a_client_stays_behind_the_proxy(node: Node) -> None:
    with proxy_of(node) as proxy:
        async with Client.connect_to(port(proxy)) as client:
            (broker,) = (await client.call(*METADATA)).brokers
            assert (broker.host, broker.port) == ("127.0.0.1", port(proxy))
            coordinator = await client.call(*FIND_COORDINATOR)
            assert (coordinator.host, coordinator.port) == ("127.0.0.1", port(proxy))
            (described,) = (await client.call(60, 0, {})).brokers
            assert (described.host, described.port) == ("127.0.0.1", port(proxy))
        assert proxy.faults == []


async def test_produce_without_acks_does_not_disturb_later_answers(node: Node) -> None:
    with proxy_of(node) as proxy:
        async with Client.connect_to(port(proxy)) as client:
            for _ in range(3):
                send_batch(client, acks=0)
            assert await client.answers()
            assert await end_of(node) == 3


async def test_an_unknown_api_and_a_broken_frame_reach_the_broker_as_they_are(node: Node) -> None:
    for sent in (b"\x03\xe7\x00\x01\x00\x00\x00\x07\xff\xff", b"\x00\x03\x00\x63\x00\x00\x00\x07\xff\xff", b"short"):
        with proxy_of(node) as proxy:
            async with Client.connect(node) as direct, Client.connect_to(port(proxy)) as client:
                outcomes = []
                for each in (direct, client):
                    each.writer.write(frame(sent))
                    outcomes.append(await asyncio.wait_for(each.reader.read(100), 5))
                assert outcomes[0] == outcomes[1]


async def test_a_dropped_answer_leaves_an_open_silent_connection_and_its_effect(node: Node) -> None:
    with proxy_of(node) as proxy:
        rule = proxy.on("Produce").drop_answer().once()
        async with Client.connect_to(port(proxy)) as client:
            assert await client.answers()
            send_batch(client)
            await until(lambda: proxy.faults)
            assert await end_of(node) == 1
            ask(client)
            assert await is_silent(client)
        async with Client.connect_to(port(proxy)) as client:
            assert (await client.produce("t", batch(b"y"))).error_code is ErrorCode.none
        assert rule.fired == 1
        (fault,) = proxy.faults
        assert (fault.api, fault.version, fault.correlation_id, fault.client_id) == ("Produce", 9, 2, "test")
        assert fault.what == "answer dropped"


async def test_a_dropped_request_does_not_reach_the_broker_nor_do_later_ones(node: Node) -> None:
    with proxy_of(node) as proxy:
        proxy.on("FindCoordinator").drop_request().once()
        async with Client.connect_to(port(proxy)) as client:
            client.send(10, 3, encode_request(10, 3, FIND_COORDINATOR[2]))
            send_batch(client)
            assert await is_silent(client)
        assert await end_of(node) == 0


@pytest.mark.parametrize("after", [False, True])
async def test_a_disconnected_client_sees_the_end_before_or_after_the_effect(node: Node, after: bool) -> None:
    with proxy_of(node) as proxy:
        proxy.on("Produce").disconnect(after=after).once()
        async with Client.connect_to(port(proxy)) as client:
            send_batch(client)
            assert await client.is_closed()
        assert await end_of(node) == after


async def test_a_duplicated_request_takes_effect_twice_and_has_one_answer(node: Node) -> None:
    with proxy_of(node) as proxy:
        proxy.on("Produce").duplicate()
        async with Client.connect_to(port(proxy)) as client:
            assert (await client.produce("t", batch(b"x"))).base_offset == 0
            assert await client.answers()
            assert (await client.produce("t", batch(b"x"))).base_offset == 2
        assert await end_of(node) == 4


async def test_a_request_is_overtaken_by_the_next_one_and_answered_before_it(node: Node) -> None:
    with proxy_of(node) as proxy:
        proxy.on("Produce").reorder(within_s=60).once()
        async with Client.connect_to(port(proxy)) as client:
            for _ in range(2):
                send_batch(client)
            answers = [await client.receive(), await client.receive()]
            decoded = [decode_response(0, 9, each, response_body_position(0, 9, each)) for each in answers]
            assert [int.from_bytes(each[:4], "big") for each in answers] == [1, 2]
            assert [each.responses[0].partition_responses[0].base_offset for each in decoded] == [1, 0]


async def test_an_overtaken_request_goes_alone_when_no_other_comes(node: Node) -> None:
    with proxy_of(node) as proxy:
        proxy.on("Produce").reorder(within_s=0.05).once()
        async with Client.connect_to(port(proxy)) as client:
            assert (await client.produce("t", batch(b"x"))).base_offset == 0


@pytest.mark.parametrize("method", ["delay", "delay_answer"])
async def test_delays_last_at_least_so_long(node: Node, method: str) -> None:
    with proxy_of(node) as proxy:
        getattr(proxy.on("Produce"), method)(0.3).once()
        async with Client.connect_to(port(proxy)) as client:
            began = time.monotonic()
            await client.produce("t", batch(b"x"))
            assert time.monotonic() - began >= 0.3


async def test_a_refused_request_is_not_forwarded_and_is_answered_in_its_turn(node: Node) -> None:
    with proxy_of(node) as proxy:
        proxy.on("Produce").error("NOT_LEADER_OR_FOLLOWER").nth(2)
        async with Client.connect_to(port(proxy)) as client:
            codes = [(await client.produce("t", batch(b"x"))).error_code for _ in range(3)]
        assert codes == [ErrorCode.none, ErrorCode.not_leader_or_follower, ErrorCode.none]
        assert await end_of(node) == 2
        assert [each.what for each in proxy.faults] == ["refused with NOT_LEADER_OR_FOLLOWER"]


async def test_a_partition_holds_requests_and_new_connections_until_it_heals(node: Node) -> None:
    with proxy_of(node) as proxy:
        async with Client.connect_to(port(proxy)) as client:
            (broker,) = (await client.call(*METADATA)).brokers
            proxy.partition(broker.node_id)
            send_batch(client)
            async with Client.connect_to(port(proxy)) as new:
                ask(new)
                assert await is_silent(client) and await is_silent(new)
                assert await end_of(node) == 0
                proxy.heal()
                await client.receive()
                await new.receive()
                assert await end_of(node) == 1


async def test_a_partition_of_answers_lets_requests_take_effect(node: Node) -> None:
    with proxy_of(node) as proxy:
        async with Client.connect_to(port(proxy)) as client:
            await client.call(*METADATA)
            proxy.partition(requests=False)
            send_batch(client)
            while await end_of(node) == 0:
                pass
            assert await is_silent(client)
            proxy.heal()
            await client.receive()


async def test_a_partition_of_another_broker_disturbs_nobody(node: Node) -> None:
    with proxy_of(node) as proxy:
        async with Client.connect_to(port(proxy)) as client:
            await client.call(*METADATA)
            proxy.partition(999)
            assert await client.answers()


class Seen:
    def __init__(self) -> None:
        self.requests: list[RequestFrame] = []
        self.answers: list[AnswerFrame] = []

    def saw_request(self, at: float, request: RequestFrame) -> None:
        assert abs(at - time.time()) < 60
        self.requests.append(request)

    def saw_answer(self, at: float, answer: AnswerFrame) -> None:
        self.answers.append(answer)


async def test_an_observer_gets_every_frame_also_of_a_dropped_answer(node: Node) -> None:
    seen = Seen()
    with proxy_of(node, observer=seen) as proxy:
        proxy.on("Produce").drop_answer()
        async with Client.connect_to(port(proxy)) as client:
            await client.call(*METADATA)
            send_batch(client)
            await until(lambda: len(seen.answers) == 2)
    assert [(each.api, each.connection) for each in seen.requests] == [("Metadata", 1), ("Produce", 1)]
    assert seen.requests[0].message.topics[0].name == "t"
    assert seen.answers[0].message.brokers[0].port == node.port
    assert seen.answers[1].message.responses[0].partition_responses[0].base_offset == 0


async def test_tls_to_the_broker_and_to_the_client(tmp_path: Path) -> None:
    tls = Tls(tmp_path)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(tls.broker.store)
    async with running_node(tmp_path / "data", {"listeners": LISTENERS, **tls.settings}) as node:
        upstream = f"localhost:{port_of(node, 'SSL')}"
        for accepting in (None, server):
            with KafkaProxy(upstream, upstream_tls=tls.client(), tls=accepting) as proxy:
                context = None if accepting is None else tls.client()
                async with Client.connect_to(port(proxy), context) as client:
                    assert await client.answers()
                    (broker,) = (await client.call(*METADATA)).brokers
                async with Client.connect_to(broker.port, context) as client:
                    assert await client.answers()


@pytest.fixture
def left_open(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is, when the test is over."""
    warned: list[str] = []
    gc.collect()
    monkeypatch.setattr(sys, "unraisablehook", lambda left: warned.append(str(left.exc_value)))
    yield
    gc.collect()
    assert warned == []


@pytest.mark.usefixtures("left_open")
def test_a_broker_that_does_not_close_its_side_of_tls_keeps_no_connection_open(tmp_path: Path) -> None:
    tls = Tls(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls.broker.store)
    is_connected, is_over = threading.Event(), threading.Event()

    def broker(listening: socket.socket) -> None:
        accepted, _ = listening.accept()
        with context.wrap_socket(accepted, server_side=True) as secured:
            secured.recv(1)
            is_connected.set()
            is_over.wait(patient(60))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=broker, args=(listening,))
        thread.start()
        with (
            KafkaProxy(f"localhost:{listening.getsockname()[1]}", upstream_tls=tls.client()) as proxy,
            socket.create_connection(("127.0.0.1", port(proxy))) as client,
        ):
            client.sendall(frame(encode_request_header(18, 0, 1, "test")))
            assert is_connected.wait(patient(60))
        is_over.set()
        thread.join()


@pytest.mark.usefixtures("left_open")
def test_the_proxy_closes_while_it_waits_for_a_clients_end_of_tls(tmp_path: Path) -> None:
    tls = Tls(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls.broker.store)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        proxy = KafkaProxy(f"127.0.0.1:{listening.getsockname()[1]}", tls=context)
        with proxy, socket.create_connection(("127.0.0.1", port(proxy))) as raw:
            client = tls.client().wrap_socket(raw, server_hostname="localhost")
            listening.accept()[0].close()
            # The proxy has closed its side, and this client does not close its own.
            assert client.recv(1) == b""
    client.close()


@pytest.mark.usefixtures("left_open")
def test_connections_that_are_accepted_while_the_proxy_closes_are_closed() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listening, contextlib.ExitStack() as clients:
        for _ in range(10):
            with KafkaProxy(f"127.0.0.1:{listening.getsockname()[1]}") as proxy:
                for _ in range(5):
                    clients.enter_context(socket.create_connection(("127.0.0.1", port(proxy))))


async def test_the_new_leader_in_an_answer_is_behind_the_proxy(tmp_path: Path) -> None:
    # KIP-951: a follower refuses a batch with the address of the leader.
    async with running_cluster(tmp_path) as cluster:
        async with Client.connect(cluster.nodes[1]) as client:
            topic = {"name": "t", "num_partitions": 1, "replication_factor": 3, "configs": []}
            await client.call(19, 7, {"topics": [topic], "timeout": 60_000, "validate_only": False})
        leader = await cluster.until(lambda: cluster.leader("t"))
        follower = next(each for node_id, each in cluster.nodes.items() if node_id != leader)
        with proxy_of(follower) as proxy:
            async with Client.connect_to(port(proxy)) as client:
                send_batch(client, version=10)
                answer = await client.receive()
                refused = decode_response(0, 10, answer, response_body_position(0, 10, answer))
                (endpoint,) = refused.node_endpoints
                assert endpoint.node_id == leader
                assert endpoint.port not in {each.port for each in cluster.nodes.values()}
            async with Client.connect_to(endpoint.port) as client:
                assert (await client.produce("t", batch(b"x"))).error_code is ErrorCode.none
                ports = {each.node_id: each.port for each in (await client.call(*METADATA)).brokers}
            assert ports[leader] == endpoint.port
            assert len({*ports.values()}) == 3, "one port for each broker"
            proxy.partition(leader)
            async with Client.connect_to(ports[leader]) as cut, Client.connect_to(port(proxy)) as client:
                ask(cut)
                assert await is_silent(cut)
                assert await client.answers()


async def test_tokens_without_headers_pass_after_handshake_v0(tmp_path: Path) -> None:
    async with sasl_node(tmp_path) as node:
        with proxy_of(node) as proxy:
            proxy.on().drop_request().nth(2)
            async with Client.connect_to(port(proxy)) as client:
                assert (await client.call(17, 0, {"mechanism": "PLAIN"})).error_code is ErrorCode.none
                client.writer.write(frame(b"\0carol\0carols-password"))
                assert await client.receive() == b""
                assert await client.answers()


async def test_a_client_of_a_broker_that_is_down_is_disconnected(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    with proxy_of(node) as proxy:
        await node.stop()
        async with Client.connect_to(port(proxy)) as client:
            assert await client.is_closed()
    assert "no connection to 127.0.0.1" in caplog.text


def test_an_address_without_a_port_is_refused() -> None:
    with pytest.raises(ValueError, match="'broker' is not host:port"):
        KafkaProxy("broker")
