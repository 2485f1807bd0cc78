"""One attacker: a process with a few connections that send bursts of requests and read what comes back.

A burst is a pipeline of requests with one of ApiVersions at its end, whose answer says that all were carried out. A
broken request is the last one of its burst: nothing behind it would be read.
"""

from __future__ import annotations

import asyncio
import json
import random
import struct
import sys
import time
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from einmal.broker.router import BROKER_HANDLERS
from einmal.wire.frames import frame
from einmal.wire.messages import encode_request_header
from tests.broker.nodes import Client
from tests.fuzz.batches import Batches
from tests.fuzz.requests import TOPICS, Api, Requests

CONNECTIONS: Final = 16
BURST: Final = 40
_API_VERSIONS: Final = 18
_CREATE_TOPICS: Final = 19
_LAST: Final = 2**31 - 1
_BROKEN: Final = 0.1
_WIDE: Final = 0.012
"""Of bursts: that they end in a broken request, or are one wide request."""
_PATIENCE_SECONDS: Final = 0.5
"""What is not answered by then waits rightly (a join, a long poll): its connection is dropped."""
_SLOW_SECONDS: Final = 0.5
_SLOW_KEPT: Final = 40


class Attack:
    def __init__(self, port: int, frames: int, seed: int) -> None:
        self._port = port
        self._frames = frames
        self._seed = seed
        self.sent = 0
        self.answered = 0
        self.closed = 0
        self.given_up = 0
        self.wide = 0
        self.by_api: dict[int, int] = {}
        self.slow: list[tuple[float, float, str]] = []
        """Seconds, when it began, and the APIs of the burst."""
        self.waited: dict[str, int] = {}
        """For which APIs' answers connections were given up."""

    async def run(self) -> None:
        async with Client.connect_to(self._port) as client:
            topic_ids = await _create_topics(client)
        batches = Batches(random.Random(self._seed), time.time_ns() // 1_000_000)
        await asyncio.gather(*(self._connection(number, topic_ids, batches) for number in range(CONNECTIONS)))

    async def _connection(self, number: int, topic_ids: list[UUID], batches: Batches) -> None:
        source = random.Random(f"{self._seed}/{number}")
        requests = Requests(BROKER_HANDLERS, source, batches, topic_ids)
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        while self.sent < self._frames:
            apis, data = self._burst(requests, source)
            for api in apis:
                self.by_api[api.key] = self.by_api.get(api.key, 0) + 1
            if streams is None:
                streams = await asyncio.open_connection("127.0.0.1", self._port, limit=2**20)
            began, at = time.perf_counter(), time.time()
            is_open = await self._exchange(*streams, apis, data)
            seconds = time.perf_counter() - began
            self.sent += len(apis) + 1
            if seconds > _SLOW_SECONDS:
                named = ",".join(dict.fromkeys(f"{api.key}v{api.version}" for api in apis))
                self.slow = sorted([*self.slow, (seconds, at, f"{len(data)} bytes: {named}")], reverse=True)[
                    :_SLOW_KEPT
                ]
            if not is_open:
                streams[1].transport.abort()
                streams = None

    def _burst(self, requests: Requests, source: random.Random) -> tuple[list[Api], bytes]:
        chance = source.random()
        if chance < _WIDE:
            apis = requests.draw(1)
            wide = requests.wide(apis[0], 1)
            if wide is not None:
                self.wide += 1
                return apis, wide + _END
        apis = requests.draw(source.randint(1, BURST))
        frames = [requests.well_formed(api, number) for number, api in enumerate(apis)]
        if chance > 1 - _BROKEN:
            frames[-1] = requests.broken(apis[-1], 0)
        return apis, b"".join(frames) + _END

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, apis: list[Api], data: bytes
    ) -> bool:
        """Whether the connection may be used again."""
        correlation_id = -1
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                writer.write(data)
                while True:
                    size, correlation_id = struct.unpack(">ii", await reader.readexactly(8))
                    await reader.readexactly(size - 4)
                    self.answered += 1
                    if correlation_id == _LAST:
                        return True
        except TimeoutError:
            self.given_up += 1
            # Where what was sent asks for no answer (acks=0) it is the one behind it.
            name = str(apis[min(correlation_id + 1, len(apis) - 1)].key)
            self.waited[name] = self.waited.get(name, 0) + 1
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed += 1
        return False


_END: Final = frame(encode_request_header(_API_VERSIONS, 0, _LAST, "fuzz"))


async def _create_topics(client: Client) -> list[UUID]:
    settings = ({}, {"cleanup.policy": "compact"}, {"message.timestamp.type": "LogAppendTime"})
    topics: list[dict[str, Any]] = [
        {
            "name": name,
            "num_partitions": 1 + number % 3,
            "replication_factor": 1,
            "configs": [{"name": key, "value": value} for key, value in settings[number % 3].items()],
        }
        for number, name in enumerate(TOPICS)
    ]
    answer = await client.call(_CREATE_TOPICS, 7, {"topics": topics, "timeout": 10_000})
    return [topic.topic_id for topic in answer.topics if topic.topic_id is not None]


def main() -> None:
    port, frames, seed, report = sys.argv[1:]
    attack = Attack(int(port), int(frames), int(seed))
    began = time.perf_counter()
    asyncio.run(attack.run())
    seconds = time.perf_counter() - began
    figures = {
        "sent": attack.sent,
        "answered": attack.answered,
        "closed": attack.closed,
        "given_up": attack.given_up,
        "wide": attack.wide,
        "seconds": seconds,
        "by_api": attack.by_api,
        "slow": attack.slow,
        "waited": attack.waited,
    }
    Path(report).write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
