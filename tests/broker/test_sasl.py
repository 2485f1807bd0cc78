"""Claims about clients that authenticate at a broker: who gets in, and what everybody else gets."""

from __future__ import annotations

import asyncio
import base64
import hmac
import random
import struct
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from einmal.broker.config import BrokerConfig, ConfigError
from einmal.broker.node import Node
from einmal.broker.rpc.authentication import Credentials
from einmal.event_log import fields_of
from einmal.log.disk import OsDisk
from einmal.security.principal import Principal
from einmal.security.sasl.mechanisms import SaslExchange
from einmal.security.sasl.scram import NODE_EXTENSION
from einmal.security.sasl.scram_server import credential_of
from einmal.security.sasl.scram_server import salt_of as made_up_salt
from einmal.security.secret import Secret
from einmal.types import ErrorCode
from tests.broker.cluster import Cluster
from tests.broker.nodes import Client, batch, half_sent, until
from tests.broker.sasl_client import (
    AUTHENTICATE,
    HANDSHAKE,
    METADATA,
    SHA_256,
    SHA_512,
    authenticate,
    handshake,
    plain,
    sasl_node,
    scram,
)
from tests.broker.tls_node import Tls
from tests.suite.cases import each_case

FAILED, OK = ErrorCode.sasl_authentication_failed, ErrorCode.none
SECRET = "the secret of this cluster"


async def metadata_works(client: Client) -> bool:
    return bool((await client.call(METADATA, 9, {"topics": None})).brokers)


@pytest.mark.parametrize(
    ("mechanism", "new"),
    [
        (SHA_256, lambda: scram("admin", "admin's password", SHA_256)),
        (SHA_512, lambda: scram("alice", "alice's password")),
        ("PLAIN", lambda: plain("carol", "carols-password")),
    ],
)
async def test_users_authenticate_by_every_mechanism(
    tmp_path: Path, mechanism: str, new: Callable[[], SaslExchange]
) -> None:
    async with sasl_node(tmp_path) as node, Client.connect(node) as client:
        assert await client.answers()
        assert await authenticate(client, mechanism, new()) == (OK, "", 0)
        assert await metadata_works(client)
        (connection,) = node.servers["CLIENTS"].connections.all()
        user = {"PLAIN": "carol", SHA_256: "admin", SHA_512: "alice"}[mechanism]
        assert connection.authentication.principal == Principal("User", user)


@pytest.mark.parametrize(
    ("mechanism", "new"),
    [
        (SHA_512, lambda: scram("alice", "a guess")),
        (SHA_512, lambda: scram("nobody", "a guess")),
        (SHA_512, lambda: scram("admin", "admin's password")),
        (SHA_256, lambda: scram("node-1", SECRET, SHA_256)),
        (SHA_256, lambda: scram("node-1", "", SHA_256, NODE_EXTENSION)),
        (SHA_256, lambda: scram("alice", "x", SHA_256, "tokenauth=true")),
        ("PLAIN", lambda: plain("carol", "a guess")),
        ("PLAIN", lambda: plain("nobody", "a guess")),
        ("PLAIN", lambda: plain("alice", "alice's password")),
    ],
)
async def test_wrong_credentials_get_an_error_with_a_hint_and_end_the_connection(
    tmp_path: Path, mechanism: str, new: Callable[[], SaslExchange], caplog: pytest.LogCaptureFixture
) -> None:
    async with sasl_node(tmp_path) as node, Client.connect(node) as client:
        error, message, _lifetime = await authenticate(client, mechanism, new())
        assert error is FAILED
        assert message == (
            f"{mechanism} authentication failed. Check user and password; a user has a password of its own for each "
            "SCRAM mechanism."
        )
        assert await client.is_closed()
    (line,) = [record for record in caplog.records if "authentication failed" in record.getMessage()]
    assert fields_of(line)["client"] == "127.0.0.1"
    assert "a guess" not in caplog.text and SECRET not in caplog.text


async def first_answer(node: Node, user: str, mechanism: str = SHA_512) -> list[bytes]:
    """What the broker answers whoever asks as this user, except for the nonce."""
    async with Client.connect(node) as client:
        await handshake(client, mechanism)
        answer = await client.call(AUTHENTICATE, 2, {"auth_bytes": scram(user, "wrong", mechanism).first()})
        return bytes(answer.auth_bytes).split(b",")[1:]


async def salt_of(node: Node, user: str) -> bytes:
    return base64.b64decode((await first_answer(node, user))[0][2:])


async def test_nothing_that_users_change_changes_a_made_up_exchange(tmp_path: Path) -> None:
    """Not of a user with another number of iterations, of the first one that is deleted, nor of the last."""
    async with sasl_node(tmp_path) as node:
        for mechanism, number in ((SHA_256, 1), (SHA_512, 2)):
            users = node.metadata.image.scram_credentials[number]
            seen = [await first_answer(node, "nobody", mechanism)]
            for name in list(users):
                users[name] = users[name]._replace(iterations=5_000 + len(seen))
                seen.append(await first_answer(node, "nobody", mechanism))
            for name in list(users):
                del users[name]
                seen.append(await first_answer(node, "nobody", mechanism))
            assert len(seen) >= 3 and seen == seen[:1] * len(seen)
            assert seen[0][1] == b"i=16384"


async def test_no_user_learns_whether_another_exists(tmp_path: Path) -> None:
    """Alice can derive what the broker keeps of her password, and of nobody else's."""
    async with sasl_node(tmp_path) as node:
        alice = credential_of(SHA_512, Secret("alice's password"), await salt_of(node, "alice"), 16_384)
        assert alice in node.metadata.image.scram_credentials[2].values()
        predicted = made_up_salt(hmac.digest(alice.server_key, b"salt:nobody", "sha512"))
        assert predicted != await salt_of(node, "nobody") == await salt_of(node, "nobody")


async def test_half_sent_requests_before_authentication_keep_no_one_from_large_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing makes room: there must be some.
    monkeypatch.setattr("einmal.broker.front.connections.server.STALLED_MS_MAX", 600_000)
    monkeypatch.setattr("einmal.broker.front.connections.server.STALLED_SHORT_MS_MAX", 600_000)
    settings = {"queued.max.request.bytes": 4_000_000, "socket.request.max.bytes": 4_000_000}
    async with sasl_node(tmp_path, settings) as node, Client.connect(node) as client:
        await authenticate(client, SHA_512, scram("alice", "alice's password"))
        writers = await half_sent(node.port, 60, 500_000)
        connections = node.servers["CLIENTS"].connections
        await until(lambda: sum(not each._is_reading for each in connections.all()) >= 30)
        assert node.request_memory.held == 0
        await client.create_topic("t")
        assert (await client.produce("t", batch(bytes(900_000)))).error_code == ErrorCode.none
        for writer in writers:
            writer.transport.abort()


async def test_an_unknown_mechanism_gets_the_enabled_ones_and_ends_the_connection(tmp_path: Path) -> None:
    async with sasl_node(tmp_path) as node, Client.connect(node) as client:
        answer = await handshake(client, "GSSAPI")
        assert answer.error_code is ErrorCode.unsupported_sasl_mechanism
        assert list(answer.mechanisms) == ["PLAIN", SHA_256, SHA_512]
        assert await client.is_closed()


@pytest.mark.parametrize("mechanism", [SHA_256, "PLAIN", "OAUTHBEARER"])
async def test_a_mechanism_that_the_listener_does_not_enable_is_refused(tmp_path: Path, mechanism: str) -> None:
    settings = {"listener.name.clients.sasl.enabled.mechanisms": SHA_512}
    async with sasl_node(tmp_path, settings) as node, Client.connect(node) as client:
        assert (await handshake(client, mechanism)).error_code is ErrorCode.unsupported_sasl_mechanism


@pytest.mark.parametrize("api_key", [0, 1, 3, 19, 22, 32, 51])
async def test_a_request_before_authentication_ends_the_connection_with_one_line(
    tmp_path: Path, api_key: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with sasl_node(tmp_path) as node, Client.connect(node) as client:
        assert await client.answers()
        client.send(api_key, {0: 9, 1: 13, 3: 9, 19: 7, 22: 4, 32: 4, 51: 0}[api_key], bytes(64))
        assert await client.is_closed()
    lines = [record for record in caplog.records if "client" in fields_of(record)]
    assert len(lines) == 1
    assert fields_of(lines[0])["client"] == "127.0.0.1"


async def test_a_message_without_a_handshake_is_an_illegal_state(tmp_path: Path) -> None:
    async with sasl_node(tmp_path) as node, Client.connect(node) as client:
        answer = await client.call(AUTHENTICATE, 2, {"auth_bytes": b"\0carol\0carols-password"})
        assert answer.error_code is ErrorCode.illegal_sasl_state
        client.send(METADATA, 9, bytes(4))
        assert await client.is_closed()


async def test_a_second_handshake_before_the_end_of_the_exchange_is_an_illegal_state(tmp_path: Path) -> None:
    async with sasl_node(tmp_path) as node, Client.connect(node) as client:
        assert (await handshake(client, SHA_512)).error_code is OK
        assert (await handshake(client, SHA_512)).error_code is ErrorCode.illegal_sasl_state


async def bare(client: Client, message: bytes) -> bytes:
    """The answer to a frame without a header, which is one itself."""
    client.writer.write(struct.pack(">i", len(message)) + message)
    (size,) = struct.unpack(">i", await client.reader.readexactly(4))
    return await client.reader.readexactly(size)


async def test_after_handshake_v0_the_messages_have_no_header(tmp_path: Path) -> None:
    """librdkafka 2.0.2 authenticates only at a broker that has v0, which it does not send itself."""
    async with sasl_node(tmp_path) as node:
        async with Client.connect(node) as client:
            assert (await client.call(HANDSHAKE, 0, {"mechanism": "PLAIN"})).error_code is OK
            assert await bare(client, b"\0carol\0carols-password") == b""
            assert await metadata_works(client)
        async with Client.connect(node) as client:
            assert (await client.call(HANDSHAKE, 0, {"mechanism": SHA_512})).error_code is OK
            exchange = scram("alice", "alice's password")
            message: bytes | None = exchange.first()
            while message is not None:
                message = exchange.next(await bare(client, message))
            assert await metadata_works(client)
            (connection,) = node.servers["CLIENTS"].connections.all()
            assert connection.authentication.principal == Principal("User", "alice")


async def test_the_shortest_user_and_password_authenticate_after_handshake_v0(tmp_path: Path) -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="b";'
    settings = {"listener.name.clients.plain.sasl.jaas.config": jaas}
    async with sasl_node(tmp_path, settings) as node, Client.connect(node) as client:
        assert (await client.call(HANDSHAKE, 0, {"mechanism": "PLAIN"})).error_code is OK
        assert await bare(client, b"\0a\0b") == b""
        assert await metadata_works(client)


@pytest.mark.parametrize(
    "message", [b"\0carol\0a guess", b"", bytes(3), bytes(9), struct.pack(">hhih", METADATA, 9, 1, -1)]
)
async def test_a_failure_after_handshake_v0_ends_the_connection_without_an_answer(
    tmp_path: Path, message: bytes
) -> None:
    async with sasl_node(tmp_path) as node, Client.connect(node) as client:
        assert (await client.call(HANDSHAKE, 0, {"mechanism": "PLAIN"})).error_code is OK
        client.writer.write(struct.pack(">i", len(message)) + message)
        assert await client.is_closed()


async def test_an_unknown_mechanism_in_handshake_v0_ends_the_connection(tmp_path: Path) -> None:
    async with sasl_node(tmp_path) as node, Client.connect(node) as client:
        answer = await client.call(HANDSHAKE, 0, {"mechanism": "GSSAPI"})
        assert answer.error_code is ErrorCode.unsupported_sasl_mechanism
        assert await client.is_closed()


@pytest.mark.parametrize("size", [2_000, 2**30, 2**31 - 1])
async def test_large_frames_are_refused_before_authentication_only(tmp_path: Path, size: int) -> None:
    settings = {"sasl.server.max.receive.size": 1_024}
    async with sasl_node(tmp_path, settings) as node:
        async with Client.connect(node) as stranger:
            stranger.writer.write(struct.pack(">i", size) + bytes(10))
            assert await stranger.is_closed()
        async with Client.connect(node) as client:
            assert (await authenticate(client, "PLAIN", plain("carol", "carols-password"))).error is OK
            answer = await client.call(METADATA, 9, {"topics": [{"name": "x" * 200 + str(n)} for n in range(20)]})
            assert len(answer.topics) == 20


async def test_a_truncated_frame_holds_up_nobody_else(tmp_path: Path) -> None:
    async with sasl_node(tmp_path) as node, Client.connect(node) as stuck, Client.connect(node) as client:
        stuck.writer.write(struct.pack(">i", 500) + bytes(20))
        await until(lambda: len(node.servers["CLIENTS"].connections) == 2)
        assert (await authenticate(client, "PLAIN", plain("carol", "carols-password"))).error is OK


@pytest.mark.slow
async def test_the_answer_to_a_failure_is_delayed_and_nobody_else_waits(tmp_path: Path) -> None:
    settings = {"connection.failed.authentication.delay.ms": 15_000}
    async with sasl_node(tmp_path, settings) as node, Client.connect(node) as guessing, Client.connect(node) as client:
        loop = asyncio.get_running_loop()
        began = loop.time()
        failing = asyncio.ensure_future(authenticate(guessing, SHA_512, scram("alice", "a guess")))
        assert (await authenticate(client, SHA_512, scram("alice", "alice's password"))).error is OK
        assert await metadata_works(client)
        assert not failing.done()
        assert (await failing).error is FAILED
        assert loop.time() - began >= 15


async def test_failures_of_one_address_are_logged_a_few_times_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with sasl_node(tmp_path) as node:
        for _ in range(12):
            async with Client.connect(node) as client:
                assert (await authenticate(client, "PLAIN", plain("carol", "a guess"))).error is FAILED
    assert sum("authentication failed" in record.getMessage() for record in caplog.records) == 5


async def test_a_session_that_ends_with_the_connection_can_be_renewed_after_a_second(tmp_path: Path) -> None:
    async with sasl_node(tmp_path) as node, Client.connect(node) as client:
        assert (await authenticate(client, SHA_512, scram("alice", "alice's password"))).error is OK
        assert (await handshake(client, SHA_512)).error_code is ErrorCode.illegal_sasl_state
        (connection,) = node.servers["CLIENTS"].connections.all()
        connection.authentication.done_ms -= 1_000
        assert (await authenticate(client, SHA_512, scram("alice", "alice's password"))).error is OK
        assert await metadata_works(client)


@pytest.mark.parametrize(
    ("mechanism", "new"),
    [
        (SHA_512, lambda: scram("bob", "bobs-password")),
        (SHA_256, lambda: scram("admin", "admin's password", SHA_256)),
        ("PLAIN", lambda: plain("carol", "carols-password")),
        (SHA_512, lambda: scram("alice", "a guess")),
    ],
)
async def test_a_session_is_renewed_by_the_same_user_and_mechanism_only(
    tmp_path: Path, mechanism: str, new: Callable[[], SaslExchange]
) -> None:
    async with sasl_node(tmp_path) as node, Client.connect(node) as client:
        assert (await authenticate(client, SHA_512, scram("alice", "alice's password"))).error is OK
        (connection,) = node.servers["CLIENTS"].connections.all()
        connection.authentication.done_ms -= 1_000
        error, message, _lifetime = await authenticate(client, mechanism, new())
        assert error is FAILED and "re-authentication failed" in message
        assert await client.is_closed()


async def test_a_session_lasts_for_its_lifetime_and_no_longer(tmp_path: Path) -> None:
    settings = {"connections.max.reauth.ms": 60_000, "listener.name.clients.plain.connections.max.reauth.ms": 0}
    async with sasl_node(tmp_path, settings) as node:
        async with Client.connect(node) as client:
            assert await authenticate(client, SHA_512, scram("alice", "alice's password")) == (OK, "", 60_000)
            assert await metadata_works(client)
            (connection,) = node.servers["CLIENTS"].connections.all()
            authentication = connection.authentication
            authentication.done_ms -= 60_001
            assert authentication.ends_ms is not None
            authentication.ends_ms -= 60_001
            assert (await authenticate(client, SHA_512, scram("alice", "alice's password"))).error is OK
            assert await metadata_works(client)
            authentication.ends_ms -= 60_001
            client.send(METADATA, 9, bytes(4))
            assert await client.is_closed()
        async with Client.connect(node) as client:
            assert await authenticate(client, "PLAIN", plain("carol", "carols-password")) == (OK, "", 0)


async def test_first_users_are_those_of_a_new_cluster_only(tmp_path: Path) -> None:
    async with sasl_node(tmp_path) as node, Client.connect(node) as client:
        assert (await authenticate(client, SHA_512, scram("alice", "alice's password"))).error is OK
        deletion = {"deletions": [{"name": "bob", "mechanism": 2}], "upsertions": []}
        assert (await client.call(51, 0, deletion)).results[0].error_code is OK
    again = {"einmal.bootstrap.scram.credentials": "SCRAM-SHA-512=[name=bob,password=another]"}
    async with sasl_node(tmp_path, again) as node:
        async with Client.connect(node) as client:
            assert (await authenticate(client, SHA_512, scram("bob", "another"))).error is FAILED
        async with Client.connect(node) as client:
            assert (await authenticate(client, SHA_512, scram("alice", "alice's password"))).error is OK


async def test_nodes_and_clients_share_a_listener_and_are_distinguished(tmp_path: Path) -> None:
    """A user that is called as a node is none, and the cluster's secret is nobody's password."""
    secret_file = tmp_path / "secret"
    secret_file.write_text(SECRET)
    settings = {
        "einmal.cluster.secret.file": secret_file,
        "einmal.bootstrap.scram.credentials": "SCRAM-SHA-256=[name=node-1,password=mine]",
    }
    async with sasl_node(tmp_path / "data", settings) as node:
        for exchange, error, principal in (
            (scram("node-1", "mine", SHA_256), OK, Principal("User", "node-1")),
            (scram("node-1", SECRET, SHA_256, NODE_EXTENSION), OK, None),
            (scram("node-1", SECRET, SHA_256), FAILED, None),
            (scram("node-1", "mine", SHA_256, NODE_EXTENSION), FAILED, None),
        ):
            async with Client.connect(node) as client:
                assert (await authenticate(client, SHA_256, exchange)).error is error
                if error is OK:
                    connection = max(node.servers["CLIENTS"].connections.all(), key=lambda each: each.number)
                    assert connection.authentication.principal == principal


async def test_clients_of_the_nodes_listener_are_clients_and_users_are_those_of_the_cluster(tmp_path: Path) -> None:
    """Three nodes that authenticate where clients do: by the secret, which none of the users has."""
    users = "SCRAM-SHA-512=[name=alice,password=alices-password],SCRAM-SHA-256=[name=node-2,password=x]"
    mechanisms = f"{SHA_256},{SHA_512}"
    cluster = Cluster(
        tmp_path, secret=SECRET, sasl_enabled_mechanisms=mechanisms, einmal_bootstrap_scram_credentials=users
    )
    await cluster.start()
    try:
        active = cluster.active_controller()
        other = next(node for node_id, node in cluster.nodes.items() if node_id != active)
        port = other.listening.port_of(
            next(each for each in other.config.named_listeners.of_broker if each.authenticates)
        )
        async with Client.connect_to(port) as client:
            assert (await authenticate(client, SHA_512, scram("alice", "alices-password"))).error is OK
            deletion = {"deletions": [{"name": "node-2", "mechanism": 1}], "upsertions": []}
            assert (await client.call(51, 0, deletion)).results[0].error_code is OK
            assert (await client.call(24, 5, {"transactions": []})).error_code is ErrorCode.cluster_authorization_failed
            assert (await client.call(27, 1, {"markers": []})).markers == ()
        for node in cluster.nodes.values():
            await until(lambda node=node: list(node.metadata.image.scram_credentials) == [2])  # type: ignore[misc]
        async with Client.connect_to(cluster.ports[active]) as client:
            assert (await authenticate(client, SHA_512, scram("alice", "alices-password"))).error is OK
            client.send(52, 2, bytes(20))
            assert await client.is_closed(), "a user is no voter"
    finally:
        await cluster.stop()


async def test_users_authenticate_over_tls_and_the_certificate_does_not_name_them(tmp_path: Path) -> None:
    tls = Tls(tmp_path / "tls")
    settings = {"listener.security.protocol.map": "CLIENTS:SASL_SSL", **tls.settings}
    async with sasl_node(tmp_path / "data", settings) as node:
        certificate = tls.authority.issue(tls.directory, "somebody")
        reader, writer = await asyncio.open_connection("127.0.0.1", node.port, ssl=tls.client(certificate))
        client = Client(reader, writer)
        assert (await authenticate(client, "PLAIN", plain("carol", "carols-password"))).error is OK
        assert await metadata_works(client)
        (connection,) = node.servers["CLIENTS"].connections.all()
        assert connection.authentication.principal == Principal("User", "carol")
        writer.close()


async def test_describe_configs_returns_no_secret(tmp_path: Path) -> None:
    async with sasl_node(tmp_path) as node, Client.connect(node) as client:
        assert (await authenticate(client, "PLAIN", plain("carol", "carols-password"))).error is OK
        resource = {"resource_type": 4, "resource_name": str(node.config.node_id), "configuration_keys": None}
        answer = await client.call(32, 4, {"resources": [resource], "include_synonyms": True})
        found = {entry.name: entry for entry in answer.results[0].configs}
        for name in ("listener.name.clients.plain.sasl.jaas.config", "einmal.bootstrap.scram.credentials"):
            assert found[name].value is None and found[name].is_sensitive
        assert "carols-password" not in str(answer) and "alice's password" not in str(answer)


async def test_failed_authentications_keep_nothing_from_users(tmp_path: Path) -> None:
    """Long messages, and a long delay before each of them is answered."""
    settings = {"connection.failed.authentication.delay.ms": 600_000}
    async with sasl_node(tmp_path, settings) as node, AsyncExitStack() as stack:
        user = await stack.enter_async_context(Client.connect(node))
        assert (await authenticate(user, SHA_512, scram("alice", "alice's password")))[0] is OK
        for _ in range(8):
            stranger = await stack.enter_async_context(Client.connect(node))
            await handshake(stranger, SHA_512)
            stranger.send(AUTHENTICATE, 0, struct.pack(">i", 60_000) + bytes(60_000))
        await until(lambda: sum(not each.is_idle for each in node.servers["CLIENTS"].connections.all()) == 8)
        topics = [{"name": f"unknown-{number}"} for number in range(600)]
        answer = await user.call(METADATA, 4, {"topics": topics, "allow_auto_topic_creation": False})
        assert len(answer.topics) == 600


@each_case(
    "secret, problem",
    [
        ("Sommer2026-kafka-secret", "less than 24 characters"),
        ("  Sommer2026-kafka-secret\n", "less than 24 characters"),
        ("", "less than 24 characters"),
        ("abcabcabcabcabcabcabcabcabc", "less than 10 different characters"),
        ("9e8d7c9e8d7c9e8d7c9e8d7c9e8d7c", "less than 10 different characters"),
        ("é" * 30, "less than 10 different characters"),
        (b"\xff" * 30, "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_a_secret_that_can_be_guessed_is_refused(secret: str | bytes | None, problem: str, tmp_path: Path) -> None:
    """Whoever records an exchange between nodes tries as many as he likes."""
    file = tmp_path / "secret"
    file.unlink(missing_ok=True)
    if secret is not None:
        file.write_bytes(secret if isinstance(secret, bytes) else secret.encode())
    credentials = Credentials(BrokerConfig(einmal_cluster_secret_file=str(file)), OsDisk(), random.Random(1))
    with pytest.raises(ConfigError, match=problem) as refusal:
        credentials.load()
    assert str(file) in str(refusal.value)


@each_case("secret", ["0123456789abcdef01234567", "vB7tq0Zc9mXw2LrY5sKd8HnP4jGf6aTe\n"])
def test_a_random_secret_is_taken(secret: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(secret)
    credentials = Credentials(BrokerConfig(einmal_cluster_secret_file=str(file)), OsDisk(), random.Random(1))
    credentials.load()
    assert credentials.secret.reveal() == secret.strip()


async def test_salts_reveal_nothing_of_the_secret_and_stay(tmp_path: Path) -> None:
    """Of nodes and of unknown users: others in another cluster with the same secret, and the same after a restart."""

    async def salts(folder: str) -> tuple[bytes, bytes]:
        (tmp_path / folder).mkdir(exist_ok=True)
        async with sasl_node(tmp_path / folder) as node, Client.connect(node) as client:
            await handshake(client, SHA_256)
            first = scram("node-1", "wrong", SHA_256, NODE_EXTENSION).first()
            answer = await client.call(AUTHENTICATE, 2, {"auth_bytes": first})
            of_unknown = await salt_of(node, "nobody")
            users = node.metadata.image.scram_credentials[2]
            users.pop(next(iter(users)))
            assert await salt_of(node, "nobody") == of_unknown
            return base64.b64decode(bytes(answer.auth_bytes).split(b",")[1][2:]), of_unknown

    first, again, other = await salts("a"), await salts("a"), await salts("b")
    assert first == again
    assert first[0] != other[0] and first[1] != other[1]
