"""Listeners with TLS, on real sockets: who is let in, as whom, what others see of bad input, and new certificates."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import pytest
import uvloop

from einmal.broker.config import ConfigError
from einmal.broker.front.connections import tls_server
from einmal.broker.node import Node
from einmal.event_log import fields_of
from einmal.security.principal import ANONYMOUS, Principal
from einmal.wire.fetch import FetchPartition, FetchRequest, encode_fetch_request
from einmal.wire.frames import frame
from einmal.wire.messages import encode_request_header
from tests.broker.nodes import Client, batch, new_node, running_node, until
from tests.broker.tls_node import Tls, port_of
from tests.security.certificates import Authority
from tests.suite.patience import patient

API_VERSIONS, DESCRIBE_CONFIGS = 18, 32


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    return Tls(tmp_path)


@asynccontextmanager
async def client_of(node: Node, context: ssl.SSLContext) -> AsyncIterator[Client]:
    async with Client.connect_to(port_of(node, "SSL"), context) as client:
        yield client


def principals(node: Node) -> list[Principal | None]:
    return [each.authentication.principal for each in node.servers["SSL"].connections.all()]


def lines(caplog: pytest.LogCaptureFixture, text: str) -> list[logging.LogRecord]:
    return [each for each in caplog.records if text in each.getMessage()]


# --- data --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_records_pass_unchanged(tls: Tls, version: ssl.TLSVersion) -> None:
    context = tls.client()
    context.minimum_version = context.maximum_version = version
    values = [random.Random(seed).randbytes(300_000) for seed in range(3)]
    async with tls.node() as node, client_of(node, context) as client:
        await client.create_topic("t")
        for value in values:
            await client.produce("t", batch(value))
        fetched = await client.fetch("t", 0, max_bytes=2**24)
        assert all(value in bytes(fetched.records) for value in values)
        assert principals(node) == [ANONYMOUS]


def produced_and_fetched(loop: Callable[[], asyncio.AbstractEventLoop], tls: Tls) -> str:
    """The digest of what comes back of 8 MB."""

    async def work() -> str:
        async with tls.node() as node, client_of(node, tls.client()) as client:
            await client.create_topic("t")
            value = random.Random(1).randbytes(1_000_000)
            for _ in range(8):
                await client.produce("t", batch(value))
            digest = hashlib.sha256()
            for offset in range(8):
                digest.update((await client.fetch("t", offset)).records)
            return digest.hexdigest()

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(work())


def test_uvloop_and_asyncio_carry_the_same(tmp_path: Path) -> None:
    assert produced_and_fetched(uvloop.new_event_loop, Tls(tmp_path / "1")) == produced_and_fetched(
        asyncio.new_event_loop, Tls(tmp_path / "2")
    )


async def test_an_answer_that_the_client_takes_late_waits_unencrypted_and_arrives(tls: Tls) -> None:
    async with tls.node() as node, client_of(node, tls.client()) as client:
        await client.create_topic("t")
        await client.produce("t", batch(random.Random(1).randbytes(1_000_000)))
        for _ in range(40):
            client.send(1, 12, fetch_body())
        connection = node.servers["SSL"].connections.all()[0]
        await until(lambda: not connection._can_write or connection._leaving.held)
        sizes = [len(await client.receive()) for _ in range(40)]
        assert min(sizes) > 1_000_000


def fetch_body() -> bytes:
    request = FetchRequest(
        topics=[("t", [FetchPartition(0, 0, 2**21)])], max_wait_ms=0, min_bytes=1, max_bytes=2**21, isolation_level=0
    )
    return encode_fetch_request(12, request)


# --- who is let in -----------------------------------------------------------------------------------------------


async def test_a_client_certificate_gives_its_name_to_the_connection(tls: Tls) -> None:
    alice = tls.authority.issue(tls.directory, "alice")
    async with tls.node(ssl_client_auth="required") as node, client_of(node, tls.client(alice)) as client:
        assert await client.answers()
        assert principals(node) == [Principal("User", "CN=alice")]


async def test_mapping_rules_shorten_the_name(tls: Tls) -> None:
    alice = tls.authority.issue(tls.directory, "alice")
    rules = "RULE:^CN=(.*)$/$1/U"
    async with (
        tls.node(ssl_client_auth="requested", ssl_principal_mapping_rules=rules) as node,
        client_of(node, tls.client(alice)) as client,
        client_of(node, tls.client()) as nobody,
    ):
        assert await client.answers() and await nobody.answers()
        assert sorted(map(str, principals(node))) == ["User:ALICE", "User:ANONYMOUS"]


async def test_a_certificate_without_a_rule_is_refused_with_its_name(
    tls: Tls, caplog: pytest.LogCaptureFixture
) -> None:
    alice = tls.authority.issue(tls.directory, "alice")
    rules = "RULE:^O=(.*)$/$1/"
    async with tls.node(ssl_client_auth="required", ssl_principal_mapping_rules=rules) as node:
        async with client_of(node, tls.client(alice)) as client:
            assert await client.is_closed()
        assert lines(caplog, "no rule of ssl.principal.mapping.rules matches 'CN=alice'")


@pytest.mark.parametrize(
    ("name", "rules"), [("", "DEFAULT"), ("alice", "RULE:^CN=alice$//")], ids=["no subject", "an empty replacement"]
)
async def test_a_certificate_of_nobody_is_refused(
    tls: Tls, name: str, rules: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A user without a name could have no ACL and no quota of its own, and no request of it be forwarded."""
    certificate = tls.authority.issue(tls.directory, name)
    async with tls.node(ssl_client_auth="requested", ssl_principal_mapping_rules=rules) as node:
        async with client_of(node, tls.client(certificate)) as client:
            assert await client.is_closed()
        assert lines(caplog, "the client's certificate names nobody")


@pytest.mark.parametrize("client_auth", ["none", "required"])
async def test_client_certificates_of_any_authority_are_warned_of(
    tls: Tls, client_auth: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with tls.node(ssl_client_auth=client_auth, ssl_truststore_location="", ssl_truststore_type=""):
        assert len(lines(caplog, "any authority that this machine trusts")) == (client_auth == "required")


async def test_a_session_is_not_resumed_beyond_the_end_of_its_certificate(
    tls: Tls, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = tls.client(tls.authority.issue(tls.directory, "alice", days=1))
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def connected(port: int, session: ssl.SSLSession | None = None) -> ssl.SSLSocket:
        raw = socket.create_connection(("127.0.0.1", port), patient(5))
        return context.wrap_socket(raw, server_hostname="localhost", session=session)

    def may_resume(port: int) -> bool:
        """Whether a second connection in the session of a first one is accepted."""
        with connected(port) as first, connected(port, first.session) as second:
            assert second.session_reused
            try:
                second.sendall(frame(encode_request_header(API_VERSIONS, 0, 1, "test"), b""))
                return bool(second.recv(1))
            except OSError:
                return False

    async with tls.node(ssl_client_auth="required") as node:
        port, listener = port_of(node, "SSL"), node.tls.of("SSL")
        assert await asyncio.to_thread(may_resume, port)
        monkeypatch.setattr(type(listener), "_now", datetime.now(UTC) + timedelta(days=2))
        assert not await asyncio.to_thread(may_resume, port)
        assert lines(caplog, "it has expired since the TLS session began")


@pytest.mark.parametrize("kind", ["none", "foreign", "expired"])
async def test_a_client_without_a_valid_certificate_is_refused_and_logged_once(
    tls: Tls, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    certificate = {
        "none": None,
        "foreign": Authority("others").issue(tls.directory, "mallory"),
        "expired": tls.authority.issue(tls.directory, "old", days=-1),
    }[kind]
    reason = {
        "none": "the client sends no certificate: ssl.client.auth=required",
        "foreign": "certificate cannot be verified (unable to get local issuer certificate): ssl.truststore",
        "expired": "certificate cannot be verified (certificate has expired)",
    }[kind]
    async with tls.node(ssl_client_auth="required") as node:
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            async with client_of(node, tls.client(certificate)) as client:
                await client.answers()
        (line,) = lines(caplog, "TLS handshake failed")
        assert reason in line.getMessage()
        assert (fields_of(line)["client"], fields_of(line)["listener"]) == ("127.0.0.1", "SSL")


async def test_a_client_that_does_not_trust_the_broker_is_logged(tls: Tls, caplog: pytest.LogCaptureFixture) -> None:
    async with tls.node() as node:
        with pytest.raises(ssl.SSLCertVerificationError):
            async with client_of(node, ssl.create_default_context()):
                pass
        await until(lambda: lines(caplog, "it may not trust this broker"))


async def test_only_the_enabled_versions_and_suites_are_supported(tls: Tls) -> None:
    suite = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
    async with tls.node(ssl_cipher_suites=suite) as node, client_of(node, tls.client()) as client:
        assert client.writer.get_extra_info("cipher")[:2] == ("ECDHE-ECDSA-AES256-GCM-SHA384", "TLSv1.2")
    context = tls.client()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with tls.node(ssl_enabled_protocols="TLSv1.3") as node:
        with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
            async with client_of(node, context):
                pass


# --- bad input ---------------------------------------------------------------------------------------------------


async def first_answer(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await asyncio.wait_for(reader.read(), patient(10))
    except ConnectionError:
        return b""
    finally:
        writer.close()


@cache
def hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


HTTP = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
KAFKA = struct.pack(">ihhih4s", 14, 18, 0, 1, 4, b"test")


@pytest.mark.parametrize(
    ("listener", "data", "reason"),
    [
        ("SSL", KAFKA, "the client does not speak TLS, and this listener is SSL: set the client's"),
        ("SSL", HTTP, "the client speaks HTTP, and this listener is SSL: set the client's security.protocol to SSL"),
        ("SSL", b"\x16\x03\x01\x00\x05hello", "TLS handshake failed"),
        (
            "PLAINTEXT",
            hello(),
            "the client speaks TLS, and this listener is PLAINTEXT: set the client's",
        ),
        ("PLAINTEXT", HTTP, "the client speaks HTTP, and this listener is PLAINTEXT"),
    ],
)
async def test_another_protocol_closes_the_connection_with_one_line_that_names_it(
    tls: Tls, listener: str, data: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with tls.node() as node:
        await first_answer(port_of(node, listener), data)
        (line,) = lines(caplog, "connection closed")
        assert reason in line.getMessage()
        assert (fields_of(line)["client"], fields_of(line)["listener"]) == ("127.0.0.1", listener)


async def test_random_bytes_in_a_handshake_only_close_the_connection(tls: Tls) -> None:
    source = random.Random(5)
    async with tls.node() as node, client_of(node, tls.client()) as good:
        for _ in range(100):
            data = bytearray(hello())
            for _change in range(source.randrange(1, 20)):
                data[source.randrange(len(data))] = source.randrange(256)
            await first_answer_soon(port_of(node, "SSL"), bytes(data))
        assert await good.answers()


async def first_answer_soon(port: int, data: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        async with asyncio.timeout(0.02):
            await reader.read(1)
    except (ConnectionError, TimeoutError):
        pass
    finally:
        writer.transport.abort()


async def test_a_handshake_that_stalls_is_ended_in_time(
    tls: Tls, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tls_server, "HANDSHAKE_MS_MAX", 200)
    async with tls.node() as node:
        assert await first_answer(port_of(node, "SSL"), hello()[:40]) == b""
        assert lines(caplog, "its TLS handshake has not ended")
        assert not node.servers["SSL"].connections.all()


async def test_the_oldest_pending_handshake_makes_room(tls: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_server, "HANDSHAKE_MS_MAX", 600_000)
    monkeypatch.setattr(tls_server, "PENDING_MAX", 10)
    async with tls.node() as node:
        port = port_of(node, "SSL")
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(11)]
        try:
            assert await asyncio.wait_for(closed(silent[0][0]), patient(10))
            async with client_of(node, tls.client()) as client:
                assert await client.answers()
            assert len(node.servers["SSL"].connections) <= 10
        finally:
            for _reader, writer in silent:
                writer.close()


async def closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True


async def test_a_handshake_counts_as_a_connection_of_its_address(tls: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_server, "HANDSHAKE_MS_MAX", 600_000)
    async with tls.node(max_connections_per_ip=2) as node:
        port = port_of(node, "SSL")
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await until(lambda: len(node.servers["SSL"].connections) == 2)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(closed(reader), patient(10))
        for _reader, each in [*silent, (reader, writer)]:
            each.close()


# --- certificates of the broker ----------------------------------------------------------------------------------


def serial(client: Client) -> str:
    return str(client.writer.get_extra_info("peercert")["serialNumber"])


async def test_new_connections_use_a_changed_certificate_and_a_broken_one_is_not_used(
    tls: Tls, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with tls.node() as node, client_of(node, tls.client()) as before:
        first = serial(before)
        tls.broker = tls.authority.issue(tls.directory, "broker")
        await node.tls.refresh()
        async with client_of(node, tls.client()) as client:
            second = serial(client)
        assert first != second and await before.answers()
        other = tls.authority.issue(tls.directory, "other")
        for broken in ("rubbish", tls.broker.certificate_pem + other.key_pem):
            tls.broker.store.write_text(broken)
            await node.tls.refresh()
            await node.tls.refresh()
            async with client_of(node, tls.client()) as client:
                assert serial(client) == second
        told = [each.getMessage() for each in lines(caplog, "the changed certificate files are not used")]
        assert len(told) == 2 and "is not the key of the certificate" in told[1]
        tls.broker.store.write_text(tls.broker.key_pem + tls.broker.certificate_pem)
        await node.tls.refresh()
        assert lines(caplog, "new connections use the changed certificate files")


async def test_an_expired_certificate_of_its_own_is_a_warning_at_the_start(
    tls: Tls, caplog: pytest.LogCaptureFixture
) -> None:
    tls.broker = tls.authority.issue(tls.directory, "broker", days=-1)
    async with tls.node():
        assert lines(caplog, "the certificate has expired")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ssl.keystore.location": ""}, "listener SSL: a listener with SSL or SASL_SSL has no certificate"),
        ({"ssl.keystore.location": "/nowhere.pem"}, "/nowhere.pem cannot be read: No such file"),
        ({"ssl.keystore.type": "JKS", "ssl.keystore.location": "/k.jks"}, "convert it: keytool -importkeystore"),
        ({"ssl.truststore.type": "PKCS12", "ssl.truststore.location": "/t.p12"}, "convert it: openssl pkcs12 -in"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "TLSv1.1 is not supported"),
        ({"ssl.cipher.suites": "TLS_NOT_THERE"}, "OpenSSL has no"),
        ({"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}, "cannot be chosen one by one"),
        ({"ssl.principal.mapping.rules": "RULE:(?=a)b/x/"}, "no regular expression of RE2"),
    ],
)
async def test_settings_that_cannot_be_kept_prevent_the_start(tls: Tls, settings: dict[str, str], message: str) -> None:
    values = {"listeners": "SSL://127.0.0.1:0", **tls.settings, **settings}
    node = new_node(tls.directory / "data", values)
    with pytest.raises(ConfigError, match=message.replace("[", "\\[")):
        await node.start()
    await node.stop()


async def test_keys_and_passwords_are_shown_to_nobody(tls: Tls) -> None:
    secret = tls.authority.issue(tls.directory, "encrypted", password="canary-2a")
    values = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "ssl.keystore.key": secret.key_pem,
        "ssl.keystore.certificate.chain": secret.certificate_pem,
        "listener.name.ssl.ssl.key.password": "canary-2a",
    }
    async with running_node(tls.directory / "data", values) as node, Client.connect(node) as client:
        resource = {"resource_type": 4, "resource_name": "1", "configuration_keys": None}
        answer = await client.call(DESCRIBE_CONFIGS, 4, {"resources": [resource]})
        told = {each.name: each for each in answer.results[0].configs}
        for name in ("ssl.keystore.key", "listener.name.ssl.ssl.key.password", "ssl.key.password"):
            assert told[name].is_sensitive and told[name].value is None, name
        for text in (repr(answer), repr(node.config), repr(node.tls.__dict__)):
            assert "canary" not in text and secret.key_pem.splitlines()[1] not in text
        async with client_of(node, tls.client()) as encrypted:
            assert await encrypted.answers()
