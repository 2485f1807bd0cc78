"""Coordinators of groups and transactional ids: found, asked, and looked up again when they have moved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from einmal.client.aio.network.background import end_tasks
from einmal.client.aio.network.connections import COORDINATOR_LANE
from einmal.client.aio.network.overdue import is_in_time
from einmal.client.aio.network.retry import PERHAPS_DONE, Patience, Retry
from einmal.client.apis import ApiKey
from einmal.client.cores.metadata_cache import BrokerAddress, MetadataCache
from einmal.client.errors import Disconnected, KafkaError, UnknownOutcome, error_for
from einmal.types import ErrorCode
from einmal.wire.api.find_coordinator import API as FIND_COORDINATOR
from einmal.wire.api.find_coordinator import FindCoordinatorRequest
from einmal.wire.messages import Api, Q, R

T = TypeVar("T")

GROUP: Final = 0
TRANSACTION: Final = 1
_COORDINATOR_WORD: Final = {GROUP: "group", TRANSACTION: "transaction"}

FINDABLE_AGAIN: Final = frozenset(
    {ErrorCode.not_coordinator, ErrorCode.coordinator_not_available, ErrorCode.request_timed_out}
)
"""Answers after which the coordinator is looked up again."""


class KnownBrokers(Patience, Protocol):
    """The client's brokers, as far as finding and asking a coordinator needs them."""

    metadata: MetadataCache

    async def ask_any(self, api: Api[Q, R], request: Q) -> R:
        """A question to any broker. Raises Disconnected."""

    async def call(self, node_id: int, api: Api[Q, R], request: Q, *, lane: str, at_least: int, at_most: int) -> R:
        """One request to one broker, tried once. Raises Disconnected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorRequest(Generic[Q, R]):
    """A request to the coordinator of ``key``, a group or a transactional id (``kind``).

    ``error_of`` finds the code that decides in the response; codes in ``also_retry`` are retried beside those that
    mean "not me" or "not yet". ``perhaps_done``: refusals after which the request may have been carried out all the
    same. A request whose answer was lost is sent again.
    """

    kind: int
    key: str
    api: Api[Q, R]
    request: Q
    error_of: Callable[[R], ErrorCode]
    also_retry: frozenset[ErrorCode] = frozenset()
    at_least: int = 0
    at_most: int = 32_767
    perhaps_done: frozenset[ErrorCode] = PERHAPS_DONE


class CoordinatorAnswer(NamedTuple, Generic[R]):
    """``was_repeated``: the same request may have been carried out before: its answer was lost, or left that open."""

    response: R
    was_repeated: bool


class Coordinators:
    """Remembers who coordinates what, until an answer contradicts it."""

    def __init__(self, brokers: KnownBrokers) -> None:
        self._brokers = brokers
        self._node_ids: dict[tuple[int, str], int] = {}

    async def find(self, kind: int, key: str, *, deadline: int) -> int:
        """The node that coordinates this group or transactional id. Raises RetriableError at the deadline."""
        known = self._node_ids.get((kind, key))
        if known is not None and known in self._brokers.metadata.brokers:
            return known
        # A question decides nothing: its refusal leaves no outcome open.
        what = f"finding the {_COORDINATOR_WORD[kind]} coordinator of {key!r}"
        retry = Retry(self._brokers, what, deadline, perhaps_done=frozenset())
        while True:
            try:
                node_id, code = await self._ask(kind, key)
            except Disconnected as error:
                await retry.after_disconnect(error)
                continue
            if code is ErrorCode.none:
                self._node_ids[kind, key] = node_id
                return node_id
            if not code.retriable:
                raise error_for(code, retry.what)
            await retry.after_refusal(code)

    async def _ask(self, kind: int, key: str) -> tuple[int, ErrorCode]:
        """Ask once; its address is known then. Raises Disconnected."""
        request = FindCoordinatorRequest(kind, coordinator_keys=(key,), key=key)
        response = await self._brokers.ask_any(FIND_COORDINATOR, request)
        coordinator = response.coordinators[0] if response.coordinators else response
        if coordinator.error_code is ErrorCode.none:
            self._brokers.metadata.brokers[coordinator.node_id] = BrokerAddress(
                coordinator.node_id, coordinator.host, coordinator.port
            )
        return coordinator.node_id, coordinator.error_code

    def forget(self, kind: int, key: str) -> None:
        self._node_ids.pop((kind, key), None)

    async def call(self, request: CoordinatorRequest[Q, R], *, deadline: int) -> CoordinatorAnswer[R]:
        """Send a request until its answer is something else than "not me" or "not yet".

        At the deadline: UnknownOutcome if a request was sent whose answer never came, or was one of ``perhaps_done``;
        else RetriableError.
        """
        kind, key = request.kind, request.key
        what = f"{ApiKey(request.api.key).name} for {key!r}"
        retry = Retry(self._brokers, what, deadline, perhaps_done=request.perhaps_done)
        while True:
            try:
                node_id = await self.find(kind, key, deadline=deadline)
            except KafkaError as error:
                if retry.is_outcome_unknown:
                    raise UnknownOutcome(error.code, f"{retry.what}; then: {error.detail}") from error
                raise
            try:
                response = await self.unless_moved(kind, key, node_id, self._send(node_id, request))
            except Disconnected as error:
                self.forget(kind, key)
                await retry.after_disconnect(error)
                continue
            code = request.error_of(response)
            if code in FINDABLE_AGAIN:
                self.forget(kind, key)
            elif code is not ErrorCode.coordinator_load_in_progress and code not in request.also_retry:
                return CoordinatorAnswer(response, retry.is_outcome_unknown)
            await retry.after_refusal(code)

    def _send(self, node_id: int, request: CoordinatorRequest[Q, R]) -> Coroutine[Any, Any, R]:
        return self._brokers.call(
            node_id,
            request.api,
            request.request,
            lane=COORDINATOR_LANE,
            at_least=request.at_least,
            at_most=request.at_most,
        )

    async def unless_moved(self, kind: int, key: str, node_id: int, request: Coroutine[Any, Any, T]) -> T:
        """The answer of a coordinator. Raises Disconnected once it is overdue and another broker coordinates."""
        task = asyncio.get_running_loop().create_task(request)
        try:
            while not await is_in_time(task):
                try:
                    coordinator_id, code = await self._ask(kind, key)
                except Disconnected:
                    continue
                if code is ErrorCode.none and coordinator_id != node_id and not task.done():
                    raise Disconnected(f"broker {coordinator_id} coordinates {key!r} by now", was_sent=True)
            return task.result()
        finally:
            await end_tasks([task])
