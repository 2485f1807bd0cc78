"""EndTxn: commit or abort a transaction.

API: 26. Versions: 0-5.
Access: WRITE on TransactionalId.
Behaviour: answers when the outcome is committed; its markers are written after that; a request that begins the next
transaction of this transactional id waits for them, any other gets CONCURRENT_TRANSACTIONS until then.
Version notes: v2 knows PRODUCER_FENCED; v5 is TV2: the epoch is bumped, and the answer has the producer's new identity.
"""

from __future__ import annotations

from typing import ClassVar, Final

from einmal.broker.coordinators.transaction_service import TransactionService
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.security.acl import AclOperation, ResourceType
from einmal.transactions.coordinator import EndTxnResult
from einmal.types import ErrorCode, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TransactionVersion
from einmal.wire.api.end_txn import API, EndTxnRequest, EndTxnResponse

_KNOWS_FENCED: Final = 2
_MOVES_EPOCH: Final = 5


@handler
class EndTxnHandler:
    api: ClassVar = API
    access: Access
    transactions: TransactionService

    async def handle(self, context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
        transactional_id = request.transactional_id
        if refused := self.access.refusal(context, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
            return EndTxnResponse(error_code=refused)
        producer = ProducerIdAndEpoch(ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch))
        version = TransactionVersion.TV_2 if context.api_version >= _MOVES_EPOCH else TransactionVersion.TV_0
        outcome = await self.transactions.submit(
            transactional_id,
            lambda shard, now: shard.end_txn(
                transactional_id, producer, committed=request.committed, version=version, now=now
            ),
        )
        result = EndTxnResult(outcome) if isinstance(outcome, ErrorCode) else outcome
        error = result.error
        if error is ErrorCode.producer_fenced and context.api_version < _KNOWS_FENCED:
            error = ErrorCode.invalid_producer_epoch
        return EndTxnResponse(error_code=error, producer_id=result.producer_id, producer_epoch=result.producer_epoch)
