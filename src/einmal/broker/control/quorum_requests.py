"""Vote, BeginQuorumEpoch and EndQuorumEpoch to other members, as far as they answer.

Each request is a task of its own. They share a connection, which no Fetch that waits holds up. Knows no Raft.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from einmal.broker.control.quorum_messages import VERSION, QuorumResponse, reply_of
from einmal.broker.rpc.peers import Asker
from einmal.event_log import EventLog
from einmal.quorum.messages import Reply
from einmal.rpc.connection import NoAnswer
from einmal.types import ErrorCode
from einmal.wire.errors import WireError
from einmal.wire.messages import Api, Q

log = EventLog(__name__)

_LANE: Final = "quorum"


class QuorumRequests:
    def __init__(self, peers: Asker, timeout_ms: int) -> None:
        self._peers = peers
        self._timeout_ms = timeout_ms
        # A dict, not a set: tasks are cancelled in the order in which they began.
        self._tasks: dict[asyncio.Task[None], None] = {}

    def send(
        self,
        to: int,
        api: Api[Q, QuorumResponse],
        request: Q,
        answered: Callable[[Reply | None], object],
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Ask one member. ``answered`` is called with its reply; None: no reply that can be used."""
        task = asyncio.get_running_loop().create_task(
            self._ask(to, api, request, answered, timeout_ms or self._timeout_ms)
        )
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    async def _ask(
        self,
        to: int,
        api: Api[Q, QuorumResponse],
        request: Q,
        answered: Callable[[Reply | None], object],
        timeout_ms: int,
    ) -> None:
        reply = None
        try:
            answer = await self._peers.ask(to, api, VERSION[api.key], request, timeout_ms=timeout_ms, lane=_LANE)
            if answer.error_code is not ErrorCode.none:
                refused = "node %(node)d has nothing to do with this one: %(error)s"
                log.error("quorum_request_refused", refused, node=to, error=answer.error_code.name)
            reply = reply_of(answer)
        except (NoAnswer, WireError) as error:
            log.debug(
                "quorum_request_failed",
                "request %(api)d to node %(node)d: %(error)s",
                api=api.key,
                node=to,
                error=error,
            )
        answered(reply)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            what = {"message": "a request of the metadata quorum failed", "exception": error}
            task.get_loop().call_exception_handler(what)

    def cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    async def ended(self) -> None:
        """Wait for the end of all that are under way."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
