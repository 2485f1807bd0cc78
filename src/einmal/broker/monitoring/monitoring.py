"""Serves the metrics and the health of a node at metrics.listeners, from the beginning of its start to its end."""

from __future__ import annotations

import asyncio
import json
from typing import Final

from einmal.broker.listeners import Endpoint
from einmal.broker.monitoring.cluster import QuorumRates, add_cluster, add_quorum
from einmal.broker.monitoring.groups import add_groups, ends_of, positions_of
from einmal.broker.monitoring.health import why_not_ready
from einmal.broker.monitoring.http_listener import HttpAnswer, HttpServer
from einmal.broker.monitoring.page import CONTENT_TYPE, Page
from einmal.broker.monitoring.parts import Monitored
from einmal.broker.monitoring.process import LoopTime, add_process, add_requests
from einmal.broker.monitoring.replicas import add_replicas, add_topics
from einmal.broker.monitoring.transactions import add_transactions
from einmal.seams import Listener, Network

_FRESH_MS: Final = 1_000
"""A page serves all who ask for it in this time: however many do, a page is made once a second."""
_JSON: Final = "application/json"


class Monitoring:
    def __init__(self, endpoint: Endpoint, node: Monitored, network: Network) -> None:
        self._endpoint = endpoint
        self._node = node
        self._network = network
        pages = {"/metrics": self._metrics, "/health/live": self._live, "/health/ready": self._ready}
        # As probes and scrapers made for Redpanda ask for them.
        redpanda = {"/public_metrics": self._metrics, "/v1/status/ready": self._ready}
        self._server = HttpServer(pages | redpanda)
        self._listener: Listener | None = None
        self._loop_time = LoopTime()
        self._quorum_rates = QuorumRates()
        self._making: asyncio.Task[list[bytes]] | None = None
        self._made_ms = 0

    async def start(self) -> None:
        """Raises ListenError."""
        self._listener = await self._network.listen(self._server.connection, *self._endpoint)

    async def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._server.stop()
        if self._making is not None:
            self._making.cancel()
            await asyncio.gather(self._making, return_exceptions=True)

    @property
    def endpoint(self) -> Endpoint:
        """With the port that was free, where none was named. Only after ``start``."""
        assert self._listener is not None, "not started"
        return self._endpoint.reachable(self._listener.port)

    # --- pages -------------------------------------------------------------------------------------------------------

    async def _live(self) -> HttpAnswer:
        return HttpAnswer(200, _JSON, (b'{"live": true}\n',))

    async def _ready(self) -> HttpAnswer:
        reasons = why_not_ready(self._node)
        body = json.dumps({"ready": not reasons, "reasons": reasons}) + "\n"
        return HttpAnswer(503 if reasons else 200, _JSON, (body.encode(),))

    async def _metrics(self) -> HttpAnswer:
        return HttpAnswer(200, CONTENT_TYPE, await self.page())

    async def page(self) -> list[bytes]:
        """The metrics in Prometheus' text format, in parts; none of a page that the stop of the broker has ended."""
        now_ms = self._node.turns.now_ms()
        making = self._making
        if making is None or (making.done() and now_ms - self._made_ms >= _FRESH_MS):
            self._made_ms = now_ms
            making = self._making = asyncio.get_running_loop().create_task(self._make())
        # Others may wait for the same page.
        await asyncio.wait([making])
        return [] if making.cancelled() else making.result()

    async def _make(self) -> list[bytes]:
        """Make a page, in turns with the node's other work."""
        node, page = self._node, Page()
        add_process(page)
        self._loop_time.add(page)
        add_requests(page, node)
        if node.quorum.is_loaded:
            add_quorum(page, node)
            self._quorum_rates.add(page, node)
            await node.turns.run(add_cluster(page, node))
            if node.config.is_broker:
                await node.turns.run(add_topics(page, node))
                await node.turns.run(add_replicas(page, node))
                await node.turns.run(add_transactions(page, node))
                positions = await positions_of(node)
                await node.turns.run(add_groups(page, positions, await ends_of(node, positions)))
        return [family async for family in node.turns.paced(page.parts())]
