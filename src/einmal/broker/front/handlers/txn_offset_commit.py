"""TxnOffsetCommit: a group's positions, as part of a transaction.

API: 28. Versions: 0-5.
Access: WRITE on TransactionalId, READ on Group, READ on Topic.
Behaviour: the first of a transaction in the group's partition is verified at, or from v5 on added by, the transaction
coordinator (KIP-890). Then the group's shard is asked, which fences by generation, member and instance (KIP-447); what
it lets through is pending until the transaction's marker.
Version notes: v2 leader epochs; v3 generation, member and instance; v4 TRANSACTION_ABORTABLE; v5 implies
AddOffsetsToTxn.
"""

from __future__ import annotations

from typing import ClassVar

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.coordinators.group_service import GroupService
from einmal.broker.coordinators.transaction_service import TransactionService
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.front.topics.committed_topics import CommittedTopics, by_partition, to_commit
from einmal.groups.requests import TxnOffsetCommit
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode, ProducerEpoch, ProducerId, ProducerIdAndEpoch
from einmal.wire.api.offset_commit import OffsetCommitResponse
from einmal.wire.api.txn_offset_commit import (
    API,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)


@handler
class TxnOffsetCommitHandler:
    api: ClassVar = API
    access: Access
    groups: GroupService
    transactions: TransactionService
    metadata: ClusterMetadata

    async def handle(self, context: RequestContext, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
        named = [(topic.name, topic.partitions) for topic in request.topics]
        topics: CommittedTopics[TxnOffsetCommitRequestPartition] = CommittedTopics(context, self.access, named)
        if refused := self._refusal(context, request):
            return _in_shape(request, await topics.all_refused(refused, TxnOffsetCommitResponsePartition))
        await topics.resolve(self.metadata.image)
        if not topics.known:
            return await _response(request, topics, ErrorCode.none)
        runtime = self.groups.runtime_of(request.group_id)
        if isinstance(runtime, ErrorCode):
            return await _response(request, topics, runtime)
        producer = ProducerIdAndEpoch(ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch))
        guard = await self.transactions.verify_offset_commit(
            request.transactional_id,
            producer,
            runtime.partition,
            context.api_version,
            self.transactions.ends.limit(context),
        )
        if isinstance(guard, ErrorCode):
            return await _response(request, topics, guard)
        topics.forget_deleted(self.metadata.image)
        commit = TxnOffsetCommit(
            group_id=request.group_id,
            producer=producer,
            generation_id=request.generation_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            offsets=to_commit(topics.known),
        )
        # The same leadership as before the verification, or none: a guard is good for no other.
        response = await runtime.submit(lambda shard, now: shard.txn_offset_commit(commit, now), verification=guard)
        return await _response(request, topics, response)

    def _refusal(self, context: RequestContext, request: TxnOffsetCommitRequest) -> ErrorCode | None:
        """Why neither this transaction nor this group may be asked."""
        transactional_id, group_id = request.transactional_id, request.group_id
        return self.access.refusal(
            context, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
        ) or self.access.refusal(context, AclOperation.READ, ResourceType.GROUP, group_id)


async def _response(
    request: TxnOffsetCommitRequest,
    topics: CommittedTopics[TxnOffsetCommitRequestPartition],
    answer: OffsetCommitResponse | ErrorCode,
) -> TxnOffsetCommitResponse:
    errors = answer if isinstance(answer, ErrorCode) else by_partition(answer.topics)
    return _in_shape(request, await topics.responses(errors, TxnOffsetCommitResponsePartition))


def _in_shape(
    request: TxnOffsetCommitRequest, responses: list[list[TxnOffsetCommitResponsePartition]]
) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(topic.name, partitions)
            for topic, partitions in zip(request.topics, responses, strict=True)
        ]
    )
