"""InitProducerId: an identity for an idempotent or transactional producer.

API: 22. Versions: 0-6.
Access: WRITE on TransactionalId, and TWO_PHASE_COMMIT where it is asked for (KIP-939); without an id IDEMPOTENT_WRITE
on Cluster, or WRITE on any Topic (KIP-679).
Behaviour: without a transactional id any broker gives a fresh producer id. With one, its coordinator moves the epoch,
so that every instance before is fenced; over an open transaction it first aborts that one and answers
CONCURRENT_TRANSACTIONS; over one that lacks markers it waits for them.
Version notes: v3 brings the producer's own id and epoch (KIP-360); v4 knows PRODUCER_FENCED; v6 takes part in two-phase
commits: no timeout, and an open transaction may be kept for its new owner (KIP-939). It is offered only with
``transaction.two.phase.commit.enable``.
"""

from __future__ import annotations

from typing import ClassVar, Final

from einmal.broker.coordinators.awaited_ends import WaitLimit
from einmal.broker.coordinators.transaction_service import TransactionService
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.security.acl import AclOperation, ResourceType
from einmal.transactions.coordinator import InitProducerIdResult, TwoPhase
from einmal.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ErrorCode,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
)
from einmal.wire.api.init_producer_id import API, InitProducerIdRequest, InitProducerIdResponse

_KNOWS_FENCED: Final = 4


@handler
class InitProducerIdHandler:
    api: ClassVar = API
    access: Access
    transactions: TransactionService

    async def handle(self, context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
        if refused := self._refusal(context, request):
            return _response(context, InitProducerIdResult(refused))
        producer_ids = self.transactions.producer_ids
        producer = ProducerIdAndEpoch(ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch))
        if (producer.producer_id == NO_PRODUCER_ID) != (producer.producer_epoch == NO_PRODUCER_EPOCH):
            return _response(context, InitProducerIdResult(ErrorCode.invalid_request))
        transactional_id = request.transactional_id
        if transactional_id is None:
            await producer_ids.ready()
            return _response(context, _idempotent(producer_ids.take()))
        owner = None if producer.producer_id == NO_PRODUCER_ID else producer
        limit = self.transactions.ends.limit(context)
        result = await self._initialise(transactional_id, request, owner, limit)
        if result.error is ErrorCode.coordinator_load_in_progress and not producer_ids.has_any:
            # Only an id that is new, or whose epochs are at their end, has to wait for the controller.
            await producer_ids.ready()
            result = await self._initialise(transactional_id, request, owner, limit)
        return _response(context, result)

    def _refusal(self, context: RequestContext, request: InitProducerIdRequest) -> ErrorCode | None:
        if (transactional_id := request.transactional_id) is not None:
            resource = ResourceType.TRANSACTIONAL_ID
            refused = self.access.refusal(context, AclOperation.WRITE, resource, transactional_id)
            if refused is None and request.enable2_pc:
                refused = self.access.refusal(context, AclOperation.TWO_PHASE_COMMIT, resource, transactional_id)
            return refused
        idempotent_write = AclOperation.IDEMPOTENT_WRITE
        if self.access.allows(context, idempotent_write, ResourceType.CLUSTER, is_filter=True):
            return None
        writes_any = self.access.allows_any(context, AclOperation.WRITE, ResourceType.TOPIC)
        return None if writes_any else ErrorCode.cluster_authorization_failed

    async def _initialise(
        self,
        transactional_id: str,
        request: InitProducerIdRequest,
        owner: ProducerIdAndEpoch | None,
        limit: WaitLimit,
    ) -> InitProducerIdResult:
        timeout_ms = request.transaction_timeout
        two_phase = TwoPhase(request.enable2_pc, request.keep_prepared_txn)
        outcome = await self.transactions.submit_next(
            transactional_id,
            lambda shard, now: shard.init_producer_id(transactional_id, timeout_ms, owner, now, two_phase),
            limit,
        )
        return InitProducerIdResult(outcome) if isinstance(outcome, ErrorCode) else outcome


def _idempotent(producer_id: ProducerId | None) -> InitProducerIdResult:
    if producer_id is None:
        return InitProducerIdResult(ErrorCode.coordinator_load_in_progress)
    return InitProducerIdResult(ErrorCode.none, producer_id, ProducerEpoch(0))


def _response(context: RequestContext, result: InitProducerIdResult) -> InitProducerIdResponse:
    error = result.error
    if error is ErrorCode.producer_fenced and context.api_version < _KNOWS_FENCED:
        error = ErrorCode.invalid_producer_epoch
    return InitProducerIdResponse(
        error_code=error,
        producer_id=result.producer_id,
        producer_epoch=result.producer_epoch,
        ongoing_txn_producer_id=result.ongoing_producer_id,
        ongoing_txn_producer_epoch=result.ongoing_producer_epoch,
    )
