"""A well-behaved client beside the attackers: how long each of its requests takes, until its standard input ends.

``python -m tests.fuzz.observer PORT REPORT [USER]``; a user authenticates each of its connections.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tests.broker.nodes import Client, batch
from tests.broker.sasl_client import authenticate, plain
from tests.fuzz.reports import replace_json
from tests.fuzz.values import PASSWORD

_PAUSE_SECONDS: Final = 0.02
_PATIENCE_SECONDS: Final = 120.0
_REPORT_SECONDS: Final = 2.0
_METADATA: Final = 3
_LIST_OFFSETS: Final = 2
_OFFSET_COMMIT: Final = 8
_SLOWEST_KEPT: Final = 20


def topic_of(user: str) -> str:
    return f"observed-by-{user or 'anybody'}"


class Observer:
    def __init__(self, port: int, report: Path, user: str) -> None:
        self._port = port
        self._report = report
        self._user = user
        self._reported = -_REPORT_SECONDS
        self.count = 0
        self.slowest: list[tuple[float, float, str]] = []
        """Seconds, when it began, and what it was."""

    async def run(self) -> None:
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(0, ended.set)
        topic = topic_of(self._user)
        async with self._connected() as client:
            # Its records are old, and it reads them later than it writes them.
            await client.create_topic(topic, retention_ms="-1")
            offset = 0
            while not ended.is_set():
                produced = await self._timed("Produce", client.produce(topic, batch(b"observed")))
                assert produced.error_code == 0, produced
                fetched = await self._timed("Fetch", client.fetch(topic, offset))
                assert fetched.error_code == 0 and len(fetched.records), fetched
                offset = produced.base_offset + 1
                await self._timed("Metadata", client.call(_METADATA, 9, {"topics": [{"name": topic}]}))
                partition = {"partition_index": 0, "timestamp": -1}
                asked = {"replica_id": -1, "topics": [{"name": topic, "partitions": [partition]}]}
                listed = await self._timed("ListOffsets", client.call(_LIST_OFFSETS, 7, asked))
                assert listed.topics[0].partitions[0].offset == offset, listed
                committed = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
                commit = {"group_id": topic, "generation_id_or_member_epoch": -1, "member_id": ""}
                commit |= {"topics": [{"name": topic, "partitions": [committed]}]}
                await self._timed("OffsetCommit", client.call(_OFFSET_COMMIT, 8, commit))
                await self._timed("a new connection", self._connect())
                if time.monotonic() - self._reported > _REPORT_SECONDS:
                    self._reported = time.monotonic()
                    self.write_report()
                await asyncio.sleep(_PAUSE_SECONDS)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Client]:
        async with Client.connect_to(self._port) as client:
            if self._user:
                answer = await authenticate(client, "PLAIN", plain(self._user, PASSWORD))
                assert answer.error == 0, answer
            yield client

    async def _connect(self) -> None:
        async with self._connected() as client:
            await client.call(18, 3, {"client_software_name": "observer", "client_software_version": "1"})

    async def _timed(self, name: str, request: Any) -> Any:
        began, at = time.perf_counter(), time.time()
        try:
            answer = await asyncio.wait_for(request, _PATIENCE_SECONDS)
        finally:
            self._note(time.perf_counter() - began, at, name)
        return answer

    def _note(self, seconds: float, at: float, name: str) -> None:
        self.count += 1
        self.slowest = sorted([*self.slowest, (seconds, at, name)], reverse=True)[:_SLOWEST_KEPT]

    def write_report(self) -> None:
        replace_json(self._report, {"requests": self.count, "slowest": self.slowest})


def main() -> None:
    port, report, *user = sys.argv[1:]
    observer = Observer(int(port), Path(report), *user or [""])
    try:
        asyncio.run(observer.run())
    finally:
        observer.write_report()


if __name__ == "__main__":
    main()
