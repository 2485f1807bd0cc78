"""This broker's own connection to the active controller. By its end the controller notices a dead broker."""

from __future__ import annotations

from typing import Final, Protocol

from einmal.broker.config import BrokerConfig
from einmal.broker.rpc.controller_channel import Leadership
from einmal.broker.rpc.peers import Asker
from einmal.event_log import EventLog
from einmal.rpc.connection import NoAnswer
from einmal.types import ErrorCode
from einmal.wire.errors import WireError
from einmal.wire.messages import Api, Q, R

log = EventLog(__name__)

_LANE: Final = "heartbeat"
_TIMEOUT_MS: Final = 2_000
_LEADER_WAIT_SECONDS: Final = 1.0


class Quorum(Leadership, Protocol):
    """This node's member of the metadata quorum."""

    refused_with: ErrorCode

    @property
    def is_voter(self) -> bool: ...


class ControllerLink:
    def __init__(self, config: BrokerConfig, quorum: Quorum, peers: Asker) -> None:
        self._quorum = quorum
        self._peers = peers
        self._voters = config.controller_quorum_voters
        self._timeout_ms = min(_TIMEOUT_MS, config.broker_session_timeout_ms)

    async def ask(self, api: Api[Q, R], version: int, request: Q) -> R | None:
        """The active controller's answer; None: there is none, and no use in asking again at once."""
        leader = await self._quorum.leader_known(_LEADER_WAIT_SECONDS)
        if leader is None:
            return None
        try:
            return await self._peers.ask(leader, api, version, request, timeout_ms=self._timeout_ms, lane=_LANE)
        except (NoAnswer, WireError) as error:
            log.debug("controller_unanswered", "controller %(node)d: %(error)s", node=leader, error=error)
            return None

    @property
    def refusal(self) -> ErrorCode | None:
        """Why no controller lets this broker follow the metadata log. None: one does, or this node is a voter."""
        is_refused = self._quorum.leader_id is None and not self._quorum.is_voter
        return self._quorum.refused_with if is_refused else None

    @property
    def what_is_missing(self) -> str:
        """Description of what a broker waits for that is not registered yet."""
        if self._quorum.leader_id is None:
            return f"an active controller: a majority of controller.quorum.voters={self._voters} must be up"
        return f"controller {self._quorum.leader_id} to register it"
