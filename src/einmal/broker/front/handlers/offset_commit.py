"""OffsetCommit: a group's positions, outside transactions.

API: 8. Versions: 2-10.
Access: READ on Group, READ on Topic.
Behaviour: asks the group's shard about the partitions that exist; others are answered UNKNOWN_TOPIC_OR_PARTITION.
Version notes: v2-4 a retention of the request's own; v6 leader epochs (KIP-320); v7 static members (KIP-345); v9 the
generation may be a member epoch (KIP-848), which no group here has, and an unknown group is GROUP_ID_NOT_FOUND; v10
topic ids.
"""

from __future__ import annotations

from typing import ClassVar, Final
from uuid import UUID

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.coordinators.group_service import GroupService
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.front.topics.committed_topics import CommittedTopics, by_partition, to_commit
from einmal.groups.requests import OffsetCommit
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode
from einmal.wire.api.offset_commit import (
    API,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

_FIRST_WITH_NOT_FOUND: Final = 9
_FIRST_WITH_TOPIC_IDS: Final = 10
_NO_TOPIC_ID: Final = UUID(int=0)


@handler
class OffsetCommitHandler:
    api: ClassVar = API
    access: Access
    groups: GroupService
    metadata: ClusterMetadata

    async def handle(self, context: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse:
        topics = self._topics(context, request)
        if refused := self.access.refusal(context, AclOperation.READ, ResourceType.GROUP, request.group_id):
            return _in_shape(request, await topics.all_refused(refused, OffsetCommitResponsePartition))
        await topics.resolve(self.metadata.image)
        topics.forget_deleted(self.metadata.image)
        if not topics.known:
            return await _response(request, topics, ErrorCode.none)
        commit = OffsetCommit(
            group_id=request.group_id,
            generation_id=request.generation_id_or_member_epoch,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            offsets=to_commit(topics.known),
            # Negative: the broker's.
            retention_ms=None if request.retention_time < 0 else request.retention_time,
            unknown_group=_unknown_group(context.api_version),
        )
        response = await self.groups.ask(commit.group_id, lambda shard, now: shard.offset_commit(commit, now))
        return await _response(request, topics, response)

    def _topics(
        self, context: RequestContext, request: OffsetCommitRequest
    ) -> CommittedTopics[OffsetCommitRequestPartition]:
        if context.api_version < _FIRST_WITH_TOPIC_IDS:
            return CommittedTopics(context, self.access, [(topic.name, topic.partitions) for topic in request.topics])
        by_id = [(topic.topic_id or _NO_TOPIC_ID, topic.partitions) for topic in request.topics]
        return CommittedTopics(context, self.access, by_id)


async def _response(
    request: OffsetCommitRequest,
    topics: CommittedTopics[OffsetCommitRequestPartition],
    answer: OffsetCommitResponse | ErrorCode,
) -> OffsetCommitResponse:
    errors = answer if isinstance(answer, ErrorCode) else by_partition(answer.topics)
    return _in_shape(request, await topics.responses(errors, OffsetCommitResponsePartition))


def _in_shape(
    request: OffsetCommitRequest, responses: list[list[OffsetCommitResponsePartition]]
) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
            for topic, partitions in zip(request.topics, responses, strict=True)
        ]
    )


def _unknown_group(version: int) -> ErrorCode:
    return ErrorCode.group_id_not_found if version >= _FIRST_WITH_NOT_FOUND else ErrorCode.illegal_generation
