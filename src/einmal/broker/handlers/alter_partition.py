"""AlterPartition: a leader asks for other in-sync replicas.

API: 56. Versions: 2-3.
Behaviour: carried out where the leader's epochs are the current ones and everybody in the new ISR may be there
(KIP-497, KIP-841). The answer is what the partition is now.
Version notes: v3 names the broker epoch of each replica (KIP-903); before, a restarted one cannot be told apart.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.metadata.partitions import IsrRequest, IsrResult
from einmal.types import BrokerId, ErrorCode, LeaderEpoch

API_KEY: Final = 56
VERSIONS: Final = Versions(2, 3, flexible=0)
_ANY_EPOCH: Final = -1


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    topics = [(topic.topic_id, [_asked(item) for item in topic.partitions]) for topic in request.topics]
    results = await context.node.controller.submit(
        lambda shard, now: shard.alter_partition(BrokerId(request.broker_id), request.broker_epoch, topics)
    )
    if isinstance(results, ErrorCode):
        return {"error_code": results, "topics": []}
    return {
        "error_code": ErrorCode.none,
        "topics": [
            {"topic_id": topic_id, "partitions": [_fields(result) for result in partitions]}
            for topic_id, partitions in results
        ],
    }


def _asked(item: Any) -> IsrRequest:
    isr: tuple[tuple[BrokerId, int], ...]
    if hasattr(item, "new_isr_with_epochs"):
        isr = tuple((BrokerId(member.broker_id), member.broker_epoch) for member in item.new_isr_with_epochs)
    else:
        isr = tuple((BrokerId(broker_id), _ANY_EPOCH) for broker_id in item.new_isr)
    return IsrRequest(
        partition_id=item.partition_index,
        leader_epoch=LeaderEpoch(item.leader_epoch),
        partition_epoch=item.partition_epoch,
        isr=isr,
        leader_recovery_state=item.leader_recovery_state,
    )


def _fields(result: IsrResult) -> dict[str, Any]:
    partition = result.partition
    if partition is None:
        return {
            "partition_index": result.partition_id,
            "error_code": result.error,
            "leader_id": -1,
            "leader_epoch": -1,
            "partition_epoch": -1,
        }
    return {
        "partition_index": result.partition_id,
        "error_code": result.error,
        "leader_id": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "isr": partition.isr,
        "leader_recovery_state": partition.leader_recovery_state,
        "partition_epoch": partition.partition_epoch,
    }
