"""One attacker: a process with a few connections that send bursts of requests and read what comes back.

A burst is a pipeline of requests with one of ApiVersions at its end, whose answer shows that all were carried out. A
broken request is the last one of its burst: nothing behind it would be read.

A quarter of the connections go to the listeners of brokers and controllers, which ask for the cluster's secret. The
attacker does not know it: it sends SASL requests, and one more request, which must end the connection. An eighth does
the same on the listener of users, in whose SASL exchanges frames without a header occur, too. Another eighth
authenticates there first, as users whom the ACLs and quotas under attack apply to.
"""

from __future__ import annotations

import asyncio
import random
import struct
import sys
import time
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

from einmal.broker.front.apis import Entry, On, entries_on
from einmal.broker.rpc.authentication import OPEN_APIS
from einmal.wire.api.api_versions import API as API_VERSIONS
from einmal.wire.api.sasl_authenticate import API as SASL_AUTHENTICATE
from einmal.wire.api.sasl_handshake import API as SASL_HANDSHAKE
from einmal.wire.frames import frame
from einmal.wire.messages import encode_request_header
from tests.broker.nodes import Client
from tests.fuzz.batches import Batches
from tests.fuzz.reports import replace_json
from tests.fuzz.requests import Api, Requests
from tests.fuzz.values import PASSWORD, POOLS, SLOW_USER, TOPICS, USER, WIDE_PARTITIONS, WIDE_TOPIC
from tests.wire.mapped import encode_request

CONNECTIONS: Final = 16
BURST: Final = 40
_CREATE_TOPICS: Final = 19
_LAST: Final = 2**31 - 1
_INT32: Final = struct.Struct(">i")
_BROKEN: Final = 0.1
_WIDE: Final = 0.012
"""Of bursts: that they end in a broken request, or are one wide request."""
_WIDE_KEPT: Final = 64
_WIDE_NEW: Final = 0.2
_OPENING_MAX: Final = 3
"""Requests on a guarded listener before the one that must not be answered."""
_BARE: Final = 0.2
"""Of bursts on a guarded listener: that they begin with SaslHandshake v0, whose messages have no header."""
_RENEWED: Final = 0.1
"""Of bursts of users: that they begin another authentication."""
_PATIENCE_SECONDS: Final = 0.5
"""What is not answered by then waits rightly (a join, a long poll): its connection is dropped."""
_SLOW_SECONDS: Final = 0.5
_SLOW_KEPT: Final = 40
_REPORT_SECONDS: Final = 2.0


class Ports(NamedTuple):
    """The listeners of a broker: for clients, for brokers, for controllers, for users, who authenticate."""

    clients: int
    brokers: int
    controllers: int
    users: int


class _Target(NamedTuple):
    """``user``: as whom every connection authenticates first."""

    port: int
    entries: tuple[Entry, ...]
    is_guarded: bool = False
    user: str = ""


class Attack:
    """``report``: a file that has the figures so far while it runs, and those of the whole run at its end."""

    def __init__(self, ports: Ports, frames: int, seed: int, report: Path) -> None:
        of_clients = entries_on(On.BROKERS, has_two_phase_commit=True)
        of_users = tuple(entry for entry in of_clients if entry.key not in (SASL_HANDSHAKE.key, SASL_AUTHENTICATE.key))
        brokers = _Target(ports.brokers, of_clients, is_guarded=True)
        controllers = _Target(ports.controllers, entries_on(On.CONTROLLERS), is_guarded=True)
        users = _Target(ports.users, of_clients, is_guarded=True)
        self._open = _Target(ports.clients, of_clients)
        self._opening = tuple(entry for entry in of_clients if entry.key in OPEN_APIS)
        self._targets = {
            **dict.fromkeys((0, 8), brokers),
            **dict.fromkeys((4, 12), controllers),
            **dict.fromkeys((1, 9), users),
            5: _Target(ports.users, of_users, user=USER),
            13: _Target(ports.users, of_users, user=SLOW_USER),
        }
        """By the number of a connection; all others go to the open listener."""
        self._frames = frames
        self._seed = seed
        self._report = report
        self._began = time.perf_counter()
        self._sent = 0
        self._answered = 0
        self._closed = 0
        self._given_up = 0
        self._wide = 0
        self._bare = 0
        self._authenticated = 0
        self._wide_frames: list[tuple[Api, bytes]] = []
        self._unguarded: dict[str, int] = {}
        """What was answered without authentication, and must not be."""
        self._by_version: dict[str, int] = {}
        self._slow: list[tuple[float, float, str]] = []
        """Seconds, when it began, and the APIs of the burst."""
        self._waited: dict[str, int] = {}
        """For which APIs' answers connections were given up."""

    async def run(self) -> None:
        self._began = time.perf_counter()
        async with Client.connect_to(self._open.port) as client:
            topic_ids = await _create_topics(client)
        batches = Batches(random.Random(self._seed), time.time_ns() // 1_000_000)
        reporting = asyncio.create_task(self._keep_reporting())
        await asyncio.gather(*(self._connection(number, topic_ids, batches) for number in range(CONNECTIONS)))
        reporting.cancel()
        self._write_report()

    async def _connection(self, number: int, topic_ids: list[UUID], batches: Batches) -> None:
        source = random.Random(f"{self._seed}/{number}")
        target = self._targets.get(number, self._open)
        requests = Requests(target.entries, source, batches, topic_ids)
        opening = Requests(self._opening, source, batches, topic_ids) if target is not self._open else None
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        while self._sent < self._frames:
            apis, data = self._burst(requests, opening, source, is_guarded=target.is_guarded)
            for api in apis:
                name = f"{api.key}v{api.version}"
                self._by_version[name] = self._by_version.get(name, 0) + 1
            if streams is None:
                streams = await self._connected(target, source)
            began, at = time.perf_counter(), time.time()
            is_open = await self._exchange(*streams, requests, apis, data, is_guarded=target.is_guarded)
            seconds = time.perf_counter() - began
            self._sent += len(apis) + 1
            if seconds > _SLOW_SECONDS:
                named = ",".join(dict.fromkeys(f"{api.key}v{api.version}" for api in apis))
                self._slow = sorted([*self._slow, (seconds, at, f"{len(data)} bytes: {named}")], reverse=True)[
                    :_SLOW_KEPT
                ]
            if not is_open:
                streams[1].transport.abort()
                streams = None

    async def _connected(
        self, target: _Target, source: random.Random
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port, limit=2**20)
        if target.user:
            version, message = source.randrange(2), f"\0{target.user}\0{PASSWORD}".encode()
            handshake = encode_request(SASL_HANDSHAKE.key, version, {"mechanism": "PLAIN"})
            writer.write(frame(encode_request_header(SASL_HANDSHAKE.key, version, 0, "fuzz"), handshake))
            body = encode_request(SASL_AUTHENTICATE.key, 2, {"auth_bytes": message})
            header = encode_request_header(SASL_AUTHENTICATE.key, 2, 0, "fuzz")
            writer.write(frame(message) if version == 0 else frame(header, body))
            for _ in range(2):
                (size,) = _INT32.unpack(await reader.readexactly(_INT32.size))
                await reader.readexactly(size)
            self._authenticated += 1
        return reader, writer

    def _burst(
        self, requests: Requests, opening: Requests | None, source: random.Random, *, is_guarded: bool
    ) -> tuple[list[Api], bytes]:
        chance = source.random()
        if chance < _WIDE:
            self._wide += 1
            api, wide = self._wide_frame(requests, source)
            return [api], wide + _END
        apis = requests.draw(1 if is_guarded else source.randint(1, BURST))
        if opening is not None and (is_guarded or source.random() < _RENEWED):
            apis = [*opening.draw(source.randint(0, _OPENING_MAX)), *apis]
        frames = [requests.well_formed(api, number) for number, api in enumerate(apis)]
        if is_guarded and source.random() < _BARE:
            mechanism = source.choice(POOLS["mechanism"])
            body = encode_request(SASL_HANDSHAKE.key, 0, {"mechanism": mechanism})
            bare = [frame(source.choice(POOLS["auth_bytes"])) for _ in range(source.randint(1, _OPENING_MAX))]
            frames = [frame(encode_request_header(SASL_HANDSHAKE.key, 0, _LAST - 1, "fuzz"), body), *bare, *frames]
            self._bare += 1
        if chance > 1 - _BROKEN:
            frames[-1] = requests.broken(apis[-1], len(apis) - 1)
        return apis, b"".join(frames) + _END

    def _wide_frame(self, requests: Requests, source: random.Random) -> tuple[Api, bytes]:
        """Often one that was sent before, since making one takes as long as carrying it out."""
        if len(self._wide_frames) == _WIDE_KEPT and source.random() > _WIDE_NEW:
            return source.choice(self._wide_frames)
        while True:
            (api,) = requests.draw(1)
            data = requests.wide(api, 0)
            if data is not None:
                break
        if len(self._wide_frames) == _WIDE_KEPT:
            self._wide_frames.pop(source.randrange(_WIDE_KEPT))
        self._wide_frames.append((api, data))
        return api, data

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        requests: Requests,
        apis: list[Api],
        data: bytes,
        *,
        is_guarded: bool,
    ) -> bool:
        """Whether the connection may be used again."""
        correlation_id = -1
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                writer.write(data)
                while True:
                    (size,) = _INT32.unpack(await reader.readexactly(_INT32.size))
                    answer = await reader.readexactly(size)
                    self._answered += 1
                    answered = _INT32.unpack_from(answer)[0] if size >= _INT32.size else -1
                    if answered == _LAST:
                        return True
                    if not 0 <= answered < len(apis):
                        # Without a header, or of the handshake before it.
                        continue
                    correlation_id = answered
                    api = apis[correlation_id]
                    requests.learn(api, answer)
                    if is_guarded and api.key not in OPEN_APIS:
                        name = f"{api.key}v{api.version}"
                        self._unguarded[name] = self._unguarded.get(name, 0) + 1
        except TimeoutError:
            self._given_up += 1
            # Where what was sent asks for no answer (acks=0) it is the one behind it.
            name = str(apis[min(correlation_id + 1, len(apis) - 1)].key)
            self._waited[name] = self._waited.get(name, 0) + 1
        except (asyncio.IncompleteReadError, ConnectionError):
            self._closed += 1
        return False

    async def _keep_reporting(self) -> None:
        while True:
            self._write_report()
            await asyncio.sleep(_REPORT_SECONDS)

    def _write_report(self) -> None:
        figures = {
            "sent": self._sent,
            "answered": self._answered,
            "closed": self._closed,
            "given_up": self._given_up,
            "wide": self._wide,
            "bare": self._bare,
            "authenticated": self._authenticated,
            "seconds": time.perf_counter() - self._began,
            "unguarded": self._unguarded,
            "by_version": self._by_version,
            "slow": self._slow,
            "waited": self._waited,
        }
        replace_json(self._report, figures)


_END: Final = frame(encode_request_header(API_VERSIONS.key, 0, _LAST, "fuzz"))


async def _create_topics(client: Client) -> list[UUID]:
    settings: tuple[dict[str, str], ...] = (
        {},
        {"cleanup.policy": "compact"},
        {"message.timestamp.type": "LogAppendTime"},
    )
    topics: list[dict[str, Any]] = [
        {
            "name": name,
            "num_partitions": 1 + number % 3,
            "replication_factor": 1,
            "configs": [{"name": key, "value": value} for key, value in settings[number % 3].items()],
        }
        for number, name in enumerate(TOPICS)
    ]
    topics.append({"name": WIDE_TOPIC, "num_partitions": WIDE_PARTITIONS, "replication_factor": 1})
    answer = await client.call(_CREATE_TOPICS, 7, {"topics": topics, "timeout": 60_000})
    return [topic.topic_id for topic in answer.topics if topic.topic_id is not None]


def main() -> None:
    *listeners, frames, seed, report = sys.argv[1:]
    ports = Ports(*map(int, listeners))
    asyncio.run(Attack(ports, int(frames), int(seed), Path(report)).run())


if __name__ == "__main__":
    main()
