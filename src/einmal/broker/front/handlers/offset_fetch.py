"""OffsetFetch: the positions that groups have committed.

API: 9. Versions: 1-10.
Access: DESCRIBE on Group, DESCRIBE on Topic.
Behaviour: asks each group's shard. A partition without a position has offset -1, also one that does not exist. Stable
positions are never stale, even if a newer coordinator exists that this one does not know yet.
Version notes: v2 all topics (null), and an error of the request; v7 RequireStable (KIP-447); v8 many groups at once; v9
member epochs (KIP-848), which no group here has; v10 topic ids, unknown ones being UNKNOWN_TOPIC_ID.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple
from uuid import UUID

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.coordinators.group_service import GroupService
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.groups.coordinator import GroupCoordinator
from einmal.groups.requests import GroupDecision, OffsetFetchGroup
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode, Instant, TopicPartition
from einmal.wire.api.offset_fetch import (
    API,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

_FIRST_WITH_ERROR: Final = 2
_FIRST_WITH_MANY_GROUPS: Final = 8
_FIRST_WITH_TOPIC_IDS: Final = 10


class _Topic(NamedTuple):
    """``name`` None: the topic of an unknown id."""

    name: str | None
    topic_id: UUID | None
    partition_indexes: Sequence[int]


@handler
class OffsetFetchHandler:
    api: ClassVar = API
    access: Access
    groups: GroupService
    metadata: ClusterMetadata

    async def handle(self, context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
        if context.api_version >= _FIRST_WITH_MANY_GROUPS:
            by_id = context.api_version >= _FIRST_WITH_TOPIC_IDS
            # All positions of a group are returned once, however often it is named.
            whole = {group.group_id: group for group in request.groups if group.topics is None}
            groups = [*whole.values(), *(group for group in request.groups if group.topics is not None)]
            return OffsetFetchResponse(
                groups=[
                    await self._group(context, group, request, by_id=by_id) async for group in context.paced(groups)
                ]
            )
        topics = None
        if request.topics is not None:
            topics = [_Topic(topic.name, None, topic.partition_indexes) for topic in request.topics]
        fetched = await self._fetch(context, request.group_id, topics, request.require_stable)
        error = fetched.error_code
        if context.api_version < _FIRST_WITH_ERROR and error is not ErrorCode.none:
            return OffsetFetchResponse(topics=[_failed(topic, error) async for topic in context.paced(topics or ())])
        return OffsetFetchResponse(
            error_code=error, topics=[_of_one_group(topic) async for topic in context.paced(fetched.topics)]
        )

    async def _group(
        self, context: RequestContext, asked: OffsetFetchRequestGroup, request: OffsetFetchRequest, *, by_id: bool
    ) -> OffsetFetchResponseGroup:
        """One group of a request for many."""
        image = self.metadata.image
        topics = None
        if asked.topics is not None:
            topics = [
                _Topic(image.name_of(topic.topic_id) if by_id else topic.name, topic.topic_id, topic.partition_indexes)
                async for topic in context.paced(asked.topics)
            ]
        group = await self._fetch(context, asked.group_id, topics, request.require_stable)
        return self._with_ids(group) if by_id else group

    async def _fetch(
        self, context: RequestContext, group_id: str, topics: Sequence[_Topic] | None, require_stable: bool
    ) -> OffsetFetchResponseGroup:
        """``topics`` None: all that the group has and the sender may see."""
        if refused := self.access.refusal(context, AclOperation.DESCRIBE, ResourceType.GROUP, group_id):
            return OffsetFetchResponseGroup(group_id=group_id, error_code=refused)
        partitions = None
        unanswered: list[OffsetFetchResponseTopics] = []
        if topics is not None:
            partitions = []
            async for topic in context.paced(topics):
                if topic.name is None:
                    errors = _errors(topic, ErrorCode.unknown_topic_id)
                    unanswered.append(OffsetFetchResponseTopics(topic_id=topic.topic_id, partitions=errors))
                elif not self.access.describes_topic(context, topic.name, is_asked=True):
                    errors = _errors(topic, ErrorCode.topic_authorization_failed)
                    unanswered.append(OffsetFetchResponseTopics(topic.topic_id, errors, topic.name))
                else:
                    partitions += [
                        TopicPartition(topic.name, index) async for index in context.paced(topic.partition_indexes)
                    ]
        group = OffsetFetchGroup(group_id, None if partitions is None else tuple(partitions))

        def decide(shard: GroupCoordinator, _now: Instant) -> GroupDecision[OffsetFetchResponseGroup]:
            return shard.offset_fetch(group, require_stable=require_stable)

        if require_stable:
            response = await self.groups.ask_for_certain(group_id, decide)
        else:
            response = await self.groups.ask(group_id, decide, reads_only=True)
        if isinstance(response, ErrorCode):
            return OffsetFetchResponseGroup(group_id=group_id, error_code=response)
        answered = response.topics
        if topics is None:
            answered = [
                topic
                async for topic in context.paced(answered)
                if self.access.describes_topic(context, topic.name, is_asked=False)
            ]
        return response._replace(topics=[*answered, *unanswered])

    def _with_ids(self, group: OffsetFetchResponseGroup) -> OffsetFetchResponseGroup:
        """The topics by id; deleted topics that a group still knows have none, and are left out."""
        known = self.metadata.image.topics
        topics = []
        for topic in group.topics:
            if topic.name in known:
                topics.append(topic._replace(topic_id=known[topic.name].topic_id))
            elif not topic.name:
                topics.append(topic)
        return group._replace(topics=topics)


def _of_one_group(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        topic.name, [OffsetFetchResponsePartition(*partition) for partition in topic.partitions]
    )


def _failed(topic: _Topic, error: ErrorCode) -> OffsetFetchResponseTopic:
    return _of_one_group(OffsetFetchResponseTopics(name=topic.name or "", partitions=_errors(topic, error)))


def _errors(topic: _Topic, error: ErrorCode) -> list[OffsetFetchResponsePartitions]:
    return [
        OffsetFetchResponsePartitions(
            index, committed_offset=-1, committed_leader_epoch=-1, metadata="", error_code=error
        )
        for index in topic.partition_indexes
    ]
