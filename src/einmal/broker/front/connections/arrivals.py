"""New connections of a listener, against limits of their rate (KIP-612).

Above the rate of a broker or listener (``max.connection.creation.rate``) a connection waits for its turn: it is
accepted, and not read before. Where so many wait that its turn would come much later, it is closed, as Kafka's backlog
refuses it: whoever opens very many does not keep others out for longer than that. Above the rate of its address, which
is a quota, it is closed after at most a second, as in Kafka, so that a client that connects again and again does so
slowly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from einmal.broker.front.quotas.client_throttles import ClientThrottles
from einmal.broker.resources.rates import TokenBucket, Windows
from einmal.event_log import EventLog
from einmal.seams import Clock

log = EventLog(__name__)
_REFUSED: Final = "connection refused: %(reason)s"

WAIT_MS_MAX: Final = 5_000
"""For one's turn. It leaves time for the TLS handshake, which is bounded too."""
_REFUSED_MS: Final = 1_000
"""A connection that would wait for longer is closed after this."""


class Arriving(Protocol):
    """A connection that was accepted now."""

    @property
    def address(self) -> str:
        """The client's, without the port."""

    def mute(self, milliseconds: int) -> None:
        """See ``context.Origin``."""

    def turn_away(self, milliseconds: int) -> None:
        """Close after so long."""


class ConnectionRate:
    """``per_second`` connections, and a burst of what all windows together allow."""

    def __init__(self, windows: Windows, per_second: int, now_ms: int) -> None:
        self._per_second = per_second
        self._bucket = TokenBucket(windows, per_second, now_ms)

    def is_full(self, now_ms: int) -> bool:
        """Whether those that wait already keep one more waiting for too long."""
        return self._bucket.overdrawn_ms(self._per_second, now_ms) >= WAIT_MS_MAX

    def wait_ms(self, now_ms: int) -> int:
        """Count one more connection: how long it waits for its turn, which is after all those before it."""
        self._bucket.take(1, self._per_second, now_ms)
        return self._bucket.overdrawn_ms(self._per_second, now_ms)


class Arrivals:
    """``throttles`` None: addresses have no quotas here. ``rates``: of the listener, and of the broker."""

    def __init__(self, throttles: ClientThrottles | None, clock: Clock, rates: Sequence[ConnectionRate]) -> None:
        self._throttles = throttles
        self._clock = clock
        self._rates = rates

    def pace(self, connection: Arriving) -> None:
        refused_ms = 0 if self._throttles is None else self._throttles.use_connection(connection.address)
        if refused_ms:
            reason = "this address opens more than its quota allows (connection_creation_rate)"
            log.warning("connection_refused", _REFUSED, reason=reason, client=connection.address)
            connection.turn_away(refused_ms)
            return
        if self._rates:
            now_ms = self._clock.now().monotonic_ms
            if any(rate.is_full(now_ms) for rate in self._rates):
                reason = "too many others wait for their turn (max.connection.creation.rate)"
                log.warning("connection_refused", _REFUSED, reason=reason, client=connection.address)
                connection.turn_away(_REFUSED_MS)
                return
            wait_ms = max(rate.wait_ms(now_ms) for rate in self._rates)
            if wait_ms:
                connection.mute(wait_ms)
