"""A load generator that costs next to nothing: ready-made requests over one blocking connection.

A client library would be measured instead of the broker. So requests are encoded before the clock starts, answers are
counted, and only the first is checked for errors.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final, cast

from einmal.client.config import ClientSettings, parse
from einmal.security.tls import tls_context
from einmal.types import ErrorCode
from einmal.wire import messages
from einmal.wire.fetch import FetchPartition, FetchRequest, decode_fetch_response, encode_fetch_request
from einmal.wire.frames import frame
from einmal.wire.produce import ProduceRequest, decode_produce_response, encode_produce_request
from einmal.wire.record_batch import NewRecord, encode_batch

PRODUCE_VERSION: Final = 9
FETCH_VERSION: Final = 12
CLIENT_ID: Final = "einmal-bench"
_LARGE_ANSWER: Final = 1 << 16
_NOT_YET_LED: Final = (
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.leader_not_available,
)
_UNTIL_LED_S: Final = 10.0
_POLL_S: Final = 0.02


class BenchRefused(Exception):
    """A requested measurement that is not possible: an unknown name, an error of the broker, a query that failed."""


def tls_of(bootstrap_servers: str, security: Mapping[str, str]) -> ssl.SSLContext | None:
    """None: the broker's listener is not encrypted. Raises BenchRefused, or ConfigError."""
    settings = parse(ClientSettings, {"bootstrap.servers": bootstrap_servers, **security}, {}).security
    if settings.sasl is not None:
        raise BenchRefused("ready-made requests do not authenticate by SASL: take an SSL listener, or the case client")
    return None if settings.tls is None else tls_context(settings.tls)


def reach(bootstrap_servers: str) -> None:
    """Raises ConfigError, OSError."""
    parse(ClientSettings, {"bootstrap.servers": bootstrap_servers}, {})
    Connection(bootstrap_servers).close()


class Connection:
    """One blocking connection; requests may be pipelined, answers come in order."""

    def __init__(self, bootstrap_servers: str, tls: ssl.SSLContext | None = None) -> None:
        host, port = bootstrap_servers.split(",")[0].rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        self._received = b""
        self._position = 0

    def close(self) -> None:
        self._socket.close()

    def send(self, request: bytes) -> None:
        self._socket.sendall(request)

    def receive(self) -> bytes:
        """The next answer, without its length."""
        while len(self._received) - self._position < 4:
            self._read_some()
        (size,) = struct.unpack_from(">i", self._received, self._position)
        if size > _LARGE_ANSWER:
            return self._receive_large(size)
        while len(self._received) - self._position < 4 + size:
            self._read_some()
        self._position += 4 + size
        return self._received[self._position - size : self._position]

    def _read_some(self) -> None:
        data = self._socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the broker closed the connection")
        self._received = self._received[self._position :] + data
        self._position = 0

    def _receive_large(self, size: int) -> bytes:
        """Receive into the final buffer, so that fetched records are copied only once."""
        answer = bytearray(size)
        begun = self._received[self._position + 4 : self._position + 4 + size]
        self._position += 4 + len(begun)
        answer[: len(begun)] = begun
        view = memoryview(answer)[len(begun) :]
        while view:
            count = self._socket.recv_into(view)
            if not count:
                raise ConnectionError("the broker closed the connection")
            view = view[count:]
        return cast(bytes, answer)

    def call(self, api: messages.Api[messages.Q, messages.R], version: int, request: messages.Q) -> messages.R:
        header = messages.encode_request_header(api.key, version, 1, CLIENT_ID)
        self.send(frame(header, api.encode_request(version, request)))
        answer = self.receive()
        return api.decode_response(version, answer, messages.response_body_position(api.key, version, answer))


def batch(records: Sequence[NewRecord], batch_bytes: int) -> tuple[bytes, int]:
    """A batch of the first records, of about this size before its encoding, and its record count."""
    sizes = accumulate(len(record.key or b"") + len(record.value or b"") for record in records)
    count = 1 + sum(1 for size in sizes if size < batch_bytes)
    return encode_batch(records[:count]), count


def produce_request(topic: str, partition: int, records: bytes, acks: int = -1) -> bytes:
    header = messages.encode_request_header(0, PRODUCE_VERSION, 1, CLIENT_ID)
    body = encode_produce_request(
        PRODUCE_VERSION, ProduceRequest(None, acks, 30_000, [(topic, [(partition, records)])])
    )
    return frame(header, *body)


def warm_up(connection: Connection, request: bytes, count: int, in_flight: int) -> None:
    """``produce_many``, once this broker leads the partition: metadata may name it some milliseconds before that.

    Until then single requests are answered by an error. Raises BenchRefused after ten seconds.
    """
    deadline = time.monotonic() + _UNTIL_LED_S
    while True:
        connection.send(request)
        error = _produce_error(connection.receive())
        if error not in _NOT_YET_LED:
            break
        if time.monotonic() > deadline:
            raise BenchRefused(f"Produce: {error.name.upper()}")
        time.sleep(_POLL_S)
    produce_many(connection, request, count, in_flight)


def produce_many(connection: Connection, request: bytes, count: int, in_flight: int) -> float:
    """Send one request ``count`` times with at most ``in_flight`` unanswered; seconds."""
    began = time.perf_counter()
    sent = answered = 0
    while answered < count:
        while sent < count and sent - answered < in_flight:
            connection.send(request)
            sent += 1
        answer = connection.receive()
        if not answered and (error := _produce_error(answer)) is not None:
            raise BenchRefused(f"Produce: {error.name.upper()}")
        answered += 1
    return time.perf_counter() - began


def produce_at_rate(connection: Connection, request: bytes, per_second: int, seconds: float) -> list[float]:
    """One request at a time on a fixed schedule; each answer's latency in seconds, from its scheduled time."""
    latencies = []
    began = time.perf_counter()
    for number in range(int(per_second * seconds)):
        due = began + number / per_second
        while (wait := due - time.perf_counter()) > 0:
            if wait > 0.0002:
                time.sleep(wait - 0.0001)
        connection.send(request)
        connection.receive()
        latencies.append(time.perf_counter() - due)
    return latencies


def fetch_all(connection: Connection, topic: str, end: int, partition_bytes: int = 4 << 20) -> tuple[float, int]:
    """Read a partition from its beginning to ``end``; seconds and bytes of records."""
    began = time.perf_counter()
    offset = size = 0
    while offset < end:
        header = messages.encode_request_header(1, FETCH_VERSION, 1, CLIENT_ID)
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=partition_bytes,
            isolation_level=0,
            topics=[(topic, [FetchPartition(0, offset, partition_bytes)])],
        )
        connection.send(frame(header, encode_fetch_request(FETCH_VERSION, request)))
        answer = connection.receive()
        position = messages.response_body_position(1, FETCH_VERSION, answer)
        partition = decode_fetch_response(FETCH_VERSION, answer, position).topics[0][1][0]
        if partition.error_code:
            raise BenchRefused(f"Fetch: {ErrorCode(partition.error_code).name.upper()}")
        records = partition.records or b""
        size += len(records)
        offset = _next_offset(records, offset)
    return time.perf_counter() - began, size


def _next_offset(records: bytes | bytearray | memoryview, offset: int) -> int:
    """Hop from header to header: the records themselves are not read."""
    position = 0
    view = memoryview(records)
    while position + 61 <= len(view):
        base, length = struct.unpack_from(">qi", view, position)
        (last_delta,) = struct.unpack_from(">i", view, position + 23)
        offset = base + last_delta + 1
        position += 12 + length
    return offset


def _produce_error(answer: bytes) -> ErrorCode | None:
    """Return the error code of the first partition that has one."""
    position = messages.response_body_position(0, PRODUCE_VERSION, answer)
    topics = decode_produce_response(PRODUCE_VERSION, answer, position).topics
    codes = [ErrorCode(partition.error_code) for _topic, partitions in topics for partition in partitions]
    return next((code for code in codes if code is not ErrorCode.none), None)
