"""The moments of a writer that no listener hears of: what it asks the claim service, and is answered.

Tests that kill writers share this: a moment that the protocol no longer has must fail one fast test, and not be waited
for in vain by each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from einmal.sinks.kafka.claim_messages import Answer, AskAgain, ClaimPartitions, ClaimsGranted, Question, ReportOutputs
from einmal.sinks.kafka.claim_service import ClaimService

CLAIM: Final = "claim"
"""It is about to ask for partitions."""
GRANTED: Final = "granted"
"""It may write, and does not know it yet."""
LATER: Final = "later"
"""It must ask again: others write what it wants."""
REPORTED: Final = "reported"
"""What it has written is noted, and it does not know that yet."""

Reach = Callable[[ClaimService, str, int], None]
"""The service, the moment, and the port that the writer's connection comes from; the writer waits for its return."""


def watch_claims(reach: Reach) -> Callable[[], None]:
    """Pass every moment of this process's claim services to ``reach``, until what is returned is called."""
    answer = ClaimService.answer

    def watched(self: ClaimService, question: Question, connection: Any) -> Answer:
        port = connection.client_address[1]
        if isinstance(question, ClaimPartitions):
            reach(self, CLAIM, port)
        answered = answer(self, question, connection)
        if isinstance(question, ReportOutputs):
            reach(self, REPORTED, port)
        elif isinstance(answered, ClaimsGranted):
            reach(self, GRANTED, port)
        elif isinstance(answered, AskAgain):
            reach(self, LATER, port)
        return answered

    def stop() -> None:
        ClaimService.answer = answer  # type: ignore[method-assign]

    ClaimService.answer = watched  # type: ignore[method-assign]
    return stop
