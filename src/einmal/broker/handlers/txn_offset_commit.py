"""TxnOffsetCommit: a group's positions, as part of a transaction.

API: 28. Versions: 0-5.
Behaviour: the first of a transaction in the group's partition is verified at, or from v5 on added by, the transaction
coordinator (KIP-890). Then the group's shard is asked, which fences by generation, member and instance (KIP-447); what
it lets through is pending until the transaction's marker.
Version notes: v2 leader epochs; v3 generation, member and instance; v4 TRANSACTION_ABORTABLE; v5 implies
AddOffsetsToTxn.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.committed_topics import CommittedTopics
from einmal.broker.context import Body, RequestContext, Versions
from einmal.groups.requests import TxnOffsetCommit
from einmal.types import ErrorCode, ProducerIdAndEpoch

API_KEY: Final = 28
VERSIONS: Final = Versions(0, 5, flexible=3)


async def handle(context: RequestContext, request: Any) -> Body:
    node = context.node
    topics = CommittedTopics(node, request.topics)
    if not topics.known:
        return topics.answer(ErrorCode.none)
    commit = TxnOffsetCommit(
        group_id=request.group_id,
        producer=ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        generation_id=getattr(request, "generation_id", -1),
        member_id=getattr(request, "member_id", ""),
        group_instance_id=getattr(request, "group_instance_id", None),
        offsets=topics.offsets,
    )
    runtime = node.groups.runtime_of(commit.group_id)
    if isinstance(runtime, ErrorCode):
        return topics.answer(runtime)
    guard = await node.transactions.verify_offset_commit(
        request.transactional_id, commit.producer, runtime.partition, context.api_version
    )
    if isinstance(guard, ErrorCode):
        return topics.answer(guard)
    # The same leadership as before the verification, or none: a guard is good for no other.
    return topics.answer(
        await runtime.submit(lambda shard, now: shard.txn_offset_commit(commit, now), verification=guard)
    )
