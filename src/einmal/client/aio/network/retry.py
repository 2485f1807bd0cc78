"""One call's retries: pauses, the deadline, and whether what was asked for may have been done already."""

from __future__ import annotations

from typing import Final, Protocol

from einmal.client.aio.network.backoff import Backoff
from einmal.client.errors import Disconnected, KafkaError, UnknownOutcome, error_for
from einmal.types import ErrorCode

PERHAPS_DONE: Final = frozenset({ErrorCode.coordinator_not_available, ErrorCode.request_timed_out})
"""Answers of a coordinator that may have decided already, and only could not wait for its log any longer."""

KNOWN_MS: Final = 5_000
"""How long a topic that is read may be unknown: a broker may not have heard of it yet, else it was deleted."""
_UNKNOWN: Final = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id})
_SHORT_PAUSE_MS: Final = 5


class Patience(Protocol):
    """Part of a client that a retry needs: the time, its pauses, and whether any broker has answered yet."""

    def now_ms(self) -> int:
        """The monotonic clock."""

    def backoff(self, first_ms: int | None = None) -> Backoff:
        """A new series of pauses."""

    def raise_if_alone(self) -> None:
        """Raises NoBrokerReachable when no broker has answered in time."""

    def first_contact_in_ms(self) -> int | None:
        """How long the first answer of any broker may still take; None: one has answered."""


class Retry:
    """``perhaps_done``: refusals after which the request may have been carried out all the same.

    ``appear_ms``: how long a topic may be unknown, from the first such refusal on; None: until the deadline.
    """

    def __init__(
        self,
        patience: Patience,
        what: str,
        deadline: int,
        *,
        is_safe_to_repeat: bool = True,
        perhaps_done: frozenset[ErrorCode] = PERHAPS_DONE,
        appear_ms: int | None = None,
    ) -> None:
        self.what = what
        self.is_outcome_unknown = False
        self._patience = patience
        self._deadline = deadline
        self._backoff = patience.backoff()
        self._is_safe_to_repeat = is_safe_to_repeat
        self._perhaps_done = perhaps_done
        self._is_hurried = False
        self._appear_ms = appear_ms
        self._unknown_until: int | None = None

    async def after_disconnect(self, error: Disconnected) -> None:
        """Pause. Raises at the deadline, or at once when a request was lost that must not be repeated."""
        if error.was_sent:
            self.is_outcome_unknown = True
            if not self._is_safe_to_repeat:
                raise UnknownOutcome(ErrorCode.network_exception, f"{self.what}; {error.detail}") from error
        self._patience.raise_if_alone()
        await self._pause(ErrorCode.network_exception, error.detail, error, self._deadline)

    async def after_refusal(self, code: ErrorCode) -> None:
        """Pause. Raises at the deadline."""
        if code in self._perhaps_done:
            self.is_outcome_unknown = True
        if code is ErrorCode.concurrent_transactions and not self._is_hurried:
            # The last markers of the previous transaction are being written: a matter of milliseconds.
            self._is_hurried = True
            self._backoff = self._patience.backoff(_SHORT_PAUSE_MS)
        deadline = self._deadline
        if code in _UNKNOWN and self._appear_ms is not None:
            if self._unknown_until is None:
                self._unknown_until = self._patience.now_ms() + self._appear_ms
            deadline = min(deadline, self._unknown_until)
        await self._pause(code, code.name.upper(), None, deadline)

    async def _pause(self, code: ErrorCode, detail: str, cause: KafkaError | None, deadline: int) -> None:
        left = deadline - self._patience.now_ms()
        if left <= 0:
            if self.is_outcome_unknown:
                raise UnknownOutcome(ErrorCode.request_timed_out, f"{self.what}; last: {detail}") from cause
            raise error_for(code, f"{self.what}; last: {detail}") from cause
        first_contact = self._patience.first_contact_in_ms()
        await self._backoff.pause(left if first_contact is None else min(left, first_contact))
