"""Claims about TLS and SASL on a connection: the order of requests, renewed sessions, and brokers that are wrong."""

from __future__ import annotations

import asyncio
import logging
import ssl
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from einmal.client.aio import Admin, Consumer, Producer
from einmal.client.apis import ApiKey
from einmal.client.errors import (
    ConfigError,
    KafkaError,
    NoBrokerReachable,
    SaslAuthenticationFailed,
    SslHandshakeFailed,
)
from einmal.types import ErrorCode, TopicPartition
from einmal.wire.messages import RequestHeader
from tests.client.aio.scripted_broker import ScriptedBroker, Session
from tests.security.certificates import Authority
from tests.suite.patience import patient

CANARY = "canary-8"
HANDSHAKE, AUTHENTICATE, METADATA, API_VERSIONS = 17, 36, 3, 18
PLAIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "alice",
    "sasl.password": CANARY,
}
SCRAM = PLAIN | {"sasl.mechanism": "SCRAM-SHA-256"}


class Sasl:
    """A broker's answers: fields by api key, each a dict or a function that makes one."""

    def __init__(self, **fields: Any) -> None:
        self.handshake: dict[str, Any] = {"error_code": ErrorCode.none, "mechanisms": ["PLAIN", "SCRAM-SHA-256"]}
        self.authenticate: dict[str, Any] = {"error_code": ErrorCode.none, "auth_bytes": b""}
        self.messages: list[bytes] = []
        self.sessions: dict[Session, list[int]] = {}
        """The api keys of each connection's requests, without ApiVersions."""
        self.broker = ScriptedBroker(self.answer)
        for name, value in fields.items():
            setattr(self, name, getattr(self, name) | value)

    def answer(self, session: Session, header: RequestHeader, request: bytes) -> None:
        self.sessions.setdefault(session, []).append(header.api_key)
        if header.api_key == HANDSHAKE:
            session.answer(header, self.handshake)
        elif header.api_key == AUTHENTICATE:
            self.messages.append(request)
            session.answer(header, self.authenticate)
        elif header.api_key == METADATA:
            session.answer(header, self.broker.metadata())

    @property
    def keys(self) -> list[int]:
        """The api keys of the requests so far."""
        return [each.api_key for each in self.broker.requests]


async def failure(bootstrap: str, settings: dict[str, str]) -> KafkaError:
    """The error of a client, which comes long before the call's own deadline: that is later than the test's."""
    long = {"bootstrap.servers": bootstrap, "default.api.timeout.ms": "1000000"}
    async with Admin(long | settings) as admin:
        with pytest.raises(KafkaError) as caught:
            await admin.list_topics()
    assert CANARY not in f"{caught.value} {caught.value!r}"
    return caught.value


async def test_a_client_authenticates_before_its_first_request() -> None:
    sasl = Sasl()
    async with sasl.broker as broker, Admin({"bootstrap.servers": broker.bootstrap} | PLAIN) as admin:
        await admin.list_topics()
    assert sasl.keys[:4] == [API_VERSIONS, HANDSHAKE, AUTHENTICATE, METADATA]
    assert f"\0alice\0{CANARY}".encode() in sasl.messages[0]


async def test_rejected_credentials_are_sent_once_and_reported_in_the_brokers_words() -> None:
    told = "Authentication failed: Invalid username or password\n\x1b[31m"
    sasl = Sasl(authenticate={"error_code": ErrorCode.sasl_authentication_failed, "error_message": told})
    async with sasl.broker as broker:
        error = await failure(broker.bootstrap, PLAIN)
    assert isinstance(error, SaslAuthenticationFailed)
    assert str(error).startswith("SASL_AUTHENTICATION_FAILED (58): the broker rejects the credentials")
    assert "Invalid username or password??[31m" in str(error)
    assert "now 'alice'" in error.what_to_do
    assert len(sasl.messages) == 1


async def test_a_client_that_is_used_again_at_once_does_not_ask_the_broker_again() -> None:
    """Every attempt counts where accounts are locked."""
    sasl = Sasl(authenticate={"error_code": ErrorCode.sasl_authentication_failed})
    async with sasl.broker as broker:
        settings = {"bootstrap.servers": broker.bootstrap, "reconnect.backoff.ms": "60000"}
        async with Admin(settings | {"reconnect.backoff.max.ms": "60000"} | PLAIN) as admin:
            for _ in range(3):
                with pytest.raises(SaslAuthenticationFailed):
                    await admin.list_topics()
    assert len(sasl.messages) == 1


async def test_an_unknown_mechanism_names_those_of_the_listener() -> None:
    sasl = Sasl(
        handshake={"error_code": ErrorCode.unsupported_sasl_mechanism, "mechanisms": ["GSSAPI", "SCRAM-SHA-512"]}
    )
    async with sasl.broker as broker:
        error = await failure(broker.bootstrap, PLAIN)
    assert str(error).startswith("UNSUPPORTED_SASL_MECHANISM (33)")
    assert "set sasl.mechanism to one that it supports: GSSAPI, SCRAM-SHA-512" in error.what_to_do


async def test_a_broker_that_does_not_continue_the_exchange_is_not_trusted() -> None:
    sasl = Sasl(authenticate={"auth_bytes": b"r=0123456789abcdef,s=c2FsdA==,i=4096"})
    async with sasl.broker as broker:
        error = await failure(broker.bootstrap, SCRAM)
    assert isinstance(error, SaslAuthenticationFailed)
    assert "nonce" in str(error)


async def test_a_connection_that_ends_at_the_first_request_may_lack_sasl() -> None:
    async with ScriptedBroker(lambda session, *_: session.transport.close()) as broker:
        error = await failure(broker.bootstrap, {"default.api.timeout.ms": "500"})
        while not broker.requests:
            # In so short a time a busy machine may not have connected.
            error = await failure(broker.bootstrap, {"default.api.timeout.ms": "500"})
    assert "a listener that requires SASL behaves like this (security.protocol)" in str(error)


@pytest.mark.parametrize("is_reset", [False, True])
async def test_a_client_without_sasl_learns_at_its_second_connection_that_the_listener_requires_it(
    is_reset: bool,
) -> None:
    def answer(session: Session, header: RequestHeader, _request: bytes) -> None:
        if header.api_key == HANDSHAKE:
            mechanisms = ["PLAIN", "SCRAM-SHA-512"]
            session.answer(header, {"error_code": ErrorCode.unsupported_sasl_mechanism, "mechanisms": mechanisms})
        elif is_reset:
            session.transport.abort()
        else:
            session.transport.close()

    async with ScriptedBroker(answer) as broker:
        broker.also = (HANDSHAKE,)
        error = await failure(broker.bootstrap, {})
        assert [each.api_key for each in broker.requests] == [API_VERSIONS, METADATA, API_VERSIONS, HANDSHAKE]
    assert isinstance(error, SaslAuthenticationFailed)
    assert str(error).startswith("ILLEGAL_SASL_STATE (34): the listener requires SASL")
    assert error.what_to_do.startswith("set security.protocol=SASL_PLAINTEXT")
    assert error.what_to_do.endswith("PLAIN, SCRAM-SHA-512")


async def test_a_connection_that_was_cut_off_by_a_listener_without_sasl_is_made_again() -> None:
    """As by a broker that is being stopped."""
    cut_off: list[Session] = []

    def answer(session: Session, header: RequestHeader, _request: bytes) -> None:
        if header.api_key == HANDSHAKE:
            session.answer(header, {"error_code": ErrorCode.illegal_sasl_state, "mechanisms": []})
        elif not cut_off:
            cut_off.append(session)
            session.transport.close()
        else:
            session.answer(header, broker.metadata())

    async with ScriptedBroker(answer) as broker, Admin({"bootstrap.servers": broker.bootstrap}) as admin:
        broker.also = (HANDSHAKE,)
        assert await admin.list_topics() == []
        assert HANDSHAKE in [each.api_key for each in broker.requests]


async def test_the_cause_of_a_failed_connection_is_logged_once_at_the_first_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"\x15\x03\x01\x00\x02\x02\x28")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        with caplog.at_level(logging.WARNING, "einmal.client"):
            error = await failure(f"{host}:{port}", {"bootstrap.timeout.ms": "1000"})
    assert isinstance(error, NoBrokerReachable)
    (line,) = (record.getMessage() for record in caplog.records)
    for text in (line, str(error)):
        assert "the answer is TLS: set security.protocol to SSL or SASL_SSL" in text


@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize("body", [b"", b"\0", b"\0\0\0", b"\0\0\0\0\x7fr=", b"\0" + b"\xff" * 9])
async def test_a_truncated_sasl_frame_ends_the_connection_with_a_reason(body: bytes, missing: int) -> None:
    """``missing``: bytes that the frame's length promises, and that do not come."""

    def answer(session: Session, header: RequestHeader, _request: bytes) -> None:
        if header.api_key == HANDSHAKE:
            session.answer(header, {"error_code": ErrorCode.none, "mechanisms": ["PLAIN"]})
        else:
            frame = header.correlation_id.to_bytes(4) + body
            session.transport.write((len(frame) + missing).to_bytes(4) + frame)
            session.transport.close()

    async with ScriptedBroker(answer) as broker:
        error = await failure(broker.bootstrap, PLAIN)
        assert broker.bootstrap in str(error)
    assert isinstance(error, NoBrokerReachable)


# --- sessions that end ------------------------------------------------------------------------------------------


async def test_a_session_is_renewed_before_it_ends_and_requests_wait_meanwhile() -> None:
    sasl = Sasl(authenticate={"session_lifetime": 300})
    async with sasl.broker as broker, Admin({"bootstrap.servers": broker.bootstrap} | PLAIN) as admin:

        def is_renewed(keys: list[int]) -> bool:
            return keys.count(METADATA) > keys.count(HANDSHAKE) > 1

        async with asyncio.timeout(patient(30)):
            while not (sasl.sessions and all(map(is_renewed, sasl.sessions.values()))):
                await asyncio.gather(*(admin.list_topics() for _ in range(3)))
        assert all(not session.transport.is_closing() for session in broker.sessions), "the connections were kept"
    for keys in sasl.sessions.values():
        followers = [follower for key, follower in pairwise(keys) if key == HANDSHAKE]
        assert followers == [AUTHENTICATE] * len(followers), "no request came between the steps of a renewal"


async def test_a_renewal_that_fails_is_reported_by_the_next_call() -> None:
    sasl = Sasl(authenticate={"session_lifetime": 200})
    async with sasl.broker as broker, Admin({"bootstrap.servers": broker.bootstrap} | PLAIN) as admin:
        await admin.list_topics()
        sasl.authenticate = {"error_code": ErrorCode.sasl_authentication_failed, "error_message": "user is gone"}
        with pytest.raises(SaslAuthenticationFailed, match="user is gone"):
            while True:
                await admin.list_topics()


async def test_a_client_is_closed_while_its_session_is_being_renewed() -> None:
    sasl = Sasl(authenticate={"session_lifetime": 50})
    async with sasl.broker as broker, Admin({"bootstrap.servers": broker.bootstrap} | PLAIN) as admin:
        await admin.list_topics()
        answer = broker.answer
        is_renewing = asyncio.Event()

        def silent(session: Session, header: RequestHeader, request: bytes) -> None:
            if header.api_key == HANDSHAKE:
                is_renewing.set()
            else:
                answer(session, header, request)

        broker.answer = silent
        await is_renewing.wait()


class Revoked(Sasl):
    """A broker that serves one topic, until it ends a connection at ``at`` and knows the user no longer."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def answer(self, session: Session, header: RequestHeader, request: bytes) -> None:
        if header.api_key == self.at:
            self.authenticate = {"error_code": ErrorCode.sasl_authentication_failed, "error_message": "user is gone"}
            session.transport.close()
        elif header.api_key == METADATA:
            partition = {
                "partition_index": 0,
                "leader_id": 1,
                "leader_epoch": 0,
                "replica_nodes": [1],
                "isr_nodes": [1],
            }
            topics = [{"name": "t", "topic_id": UUID(int=1), "partitions": [partition]}]
            session.answer(header, self.broker.metadata() | {"topics": topics})
        else:
            super().answer(session, header, request)


async def test_a_producer_whose_user_is_gone_fails_its_records_at_once() -> None:
    revoked = Revoked(ApiKey.PRODUCE)
    async with revoked.broker as broker:
        settings = {"bootstrap.servers": broker.bootstrap, "acks": "1"} | PLAIN
        async with Producer(settings) as producer:
            with pytest.raises(SaslAuthenticationFailed, match="user is gone"):
                await producer.send("t", b"v")


async def test_a_consumer_whose_user_is_gone_raises_from_poll() -> None:
    revoked = Revoked(ApiKey.FETCH)
    async with revoked.broker as broker, Consumer({"bootstrap.servers": broker.bootstrap} | PLAIN) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.seek(TopicPartition("t", 0), 0)
        with pytest.raises(SaslAuthenticationFailed, match="user is gone"):
            await consumer.poll(1_000_000)


# --- TLS --------------------------------------------------------------------------------------------------------


def server_context(
    authority: Authority, directory: Path, hosts: list[str], *, days: int = 3, needs_client: bool = False
) -> ssl.SSLContext:
    certificate = authority.issue(directory, "server", hosts, days=days)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    if needs_client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=authority.pem)
    return context


def metadata_only(session: Session, header: RequestHeader, _request: bytes) -> None:
    session.answer(header, session._broker.metadata())


def settings_of(authority: Authority, directory: Path) -> dict[str, str]:
    return {"security.protocol": "SSL", "ssl.ca.location": str(authority.write(directory / "ca.pem"))}


async def test_tls_with_a_private_authority(tmp_path: Path) -> None:
    authority = Authority()
    context = server_context(authority, tmp_path, ["127.0.0.1"])
    settings = settings_of(authority, tmp_path)
    async with (
        ScriptedBroker(metadata_only, context) as broker,
        Admin(settings, bootstrap_servers=broker.bootstrap) as a,
    ):
        assert await a.list_topics() == []


async def test_a_wrong_host_name_is_reported_with_the_names_of_the_certificate(tmp_path: Path) -> None:
    authority = Authority()
    context = server_context(authority, tmp_path, ["kafka.test", "10.1.2.3"])
    async with ScriptedBroker(metadata_only, context) as broker:
        settings = settings_of(authority, tmp_path)
        error = await failure(broker.bootstrap, settings)
        assert isinstance(error, SslHandshakeFailed)
        assert "the certificate is another host's; its names: kafka.test, 10.1.2.3" in str(error)
        unchecked = settings | {"ssl.endpoint.identification.algorithm": "none"}
        async with Admin({"bootstrap.servers": broker.bootstrap} | unchecked) as admin:
            assert await admin.list_topics() == []


@pytest.mark.parametrize(
    ("days", "foreign", "expected"),
    [
        (-1, None, "the broker's certificate has expired"),
        (3, "other", "the authority of the broker's certificate is not"),
        # An authority that was made again under its name.
        (3, "einmal tests", "the authority of the broker's certificate is not"),
    ],
)
async def test_an_expired_and_a_foreign_certificate_have_hints_of_their_own(
    tmp_path: Path, days: int, foreign: str | None, expected: str
) -> None:
    authority = Authority()
    context = server_context(authority, tmp_path, ["127.0.0.1"], days=days)
    async with ScriptedBroker(metadata_only, context) as broker:
        trusted = authority if foreign is None else Authority(foreign)
        error = await failure(broker.bootstrap, settings_of(trusted, tmp_path))
        assert isinstance(error, SslHandshakeFailed)
        assert expected in str(error)


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_missing_client_certificate_is_named_under_both_versions_of_tls(
    tmp_path: Path, newest: ssl.TLSVersion
) -> None:
    authority = Authority()
    context = server_context(authority, tmp_path, ["127.0.0.1"], needs_client=True)
    context.maximum_version = newest
    async with ScriptedBroker(metadata_only, context) as broker:
        # asyncio's server ends the connection without TLS's alert; Apache Kafka sends it.
        error = await failure(broker.bootstrap, settings_of(authority, tmp_path))
        assert "a listener that requires a client certificate may behave like this" in str(error)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_a_listener_without_tls_is_named(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        error = await failure(f"{host}:{port}", {"security.protocol": "SSL"})
    assert isinstance(error, SslHandshakeFailed if answer else NoBrokerReachable)
    assert "SSL handshake failed" in str(error)
    assert "security.protocol" in str(error)


async def test_a_missing_file_is_an_error_of_the_setting(tmp_path: Path) -> None:
    error = await failure("127.0.0.1:1", {"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "missing")})
    assert isinstance(error, ConfigError)
    assert "missing cannot be read: No such file or directory" in str(error)
