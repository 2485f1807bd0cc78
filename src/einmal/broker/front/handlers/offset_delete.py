"""OffsetDelete: forget single positions of a group (KIP-496).

API: 47. Versions: 0.
Access: DELETE on Group, READ on Topic.
Behaviour: asks the group's shard about the partitions that exist. It keeps what a member subscribes to
(GROUP_SUBSCRIBED_TO_TOPIC) or an open transaction may move (UNSTABLE_OFFSET_COMMIT; Kafka drops the transaction's).
"""

from __future__ import annotations

from typing import ClassVar

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.coordinators.group_service import GroupService
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.front.topics.committed_topics import CommittedTopics, by_partition
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode
from einmal.wire.api.offset_delete import (
    API,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


@handler
class OffsetDeleteHandler:
    api: ClassVar = API
    access: Access
    groups: GroupService
    metadata: ClusterMetadata

    async def handle(self, context: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
        if refused := self.access.refusal(context, AclOperation.DELETE, ResourceType.GROUP, request.group_id):
            return OffsetDeleteResponse(error_code=refused)
        named = [(topic.name, topic.partitions) for topic in request.topics]
        topics: CommittedTopics[OffsetDeleteRequestPartition] = CommittedTopics(context, self.access, named)
        await topics.resolve(self.metadata.image)
        response = await self.groups.ask(
            request.group_id, lambda shard, now: shard.offset_delete(request.group_id, tuple(topics.known))
        )
        if isinstance(response, ErrorCode):
            return OffsetDeleteResponse(error_code=response)
        if response.error_code is not ErrorCode.none:
            return response
        responses = await topics.responses(by_partition(response.topics), OffsetDeleteResponsePartition)
        return OffsetDeleteResponse(
            topics=[
                OffsetDeleteResponseTopic(topic.name, partitions)
                for topic, partitions in zip(request.topics, responses, strict=True)
            ]
        )
