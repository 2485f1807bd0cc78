"""Fetch: read record batches.

API: 1. Versions: 4-18.
Access: READ on Topic; of a replica CLUSTER_ACTION on Cluster, and only nodes of the cluster.
Behaviour: read_committed reads below the last stable offset and names the aborted transactions of what it returns;
read_uncommitted reads below the high watermark. Waits until min_bytes are there, or as much as an answer may have, at
most max_wait_ms. At least one batch of the first partition that has any, whatever the limits; one contiguous read per
partition. KIP-227 sessions.
Only a confirmed leader answers OFFSET_OUT_OF_RANGE for an offset above the log's end: consumers reset their position
then. Replicas, which send their id and broker epoch, read to the end of the log. The metadata log is served only on
the controllers' listener.
Version notes: v7 sessions; v9 current leader epoch; v12 last fetched epoch and diverging epoch; v13 topic ids; v15
replica state; v16 names the leader, where it is another broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import ClassVar, Final, cast

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.config import BrokerConfig
from einmal.broker.control.quorum_runtime import QuorumRuntime
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import Body, HandlerResult, Parked, RequestContext
from einmal.broker.front.fetch.consumer_fetch import ConsumerFetch
from einmal.broker.front.fetch.fetch_sessions import NO_SESSION, FetchSessions
from einmal.broker.front.fetch.fetch_waiting import WideWait, answer_later
from einmal.broker.front.handler import handler
from einmal.broker.front.topics.leader_hints import WRONG_BROKER, LeaderHints
from einmal.broker.listeners import Audience
from einmal.broker.replicas.partitions import Partitions
from einmal.broker.replicas.replica_sessions import ReplicaSessions
from einmal.broker.resources.memory_budget import MemoryBudget
from einmal.broker.resources.parked_fetches import ParkedFetches
from einmal.metadata.image import CLUSTER_METADATA, METADATA_TOPIC_ID
from einmal.seams import Clock
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode, TopicPartition
from einmal.wire.fetch import (
    API,
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    encode_fetch_response,
    fetch_response_parts,
)
from einmal.wire.primitives import Topic
from einmal.wire.produce import NodeEndpoint, Records

_TOPIC_IDS: Final = 13
_NODE_ENDPOINTS: Final = 16
_METADATA: Final = (CLUSTER_METADATA, METADATA_TOPIC_ID)


@handler
class FetchHandler:
    """``response_memory``: of answers that clients of this listener have not received yet."""

    api: ClassVar = API
    access: Access
    config: BrokerConfig
    clock: Clock
    metadata: ClusterMetadata
    partitions: Partitions
    quorum: QuorumRuntime
    replica_sessions: ReplicaSessions
    fetch_sessions: FetchSessions
    response_memory: MemoryBudget
    parked_fetches: ParkedFetches

    def handle(self, context: RequestContext, request: FetchRequest) -> HandlerResult:
        if context.audience is Audience.CONTROLLERS or any(topic in _METADATA for topic, _partitions in request.topics):
            is_from_member = context.audience is Audience.CONTROLLERS
            if is_from_member and (refused := self.access.refusal_of_client(context, "Fetch of the metadata log")):
                return encode_fetch_response(context.api_version, FetchResponse([], refused))
            if request.replica_id >= 0 and not is_from_member:
                context.refuse_client("Fetch of a replica")
            return _parked(self.quorum.handle_fetch(context.api_version, request, is_from_member=is_from_member))
        if request.replica_id >= 0:
            error = self.access.refusal_of_client(context, "Fetch of a replica")
            if error is None and not self.replica_sessions.is_from_replica(request):
                error = context.refuse_client("Fetch of a replica")
            if error is not None:
                return encode_fetch_response(context.api_version, FetchResponse([], error))
            if context.charge is not None:
                context.charge.exempt()
            return _parked(self.replica_sessions.handle(context.api_version, request))
        return self._fetch(context, request)

    def _fetch(self, context: RequestContext, request: FetchRequest) -> HandlerResult:
        """A consumer's."""
        has_topic_ids = context.api_version >= _TOPIC_IDS
        wanted = self.fetch_sessions.begin(request, self.clock.now().monotonic_ms, has_topic_ids=has_topic_ids)
        if isinstance(wanted, ErrorCode):
            return encode_fetch_response(context.api_version, FetchResponse([], wanted))
        bytes_most = self.config.fetch_max_bytes
        if context.charge is not None:
            bytes_most = context.charge.fetch_bytes_max(bytes_most)
        fetch = ConsumerFetch(
            request,
            wanted,
            self.metadata.image,
            self.partitions,
            refusal_of=partial(self._refusal, context),
            bytes_most=bytes_most,
            response_memory=self.response_memory,
        )
        if fetch.is_wide:
            return self._answer_in_turns(context, fetch)
        for _ in fetch.finding():
            pass
        return self._answer(context, fetch)

    def _refusal(self, context: RequestContext, topic: str) -> ErrorCode | None:
        return self.access.refusal(context, AclOperation.READ, ResourceType.TOPIC, topic)

    def _answer(self, context: RequestContext, fetch: ConsumerFetch) -> HandlerResult:
        if fetch.read() or fetch.request.max_wait_ms <= 0:
            return self._confirm(context, fetch) if fetch.ended else self._encode(context, fetch)
        return Parked(answer_later(fetch, self.parked_fetches, partial(self._encode, context)), fetch.bytes_max)

    async def _answer_in_turns(self, context: RequestContext, fetch: ConsumerFetch) -> Body | Parked:
        turns = context.turns
        await turns.next()
        await turns.run(fetch.finding())
        wait = WideWait(fetch, turns, self.parked_fetches)
        try:
            await turns.run(fetch.reading())
            is_waiting = not fetch.is_ready and fetch.request.max_wait_ms > 0
        except BaseException:
            wait.end()
            raise
        encode = partial(self._encode_in_turns, context)
        # Each waits without this request's share of memory: followers confirm by a Fetch, which may wait for it.
        if is_waiting:
            answer = asyncio.ensure_future(wait.answer(encode))
            answer.add_done_callback(lambda _: wait.end())
            return Parked(answer, fetch.bytes_max)
        wait.end()
        if fetch.ended:
            return Parked(asyncio.ensure_future(self._confirm(context, fetch)))
        return await encode(fetch)

    async def _confirm(self, context: RequestContext, fetch: ConsumerFetch) -> Body:
        """The answer, once it is known whether another leader may have written beyond the end by now."""
        asked = [
            (index, self.replica_sessions.confirm_leadership(partition)) for index, partition in fetch.ended.items()
        ]
        for index, confirmed in asked:
            if not await confirmed:
                fetch.refuse(index, ErrorCode.not_leader_or_follower)
        return await self._encode_in_turns(context, fetch)

    def _encode(self, context: RequestContext, fetch: ConsumerFetch) -> Body:
        return [chunk for chunk in self._parts(context, fetch) if len(chunk)]

    async def _encode_in_turns(self, context: RequestContext, fetch: ConsumerFetch) -> Body:
        return [chunk async for chunk in context.paced(self._parts(context, fetch)) if len(chunk)]

    def _parts(self, context: RequestContext, fetch: ConsumerFetch) -> Iterator[Records]:
        """The encoded answer, in steps, of which some have no bytes."""
        throttle_ms = 0
        if context.charge is not None:
            size = sum(len(fetched.records) for _topic, fetched in fetch.results)
            throttle_ms, is_refused = context.charge.settle_fetch(size)
            if is_refused:
                yield from self._without_records(context, fetch, throttle_ms)
                return
        session = fetch.session
        topics: dict[Topic, list[FetchedPartition]] = {}
        for index, (topic, fetched) in enumerate(fetch.results):
            if fetched.records:
                fetch.count_sent(index)
            is_new = session is None or session.remember(topic, fetched)
            if is_new or not fetch.is_incremental:
                topics.setdefault(topic, []).append(fetched)
            yield b""
        session_id = NO_SESSION if session is None else session.session_id
        endpoints = _hint(context, fetch, topics)
        response = FetchResponse(list(topics.items()), ErrorCode.none, session_id, throttle_ms, endpoints)
        yield from fetch_response_parts(context.api_version, response)

    def _without_records(self, context: RequestContext, fetch: ConsumerFetch, throttle_ms: int) -> list[Records]:
        """The answer above a quota (KIP-219): a client takes an empty one for no answer, and asks again."""
        session_id = NO_SESSION
        if fetch.session is not None and fetch.is_incremental:
            session_id = fetch.session.session_id
        elif fetch.session is not None:
            # It asks for everything again, in another session.
            self.fetch_sessions.close(fetch.session)
        return encode_fetch_response(context.api_version, FetchResponse([], ErrorCode.none, session_id, throttle_ms))


def _parked(answer: list[Records] | asyncio.Future[list[Records]]) -> Body | Parked:
    return Parked(cast("asyncio.Future[Body]", answer)) if isinstance(answer, asyncio.Future) else answer


def _hint(
    context: RequestContext, fetch: ConsumerFetch, topics: dict[Topic, list[FetchedPartition]]
) -> Sequence[NodeEndpoint]:
    """The leaders of partitions that this broker does not lead."""
    if context.api_version < _NODE_ENDPOINTS:
        return ()
    hints = LeaderHints(fetch.image, context.listener.name)
    for topic, results in topics.items():
        for number, fetched in enumerate(results):
            if fetched.error_code in WRONG_BROKER:
                name = topic if isinstance(topic, str) else fetch.image.topic_names.get(topic, "")
                results[number] = fetched._replace(current_leader=hints.of(TopicPartition(name, fetched.partition)))
    return hints.endpoints
