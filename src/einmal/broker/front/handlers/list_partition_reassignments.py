"""ListPartitionReassignments: which partitions are being moved to other brokers.

API: 46. Versions: 0.
Access: DESCRIBE on Cluster.
Behaviour: what is committed, as the active controller sees it (KIP-455).
"""

from __future__ import annotations

from typing import ClassVar

from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.security.acl import AclOperation, ResourceType
from einmal.shard.decision import Decision
from einmal.types import ErrorCode, TopicPartition
from einmal.wire.api.list_partition_reassignments import (
    API,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


@handler
class ListPartitionReassignmentsHandler:
    api: ClassVar = API
    access: Access
    controller: ControllerRuntime

    async def handle(
        self, context: RequestContext, request: ListPartitionReassignmentsRequest
    ) -> ListPartitionReassignmentsResponse:
        if refused := self.access.refusal(context, AclOperation.DESCRIBE, ResourceType.CLUSTER):
            return ListPartitionReassignmentsResponse(error_code=refused)
        ongoing = await self.controller.submit(lambda shard, now: Decision(response=shard.reassignments()))
        if isinstance(ongoing, ErrorCode):
            return ListPartitionReassignmentsResponse(error_code=ongoing, error_message=None)
        asked = None
        if request.topics is not None:
            asked = {
                TopicPartition(topic.name, partition): None
                async for topic in context.paced(request.topics)
                async for partition in context.paced(topic.partition_indexes)
            }
        topics: dict[str, list[OngoingPartitionReassignment]] = {}
        for topic, partition_id, partition in ongoing:
            if asked is None or TopicPartition(topic.name, partition_id) in asked:
                topics.setdefault(topic.name, []).append(
                    OngoingPartitionReassignment(partition_id, partition.replicas, partition.adding, partition.removing)
                )
        return ListPartitionReassignmentsResponse(
            error_message=None,
            topics=[OngoingTopicReassignment(name, partitions) for name, partitions in topics.items()],
        )
