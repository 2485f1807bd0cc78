"""The ports that this node listens on, one for each audience that its settings name, and their advertised addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from einmal.broker.config import BrokerConfig
from einmal.broker.listeners import Audience, Endpoint
from einmal.seams import Listener, Network


class Listening:
    def __init__(self, config: BrokerConfig, network: Network) -> None:
        self._config = config
        self._network = network
        self._listeners: dict[Audience, Listener] = {}

    async def open(self, audience: Audience, connection: Callable[[], asyncio.Protocol], endpoint: Endpoint) -> None:
        """Accept connections. Raises OSError."""
        self._listeners[audience] = await self._network.listen(connection, *endpoint)

    def close(self, audience: Audience) -> None:
        """Accept no more."""
        listener = self._listeners.get(audience)
        if listener is not None:
            listener.close()

    @property
    def port(self) -> int:
        """For clients, or of what is only a controller. Only after ``open``."""
        listener = self._listeners.get(Audience.CLIENTS) or self._listeners.get(Audience.CONTROLLERS)
        assert listener is not None, "the node has not been started"
        return listener.port

    @property
    def endpoint(self) -> Endpoint:
        """The address that clients connect to, or other nodes. Only after ``open``."""
        if not self._config.is_broker and self._config.controller_listener is not None:
            return self._config.controller_listener._replace(port=self.port)
        return self._config.advertised(self.port)

    @property
    def endpoint_for_brokers(self) -> Endpoint | None:
        """The address that other brokers connect to; None: the same. Only after ``open``."""
        listener = self._listeners.get(Audience.BROKERS)
        return None if listener is None else self._config.advertised_to_brokers(listener.port)
