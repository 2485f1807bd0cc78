"""``ExchangeRecorder``: the exchanges of a frame proxy, as its observer."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from einmal.chaos.proxy.frames import AnswerFrame, RequestFrame
from einmal.event_log import EventLog
from einmal.trace.exchanges import Exchange, Names, exchange, software_of, topics_of
from einmal.wire.errors import WireError

_logger = EventLog(__name__)


class ExchangeRecorder:
    """Keeps what concerns transactions, without the records. The proxy's thread calls it; ``exchanges`` may any."""

    def __init__(self) -> None:
        self._done: Final[list[Exchange]] = []
        self._waiting: Final[dict[RequestFrame, float]] = {}
        self._topics: Final[dict[UUID, str]] = {}
        self._software: Final[dict[int, str]] = {}
        self._names: Final = Names(self._topics, self._software)

    def saw_request(self, at: float, request: RequestFrame) -> None:
        if request.api == "ApiVersions":
            self._software[request.connection] = software_of(request)
        self._waiting[request] = at

    def saw_answer(self, at: float, answer: AnswerFrame) -> None:
        # A request that a fault has doubled has a second answer.
        sent_at = self._waiting.pop(answer.request, None)
        if sent_at is None:
            return
        if answer.request.api == "Metadata":
            self._topics.update(topics_of(answer))
        answered_exchange = self._exchange(answer.request, sent_at, answer, at)
        if answered_exchange is not None:
            self._done.append(answered_exchange)

    def exchanges(self) -> list[Exchange]:
        """In the order of the requests; those without an answer so far, too."""
        unanswered = (self._exchange(request, at, None, None) for request, at in list(self._waiting.items()))
        exchanges = [*self._done, *(pending for pending in unanswered if pending is not None)]
        return sorted(exchanges, key=lambda recorded: recorded.sent_at)

    def _exchange(
        self, request: RequestFrame, sent_at: float, answer: AnswerFrame | None, answered_at: float | None
    ) -> Exchange | None:
        try:
            return exchange(request, sent_at, answer, answered_at, self._names)
        except WireError as error:
            _logger.warning(
                "trace_exchange_omitted", "%(api)s is left out of the trace: %(error)s", api=request.api, error=error
            )
            return None
