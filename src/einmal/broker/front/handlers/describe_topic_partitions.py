"""DescribeTopicPartitions: leaders and replicas, page by page.

API: 75. Versions: 0.
Access: DESCRIBE on Topic; without it a topic is left out where all are asked for.
Behaviour: topics in the order of their names from the cursor on, at most 2,000 partitions in one answer (KIP-966).
INVALID_REQUEST for each where the cursor's topic is not among them, or its partition is negative.
Version notes: none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Final

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.front.handlers.metadata import AliveBrokers, alive_on, offline_replicas
from einmal.metadata.image import PartitionImage, TopicImage
from einmal.metadata.records import NO_LEADER
from einmal.metadata.topics import error_of_absent
from einmal.security.acl import ResourceType
from einmal.types import ErrorCode
from einmal.wire.api.describe_topic_partitions import (
    API,
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from einmal.wire.metadata import NO_AUTHORIZED_OPERATIONS

_PARTITIONS_MAX: Final = 2_000


@handler
class DescribeTopicPartitionsHandler:
    api: ClassVar = API
    access: Access
    metadata: ClusterMetadata

    async def handle(
        self, context: RequestContext, request: DescribeTopicPartitionsRequest
    ) -> DescribeTopicPartitionsResponse:
        image = self.metadata.image
        alive = alive_on(image, context.listener.name)
        room = max(1, min(request.response_partition_limit, _PARTITIONS_MAX))
        named = dict.fromkeys(topic.name for topic in request.topics)
        if request.cursor is not None and not _is_valid(request.cursor, named):
            return await _refused(context, named)
        names = sorted(named) or sorted(image.topics)
        first_partition = 0
        if request.cursor is not None:
            start = request.cursor
            names = [name for name in names if name >= start.topic_name]
            if names and names[0] == start.topic_name:
                first_partition = start.partition_index
        topics: list[DescribeTopicPartitionsResponseTopic] = []
        async for name in context.paced(names):
            is_visible = self.access.describes_topic(context, name, is_asked=bool(request.topics))
            if not is_visible and not request.topics:
                first_partition = 0
                continue
            topic = image.topics.get(name) if is_visible else None
            if room <= 0:
                return DescribeTopicPartitionsResponse(topics=topics, next_cursor=Cursor(name, 0))
            operations = NO_AUTHORIZED_OPERATIONS
            if is_visible:
                operations = self.access.authorized_operations(context, ResourceType.TOPIC, name)
            if topic is None:
                topics.append(
                    DescribeTopicPartitionsResponseTopic(
                        name=name,
                        error_code=error_of_absent(name) if is_visible else ErrorCode.topic_authorization_failed,
                        topic_authorized_operations=operations,
                    )
                )
                first_partition = 0
                continue
            # A cursor may be of a topic that had more partitions before it was made again.
            first_partition = min(first_partition, len(topic.partitions))
            after = min(len(topic.partitions), first_partition + room)
            room -= after - first_partition
            topics.append(_topic(topic, range(first_partition, after), alive, operations))
            if after < len(topic.partitions):
                return DescribeTopicPartitionsResponse(topics=topics, next_cursor=Cursor(name, after))
            first_partition = 0
        return DescribeTopicPartitionsResponse(topics=topics, next_cursor=None)


def _is_valid(cursor: Cursor, named: Mapping[str, None]) -> bool:
    """Whether an answer can begin there. ``named``: the topics asked for; none: all."""
    return cursor.partition_index >= 0 and (not named or cursor.topic_name in named)


async def _refused(context: RequestContext, named: Iterable[str]) -> DescribeTopicPartitionsResponse:
    """An answer has no error of its own: each topic has it, as in Apache Kafka."""
    topics = [
        DescribeTopicPartitionsResponseTopic(name=name, error_code=ErrorCode.invalid_request)
        async for name in context.paced(named)
    ]
    return DescribeTopicPartitionsResponse(topics=topics, next_cursor=None)


def _topic(
    topic: TopicImage, indexes: range, alive: AliveBrokers, operations: int
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[_partition(index, topic.partitions[index], alive) for index in indexes],
        topic_authorized_operations=operations,
    )


def _partition(index: int, partition: PartitionImage, alive: AliveBrokers) -> DescribeTopicPartitionsResponsePartition:
    is_led = partition.leader in alive.reachable
    return DescribeTopicPartitionsResponsePartition(
        error_code=alive.error_of(partition.leader),
        partition_index=index,
        leader_id=partition.leader if is_led else NO_LEADER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        eligible_leader_replicas=partition.elr,
        last_known_elr=partition.last_known_elr,
        offline_replicas=offline_replicas(partition, alive.reachable),
    )
