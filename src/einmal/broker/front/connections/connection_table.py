"""A listener's connections, and which one to close when there are too many.

As on Kafka: ``max.connections.per.ip`` and its overrides refuse the new connection. At ``max.connections`` the new one
replaces the connection that has been idle for longest; those that never sent a request come first. So unused
connections cannot keep clients or brokers out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Generic, Protocol, TypeVar

IDLE_MS_MIN: Final = 1_000
"""Only a connection that was idle for so long may be closed: another one may be about to send."""


class Tracked(Protocol):
    """Connection as the table reads it."""

    @property
    def number(self) -> int:
        """Unique on its listener."""

    @property
    def address(self) -> str:
        """The client's, without the port."""

    @property
    def last_active_ms(self) -> int: ...

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in progress on it."""


ConnectionT = TypeVar("ConnectionT", bound=Tracked)


class ConnectionTable(Generic[ConnectionT]):
    def __init__(self, limit: int, per_address: int, overrides: Mapping[str, int]) -> None:
        self._limit = limit
        self._per_address = per_address
        self._overrides = overrides
        self._silent: dict[int, ConnectionT] = {}
        """Those that have not sent a request yet, oldest first."""
        self._active: dict[int, ConnectionT] = {}
        """The others, least recently used first."""
        self._of_address: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._silent) + len(self._active)

    def all(self) -> list[ConnectionT]:
        return [*self._silent.values(), *self._active.values()]

    def problem_of(self, address: str) -> str | None:
        """Why one more connection of this address is refused."""
        count = self._of_address.get(address, 0)
        limit = self._overrides.get(address, self._per_address)
        return f"{count} connections of this address (max.connections.per.ip={limit})" if count >= limit else None

    @property
    def is_full(self) -> bool:
        return len(self) >= self._limit

    def idlest(self, now_ms: int) -> ConnectionT | None:
        """The connection to close for a new one; None: all are in use."""
        for connections in (self._silent, self._active):
            for connection in connections.values():
                if now_ms - connection.last_active_ms < IDLE_MS_MIN:
                    break
                if connection.is_idle:
                    return connection
        return None

    def add(self, connection: ConnectionT) -> None:
        self._silent[connection.number] = connection
        self._of_address[connection.address] = self._of_address.get(connection.address, 0) + 1

    def used(self, connection: ConnectionT) -> None:
        """The connection has sent a request."""
        number = connection.number
        if self._active.pop(number, None) or self._silent.pop(number, None):
            self._active[number] = connection

    def remove(self, connection: ConnectionT) -> None:
        number, address = connection.number, connection.address
        if not (self._active.pop(number, None) or self._silent.pop(number, None)):
            return
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]
