"""CreatePartitions: give topics more partitions.

API: 37. Versions: 0-3.
Access: ALTER on Topic.
Behaviour: the partitions that exist stay as they are; records of one key may go elsewhere from then on.
Version notes: v3 refuses partitions beyond a quota.
"""

from __future__ import annotations

from typing import ClassVar, Final

from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.authorization.permitted_items import permitted_items
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.front.quotas.client_throttles import ClientThrottles
from einmal.broker.front.topics.made_partitions import MadePartitions
from einmal.broker.front.topics.mutation_quota import MutationQuota
from einmal.broker.replicas.partitions import Partitions
from einmal.metadata.topics import NewPartitions, TopicResult
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode
from einmal.wire.api.create_partitions import (
    API,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)

_FIRST_STRICT: Final = 3
"""From this version on partitions beyond a quota are refused with THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


@handler
class CreatePartitionsHandler:
    api: ClassVar = API
    access: Access
    controller: ControllerRuntime
    partitions: Partitions
    throttles: ClientThrottles

    async def handle(self, context: RequestContext, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
        asked = await permitted_items(
            context,
            request.topics,
            lambda topic: self.access.refusal(context, AclOperation.ALTER, ResourceType.TOPIC, topic.name),
        )
        topics = [
            NewPartitions(
                name=topic.name,
                count=topic.count,
                assignments=(
                    None if topic.assignments is None else tuple(item.broker_ids for item in topic.assignments)
                ),
            )
            async for topic in context.paced(asked.permitted)
        ]
        quota = MutationQuota(self.throttles, context, _FIRST_STRICT)
        made = MadePartitions(self.partitions)
        results = await self.controller.submit(
            lambda shard, _: shard.create_partitions(topics, validate_only=request.validate_only, admits=quota.admits)
        )
        if isinstance(results, ErrorCode):
            results = [TopicResult(name=topic.name, error=results) for topic in topics]
        results = asked.merge(results, lambda topic, refused: TopicResult(name=topic.name, error=refused))
        return CreatePartitionsResponse(
            quota.throttle_ms,
            [
                CreatePartitionsTopicResult(result.name or "", result.error, result.message)
                async for result in context.paced(made.results(results))
            ],
        )
