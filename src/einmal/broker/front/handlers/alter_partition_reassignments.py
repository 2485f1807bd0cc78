"""AlterPartitionReassignments: move partitions to other brokers, or take that back.

API: 45. Versions: 0-1.
Access: ALTER on Cluster.
Behaviour: answered when the reassignment is recorded, not when it is done (KIP-455). No replicas: take it back.
Version notes: v1 the replication factor may be held fast.
"""

from __future__ import annotations

from typing import ClassVar

from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.metadata.reassignment import Reassignment, ReassignmentResult
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import BrokerId, ErrorCode, TopicPartition
from einmal.wire.api.alter_partition_reassignments import (
    API,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


@handler
class AlterPartitionReassignmentsHandler:
    api: ClassVar = API
    access: Access
    controller: ControllerRuntime

    async def handle(
        self, context: RequestContext, request: AlterPartitionReassignmentsRequest
    ) -> AlterPartitionReassignmentsResponse:
        if refused := self.access.refusal(context, AclOperation.ALTER, ResourceType.CLUSTER):
            return await _refused(context, request, refused)
        may_change_factor = request.allow_replication_factor_change
        error = ErrorCode.none
        topics: dict[str, list[ReassignablePartitionResponse]] = {}
        asked = (
            Reassignment(
                TopicPartition(topic.name, item.partition_index),
                None if item.replicas is None else tuple(map(BrokerId, item.replicas)),
            )
            for topic in request.topics
            for item in topic.partitions
        )
        async for chunk in context.paced_chunks(asked):
            results = await self._reassign(chunk, may_change_factor=may_change_factor)
            if isinstance(results, ErrorCode):
                if not topics:
                    error = results
                    break
                # Some are under way already: the error is of those that are not.
                results = [ReassignmentResult(item.topic_partition, results) for item in chunk]
            for result in results:
                topics.setdefault(result.topic_partition.topic, []).append(
                    ReassignablePartitionResponse(result.topic_partition.partition, result.error, result.message)
                )
        return AlterPartitionReassignmentsResponse(
            error_code=error,
            responses=[ReassignableTopicResponse(topic, partitions) for topic, partitions in topics.items()],
            allow_replication_factor_change=may_change_factor,
        )

    async def _reassign(
        self, asked: list[Reassignment], *, may_change_factor: bool
    ) -> list[ReassignmentResult] | ErrorCode:
        return await self.controller.submit(
            lambda shard, now: shard.reassign_partitions(asked, allow_replication_factor_change=may_change_factor)
        )


async def _refused(
    context: RequestContext, request: AlterPartitionReassignmentsRequest, error: ErrorCode
) -> AlterPartitionReassignmentsResponse:
    """The error for the whole request and, as in Apache Kafka, for each partition."""
    topics = []
    async for topic in context.paced(request.topics):
        partitions = [
            ReassignablePartitionResponse(item.partition_index, error) async for item in context.paced(topic.partitions)
        ]
        topics.append(ReassignableTopicResponse(topic.name, partitions))
    return AlterPartitionReassignmentsResponse(error_code=error, responses=topics)
