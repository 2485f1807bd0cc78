"""Requests to the active controller, whoever that is by the time: asked again where it is another one by then."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from einmal.broker.rpc.peers import Peers
from einmal.rpc.connection import NoAnswer
from einmal.types import ErrorCode
from einmal.wire.messages import Api, Q, R, Values

_LANE: Final = "controller"
_RETRY_SECONDS: Final = 0.05
_LOOK_SECONDS: Final = 0.2
"""How often it is looked whether whoever is asked still is the controller."""


class Leadership(Protocol):
    """Who leads the metadata quorum, and so is the active controller."""

    @property
    def leader_id(self) -> int | None: ...

    async def leader_known(self, timeout_s: float) -> int | None:
        """The leader, waited for; None: nobody is known to lead by the end of the time."""


class ControllerChannel:
    def __init__(self, peers: Peers, quorum: Leadership) -> None:
        self._peers = peers
        self._quorum = quorum

    async def ask(self, api: Api[Q, R], version: int, request: Q, *, timeout_ms: int) -> R:
        """Ask until a controller answers. Raises NoAnswer, or WireError for an answer that cannot be read.

        The request may be carried out more than once.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_ms / 1000
        failure = NoAnswer("no active controller is known", was_sent=False)
        while (left := end - loop.time()) > 0:
            controller = await self._quorum.leader_known(left)
            if controller is None:
                break
            try:
                answer = await self._ask_while_it_leads(controller, api, version, request, max(1, int(left * 1000)))
            except NoAnswer as error:
                failure = error
            else:
                if not _is_refused(answer):
                    return answer
            await asyncio.sleep(min(_RETRY_SECONDS, max(0.0, end - loop.time())))
        raise failure

    async def _ask_while_it_leads(
        self, controller: int, api: Api[Q, R], version: int, request: Q, timeout_ms: int
    ) -> R:
        """As ``Peers.ask``, and given up when the node there is known to be the controller no more: it may hang."""
        asking = asyncio.get_running_loop().create_task(
            self._peers.ask(controller, api, version, request, timeout_ms=timeout_ms, lane=_LANE)
        )
        try:
            while True:
                try:
                    async with asyncio.timeout(_LOOK_SECONDS):
                        return await asyncio.shield(asking)
                except TimeoutError:
                    if self._quorum.leader_id != controller:
                        raise NoAnswer(f"node {controller} is not the controller any more", was_sent=True) from None
        finally:
            asking.cancel()


def _is_refused(answer: Values) -> bool:
    """Whether whoever answered is not the active controller any more."""
    errors = [getattr(answer, "error_code", ErrorCode.none)]
    errors += [getattr(topic, "error_code", ErrorCode.none) for topic in getattr(answer, "topics", None) or ()]
    return ErrorCode.not_controller in errors
