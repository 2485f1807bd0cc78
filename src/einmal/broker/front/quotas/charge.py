"""Cost of one request of a client under its quotas, and the throttling that follows (KIP-219).

The answer is sent at once and states the time; the connection then starts no request and reads nothing for so long. A
Fetch above its quota is answered without records; any other request was carried out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, Final, Generic, TypeVar

from einmal.broker.front.quotas.client_throttles import ClientThrottles
from einmal.metadata.quota_table import PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE

T = TypeVar("T")
THROTTLE_MS_MAX: Final = 2**31 - 1
"""Longest time that an answer can state."""


class Charge:
    """Charge of one request: made when it begins, settled once, when its answer is known.

    ``produced_bytes``: of the request, if it is a Produce. ``mute``: see ``context.Origin``. The broker's time is what
    its thread spends on decoding, handling and encoding: neither on sockets, nor in the background, nor on what a
    waiting request is woken for.
    """

    __slots__ = (
        "_client_id",
        "_mute",
        "_produced_bytes",
        "_since_ms",
        "_spent_ms",
        "_throttle_ms",
        "_throttles",
        "_times",
        "_user",
    )

    def __init__(
        self,
        throttles: ClientThrottles,
        user: str,
        client_id: str,
        produced_bytes: int,
        mute: Callable[[int], None],
    ) -> None:
        self._throttles = throttles
        self._user = user
        self._client_id = client_id
        self._produced_bytes = produced_bytes
        self._mute = mute
        self._times = throttles.quotas.has(REQUEST_PERCENTAGE)
        self._spent_ms = 0
        self._since_ms: int | None = None
        self._throttle_ms: int | None = None

    # --- time ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The broker works on the request from now on. A clock of milliseconds is right on average."""
        if self._times:
            self._since_ms = self._throttles.now_ms()

    def pause(self) -> None:
        """The request waits."""
        if self._since_ms is not None:
            self._spent_ms += self._throttles.now_ms() - self._since_ms
            self._since_ms = None

    def timed(self, running: Awaitable[T]) -> Awaitable[T]:
        """The same, whose steps count."""
        return _Timed(self, running) if self._times else running

    # --- the answer ----------------------------------------------------------------------------------------------

    def exempt(self) -> None:
        """The request is one of the cluster's own: nothing counts."""
        self._throttle_ms = 0

    @property
    def is_settled(self) -> bool:
        return self._throttle_ms is not None

    def settle(self, own_ms: int = 0) -> int:
        """Count the request, and throttle its connection. Returns ``throttle_time_ms`` of its answer.

        ``own_ms``: for how long the handler, or the active controller, wants it to be throttled.
        """
        if self._throttle_ms is None:
            self.pause()
            if self._produced_bytes:
                used_ms = self._throttles.use(PRODUCER_BYTE_RATE, self._user, self._client_id, self._produced_bytes)
                own_ms = max(own_ms, used_ms)
            if self._times:
                own_ms = max(own_ms, self._throttles.use_time(self._user, self._client_id, self._spent_ms))
            self._throttle_ms = min(own_ms, THROTTLE_MS_MAX)
            if self._throttle_ms:
                self._mute(self._throttle_ms)
        return self._throttle_ms

    def fetch_bytes_max(self, most: int) -> int:
        """See ``ClientThrottles``."""
        return self._throttles.fetch_bytes_max(self._user, self._client_id, most)

    def settle_fetch(self, size: int) -> tuple[int, bool]:
        """As ``settle``, of an answer with so many bytes of records; and whether it must be sent without them."""
        excess_ms = self._throttles.use_fetch(self._user, self._client_id, size)
        return self.settle(excess_ms), excess_ms > 0


class _Timed(Generic[T]):
    """An awaitable whose steps, from one wait to the next, count as time of a request."""

    __slots__ = ("_charge", "_running")

    def __init__(self, charge: Charge, running: Awaitable[T]) -> None:
        self._charge = charge
        self._running = running

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._running.__await__()
        step: Callable[[], Any] = partial(next, steps)
        while True:
            self._charge.begin()
            try:
                waited = step()
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._charge.pause()
            try:
                yield waited
            except BaseException as error:  # noqa: BLE001 - whatever the wait ends with is the request's, cancellation too.
                step = partial(_throw, steps, error)
            else:
                step = partial(next, steps)


def _throw(steps: Any, error: BaseException) -> Any:
    return steps.throw(error)
