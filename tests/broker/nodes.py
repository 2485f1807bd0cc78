"""A node on the real loop, network and disk, and a client that speaks raw frames to it.

Whatever the node reports to the event loop's exception handler fails the test that runs it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import ssl
import struct
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from einmal.broker.config import broker_config
from einmal.broker.node import Node
from einmal.log.disk import OsDisk
from einmal.seams import Network, SystemClock, TcpNetwork
from einmal.types import ErrorCode, ProducerIdAndEpoch, TopicPartition
from einmal.wire import produce
from einmal.wire.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    decode_fetch_response,
    encode_fetch_request,
)
from einmal.wire.frames import frame
from einmal.wire.messages import encode_request_header, response_body_position
from einmal.wire.record_batch import NewRecord, encode_batch
from tests.suite.patience import patient
from tests.wire.mapped import decode_response, encode_request

T = TypeVar("T")
SECONDS_MAX = 30
_SEEDS = itertools.count(1)
"""Each process draws numbers of its own, also ids."""


def run(scenario: Coroutine[Any, Any, T], seconds: float = SECONDS_MAX) -> T:
    """The scenario's result; it ends in bounded time, and nothing may have failed beside it."""
    failures: list[str] = []

    def note(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        failures.append(context["message"] + "".join(traceback.format_exception(error) if error else ()))

    async def main() -> T:
        asyncio.get_running_loop().set_exception_handler(note)
        return await asyncio.wait_for(scenario, patient(seconds))

    result = asyncio.run(main())
    assert not failures, "\n".join(failures)
    return result


@asynccontextmanager
async def running_node(directory: Path, settings: Mapping[str, Any] | None = None) -> AsyncIterator[Node]:
    """A node on a free port; ``settings`` under Kafka's keys."""
    node = new_node(directory, settings)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


async def until(holds: Callable[[], object], seconds: float = SECONDS_MAX) -> None:
    """Wait until something is true of a node, which has no event for everything."""
    async with asyncio.timeout(patient(seconds)):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def until_watched(node: Node, topic: str) -> None:
    """Wait until a Fetch waits for the only partition of a topic."""
    partition = node.partitions.get(TopicPartition(topic, 0))
    assert partition is not None
    await until(lambda: partition._watchers)


def new_node(directory: Path, settings: Mapping[str, Any] | None = None, network: Network | None = None) -> Node:
    values = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(directory), **(settings or {})}
    config, unknown = broker_config({key: str(value) for key, value in values.items()})
    assert not unknown
    return Node(
        config,
        clock=SystemClock(),
        network=network or TcpNetwork(),
        disk=OsDisk(),
        random=random.Random(next(_SEEDS)),
    )


class Client:
    """One connection. ``call`` for kio's messages; ``produce`` and ``fetch`` in short."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._correlation_id = 0

    @classmethod
    @asynccontextmanager
    async def connect(cls, node: Node) -> AsyncIterator[Client]:
        async with cls.connect_to(node.port) as client:
            yield client

    @classmethod
    @asynccontextmanager
    async def connect_to(cls, port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[Client]:
        host = None if tls is None else "localhost"
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**26, ssl=tls, server_hostname=host)
        try:
            yield cls(reader, writer)
        finally:
            writer.close()

    def send(self, api_key: int, version: int, body: bytes) -> int:
        """Send a request; its correlation id."""
        self._correlation_id += 1
        header = encode_request_header(api_key, version, self._correlation_id, "test")
        self.writer.write(frame(header, body))
        return self._correlation_id

    async def receive(self) -> bytes:
        """The next answer frame. Raises IncompleteReadError when the connection is closed."""
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def call(self, api_key: int, version: int, fields: Mapping[str, Any]) -> Any:
        self.send(api_key, version, encode_request(api_key, version, fields))
        answer = await self.receive()
        return decode_response(api_key, version, answer, response_body_position(api_key, version, answer))

    async def answers(self) -> bool:
        """Whether the broker answers here."""
        answer = await self.call(18, 3, {"client_software_name": "test", "client_software_version": "1"})
        return bool(answer.error_code == ErrorCode.none)

    async def is_closed(self) -> bool:
        """Whether the broker closes the connection, within five seconds."""
        try:
            return await asyncio.wait_for(self.reader.read(1), patient(5)) == b""
        except ConnectionError:
            return True

    async def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
        }
        answer = await self.call(19, 7, {"topics": [topic], "timeout": 600_000, "validate_only": False})
        assert answer.topics[0].error_code == 0, answer

    async def produce(
        self, topic: Any, *batches: bytes, partition: int = 0, acks: int = -1, version: int = 9, name: str | None = None
    ) -> produce.ProducedPartition:
        request = produce.ProduceRequest(name, acks, 600_000, [(topic, [(partition, b"".join(batches))])])
        self.send(0, version, b"".join(produce.encode_produce_request(version, request)))
        answer = await self.receive()
        position = response_body_position(0, version, answer)
        return produce.decode_produce_response(version, answer, position).topics[0][1][0]

    async def fetch(
        self, topic: Any, offset: int, *, version: int = 12, partition: int = 0, **settings: Any
    ) -> FetchedPartition:
        answer = await self.fetch_all(
            [(topic, [FetchPartition(partition, offset, 2**20)])], version=version, **settings
        )
        return answer.topics[0][1][0]

    async def fetch_all(self, topics: Any, *, version: int = 12, **settings: Any) -> FetchResponse:
        values = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 2**24, "isolation_level": 0, **settings}
        request = FetchRequest(topics=topics, **values)
        self.send(1, version, encode_fetch_request(version, request))
        answer = await self.receive()
        return decode_fetch_response(version, answer, response_body_position(1, version, answer))


async def half_sent(port: int, connections: int, announced: int) -> list[asyncio.StreamWriter]:
    """Connections that have announced a request of so many bytes, and have sent 200,000 of them."""
    writers = []
    for _ in range(connections):
        _reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(struct.pack(">i", announced) + bytes(200_000))
        writers.append(writer)
    return writers


def batch(*values: bytes, producer: ProducerIdAndEpoch | None = None, sequence: int = -1, **options: Any) -> bytes:
    """A record batch of these values, all of one time that is not in the future."""
    records = [NewRecord(None, value, 1_700_000_000_000) for value in values]
    if producer is not None:
        options |= {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "base_sequence": sequence,
        }
    return encode_batch(records, **options)
