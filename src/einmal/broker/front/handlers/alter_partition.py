"""AlterPartition: a leader proposes another ISR.

API: 56. Versions: 2-3.
Access: CLUSTER_ACTION on Cluster, and only nodes of the cluster.
Behaviour: carried out if the leader's epochs are current and every member of the new ISR is eligible (KIP-497,
KIP-841). The answer is the partition's present state. An ISR without the leader, which Apache Kafka refuses, means that
it resigns: the answer is NEW_LEADER_ELECTED.
Version notes: v3 has the broker epoch of each replica (KIP-903), without which a restarted one is not recognized.
"""

from __future__ import annotations

from typing import ClassVar, Final
from uuid import UUID

from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.metadata.partitions import IsrRequest, IsrResult
from einmal.types import BrokerId, ErrorCode, LeaderEpoch
from einmal.wire.api.alter_partition import (
    API,
    AlterPartitionRequest,
    AlterPartitionResponse,
    RequestPartitionData,
    ResponsePartitionData,
    ResponseTopicData,
)

_ANY_EPOCH: Final = -1
_FIRST_WITH_EPOCHS: Final = 3
_NO_ID: Final = UUID(int=0)


@handler
class AlterPartitionHandler:
    api: ClassVar = API
    access: Access
    controller: ControllerRuntime

    async def handle(self, context: RequestContext, request: AlterPartitionRequest) -> AlterPartitionResponse:
        if refused := self.access.refusal_of_client(context, "AlterPartition"):
            return AlterPartitionResponse(error_code=refused)
        has_epochs = context.api_version >= _FIRST_WITH_EPOCHS
        topics = [
            (topic.topic_id or _NO_ID, [_asked(item, has_epochs) for item in topic.partitions])
            for topic in request.topics
        ]
        results = await self.controller.submit(
            lambda shard, now: shard.alter_partition(BrokerId(request.broker_id), request.broker_epoch, topics)
        )
        if isinstance(results, ErrorCode):
            return AlterPartitionResponse(error_code=results)
        return AlterPartitionResponse(
            topics=[
                ResponseTopicData(topic_id, [_response(result) for result in partitions])
                for topic_id, partitions in results
            ]
        )


def _asked(item: RequestPartitionData, has_epochs: bool) -> IsrRequest:
    isr: tuple[tuple[BrokerId, int], ...]
    if has_epochs:
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


def _response(result: IsrResult) -> ResponsePartitionData:
    partition = result.partition
    if partition is None:
        return ResponsePartitionData(
            partition_index=result.partition_id,
            error_code=result.error,
            leader_id=-1,
            leader_epoch=-1,
            partition_epoch=-1,
        )
    return ResponsePartitionData(
        partition_index=result.partition_id,
        error_code=result.error,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=partition.isr,
        leader_recovery_state=partition.leader_recovery_state,
        partition_epoch=partition.partition_epoch,
    )
