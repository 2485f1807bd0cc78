"""Produce: append record batches.

API: 0. Versions: 3-13 (0 is advertised as the minimum, see ``api_versions``).
Access: WRITE on Topic; for transactional batches WRITE on TransactionalId, else none of the batches is written.
Behaviour: each partition is decided alone. Answers when acks is met: 0 not at all (a refused batch closes the
connection), 1 when the leader has the batches (flushed, where each write is), all when they are below the high
watermark. The first transactional batch of a transaction in a partition is first verified at, or from v12 on added
by, the transaction coordinator (KIP-890); before it adds, the previous transaction gets its last marker. A batch with
very many records, or bytes once it is decompressed, is checked in the background while other connections are served.
All others are appended before this call returns.
Version notes: v10 names the leader, where it is another broker; v13 has topic ids; the coordinators map errors that old
versions do not know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Final

from einmal.broker.coordinators.transaction_service import TransactionService
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import Body, HandlerResult, Parked, RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.front.produce.produce_verification import is_transactional
from einmal.broker.front.produce.produced_batches import ALL_REPLICAS, Destinations, ProducedBatches, Waiting
from einmal.broker.front.topics.leader_hints import WRONG_BROKER, LeaderHints
from einmal.broker.replicas.batch_checks import BatchChecks
from einmal.metadata.image import ClusterImage
from einmal.seams import Clock
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode, TopicPartition, TransactionVersion
from einmal.wire.primitives import Topic
from einmal.wire.produce import (
    API,
    NodeEndpoint,
    ProduceRequest,
    ProduceResponse,
    encode_produce_response,
)

_IMPLICIT_ADD: Final = 12
"""From this version on a transactional write adds its partition to the transaction (TV2)."""
_CURRENT_LEADER: Final = 10

_AT_ONCE_MAX: Final = 100
"""Above so many partitions other connections are served in between."""


@handler
class ProduceHandler:
    api: ClassVar = API
    access: Access
    destinations: Destinations
    transactions: TransactionService
    batch_checks: BatchChecks
    clock: Clock

    def handle(self, context: RequestContext, request: ProduceRequest) -> HandlerResult:
        # Without an answer no client retries refused batches.
        refused = None if context.origin is None or request.acks == 0 else context.origin.refused_batches
        version = None
        if is_transactional(request):
            version = TransactionVersion.TV_2 if context.api_version >= _IMPLICIT_ADD else TransactionVersion.TV_1
        batches = ProducedBatches(request, self.destinations, refused, version)
        if version is not None and not self._may_use(context, request.transactional_id):
            batches.refuse_all(ErrorCode.transactional_id_authorization_failed)
            return self._result(context, request, batches)
        if request.acks not in (0, 1, ALL_REPLICAS):
            batches.refuse_all(ErrorCode.invalid_required_acks)
            return self._encode(context, batches)
        if sum(len(partitions) for _topic, partitions in request.topics) > _AT_ONCE_MAX:
            return self._append_in_turns(context, request, batches)
        for topic, partitions in request.topics:
            batches.begin(topic, self._refusal(context, topic))
            batches.append(partitions, self.clock.now())
        if batches.unverified or batches.undecided:
            return self._append_rest(context, request, batches)
        return self._result(context, request, batches)

    # --- access --------------------------------------------------------------------------------------------------

    def _may_use(self, context: RequestContext, transactional_id: str | None) -> bool:
        if transactional_id is None:
            return False
        return self.access.allows(context, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)

    def _refusal(self, context: RequestContext, topic: Topic) -> ErrorCode | None:
        """Why nothing is written to any partition of the topic; the id of a topic that does not exist is no reason."""
        if not self.access.is_enforced:
            return None
        name = self.destinations.metadata.image.name_of_topic(topic)
        return None if name is None else self.access.refusal(context, AclOperation.WRITE, ResourceType.TOPIC, name)

    # --- appending -----------------------------------------------------------------------------------------------

    async def _append_in_turns(
        self, context: RequestContext, request: ProduceRequest, batches: ProducedBatches
    ) -> Body | Parked:
        """Append all, serving other connections in between."""
        async for topic, partitions in context.paced(request.topics):
            batches.begin(topic, self._refusal(context, topic))
            async for partition in context.paced(partitions):
                batches.append((partition,), self.clock.now())
        return await self._append_rest(context, request, batches)

    async def _append_rest(
        self, context: RequestContext, request: ProduceRequest, batches: ProducedBatches
    ) -> Body | Parked:
        """Append batches that must be verified first, or that take longer to check. The connection's next request waits
        meanwhile: batches stay in order."""
        limit = self.transactions.ends.limit(context, request.timeout_ms)
        for producer, items in batches.unverified.items():
            assert request.transactional_id is not None, "transactional batches without an id are refused"
            errors = await self.transactions.verify_produce(
                request.transactional_id,
                producer,
                [item.topic_partition for item in items],
                context.api_version,
                limit,
            )
            async for item in context.paced(items):
                # The permission may have been withdrawn meanwhile.
                refusal = self._refusal(context, request.topics[item.slot[0]][0])
                batches.append_verified(item, errors[item.topic_partition], refusal, self.clock.now())
        for undecided in batches.undecided:
            await self.batch_checks.run(undecided.admission.decide, context.sender)
            batches.append_decided(undecided, self.clock.now())
        return self._result(context, request, batches)

    # --- answering -----------------------------------------------------------------------------------------------

    def _result(self, context: RequestContext, request: ProduceRequest, batches: ProducedBatches) -> Body | Parked:
        """Raises Unanswered."""
        if request.acks == 0:
            batches.check_unanswered()
            return None
        if not batches.waiting:
            return self._encode(context, batches)
        return Parked(self._when_met(context, request, batches))

    def _when_met(
        self, context: RequestContext, request: ProduceRequest, batches: ProducedBatches
    ) -> asyncio.Future[Body]:
        """The answer, when all batches are acknowledged as acks requires, or the request has timed out."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Body] = loop.create_future()
        remaining = len(batches.waiting)

        def finish() -> None:
            if not done.done():
                done.set_result(self._encode(context, batches))

        def settled(waiting: Waiting, future: asyncio.Future[ErrorCode]) -> None:
            nonlocal remaining
            remaining -= 1
            if not future.cancelled() and (error := future.result()) is not ErrorCode.none:
                batches.fail(waiting, error)
            if remaining == 0:
                timer.cancel()
                finish()

        def expire() -> None:
            batches.expire()
            finish()

        timer = loop.call_later(max(0, request.timeout_ms) / 1000, expire)
        for waiting in batches.waiting:
            waiting.met.add_done_callback(partial(settled, waiting))
        return done

    def _encode(self, context: RequestContext, batches: ProducedBatches) -> bytes:
        endpoints: Sequence[NodeEndpoint] = ()
        if batches.has_refused and context.api_version >= _CURRENT_LEADER:
            endpoints = _hint(context, self.destinations.metadata.image, batches)
        throttle_ms = 0 if context.charge is None else context.charge.settle()
        response = ProduceResponse(batches.topics, throttle_ms, endpoints)
        return encode_produce_response(context.api_version, response)


def _hint(context: RequestContext, image: ClusterImage, batches: ProducedBatches) -> Sequence[NodeEndpoint]:
    """The leaders of partitions that this broker does not lead."""
    hints = LeaderHints(image, context.listener.name)
    for topic, results in batches.topics:
        name = topic if isinstance(topic, str) else image.topic_names.get(topic, "")
        for number, result in enumerate(results):
            if result.error_code in WRONG_BROKER:
                leader = hints.of(TopicPartition(name, result.partition))
                results[number] = result._replace(current_leader=leader)
    return hints.endpoints
