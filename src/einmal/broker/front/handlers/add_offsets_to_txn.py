"""AddOffsetsToTxn: a transaction is going to commit offsets of a group.

API: 25. Versions: 0-4.
Access: WRITE on TransactionalId, READ on Group.
Behaviour: adds the group's partition of ``__consumer_offsets`` to the transaction, once the previous one has its
markers.
Version notes: v2 knows PRODUCER_FENCED. Clients of TV2 do not send it: TxnOffsetCommit 5 does this too.
"""

from __future__ import annotations

from typing import ClassVar, Final

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.control.topic_creation import TopicCreation
from einmal.broker.coordinators.transaction_service import TransactionService
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.metadata.image import CONSUMER_OFFSETS
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import (
    ErrorCode,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)
from einmal.wire.api.add_offsets_to_txn import API, AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from einmal.wire.java_hash import partition_for_id

_KNOWS_FENCED: Final = 2


@handler
class AddOffsetsToTxnHandler:
    api: ClassVar = API
    access: Access
    transactions: TransactionService
    metadata: ClusterMetadata
    topic_creation: TopicCreation

    async def handle(self, context: RequestContext, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
        refused = self.access.refusal(
            context, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id
        ) or self.access.refusal(context, AclOperation.READ, ResourceType.GROUP, request.group_id)
        if refused:
            return AddOffsetsToTxnResponse(error_code=refused)
        # The first transaction of a cluster may come before the first group.
        error = await self.topic_creation.ensure(CONSUMER_OFFSETS)
        if error is ErrorCode.none:
            error = await self._add(context, request)
        else:
            error = ErrorCode.coordinator_not_available
        if error is ErrorCode.producer_fenced and context.api_version < _KNOWS_FENCED:
            error = ErrorCode.invalid_producer_epoch
        return AddOffsetsToTxnResponse(error_code=error)

    async def _add(self, context: RequestContext, request: AddOffsetsToTxnRequest) -> ErrorCode:
        count = len(self.metadata.image.topics[CONSUMER_OFFSETS].partitions)
        offsets = TopicPartition(CONSUMER_OFFSETS, partition_for_id(request.group_id, count))
        transactional_id = request.transactional_id
        producer = ProducerIdAndEpoch(ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch))
        return await self.transactions.submit_next(
            transactional_id,
            lambda shard, now: shard.add_partitions_to_txn(
                transactional_id, producer, (offsets,), TransactionVersion.TV_0, now
            ),
            self.transactions.ends.limit(context),
        )
