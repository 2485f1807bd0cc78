"""The ports that this node listens on, one for each of its listeners, and their advertised addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from einmal.broker.config import BrokerConfig
from einmal.broker.listeners import Endpoint, NamedListener
from einmal.seams import Listener, Network


class Listening:
    def __init__(self, config: BrokerConfig, network: Network) -> None:
        self._config = config
        self._network = network
        self._listeners: dict[str, Listener] = {}

    async def open(self, listener: NamedListener, connection: Callable[[], asyncio.Protocol]) -> None:
        """Accept connections. Raises OSError."""
        self._listeners[listener.name] = await self._network.listen(connection, *listener.endpoint)

    def close(self, listeners: Iterable[NamedListener]) -> None:
        """Accept no more."""
        for listener in listeners:
            if listener.name in self._listeners:
                self._listeners[listener.name].close()

    def port_of(self, listener: NamedListener) -> int:
        """Only after ``open``."""
        assert listener.name in self._listeners, "the node has not been started"
        return self._listeners[listener.name].port

    @property
    def is_open(self) -> bool:
        """Whether there is an address yet that clients, or other nodes, connect to."""
        return self._config.named_listeners.first.name in self._listeners

    @property
    def port(self) -> int:
        """For clients, or of what is only a controller. Only after ``open``."""
        return self.port_of(self._config.named_listeners.first)

    @property
    def endpoint(self) -> Endpoint:
        """The address that clients connect to, or other nodes. Only after ``open``."""
        return self._advertised(self._config.named_listeners.first)

    @property
    def advertised(self) -> list[tuple[NamedListener, Endpoint]]:
        """The listeners of a broker and their addresses. Only after ``open``."""
        return [(listener, self._advertised(listener)) for listener in self._config.named_listeners.of_broker]

    def _advertised(self, listener: NamedListener) -> Endpoint:
        return self._config.advertised(listener, self.port_of(listener))
