"""DescribeProducers: the producers that a partition remembers.

API: 61. Versions: 0.
Access: READ on Topic.
Behaviour: identity, last sequence, last write and the open transaction's first offset, for each (KIP-664). Only of
partitions that this broker leads.
Version notes: none.
"""

from __future__ import annotations

from typing import ClassVar

from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.replicas.partitions import Partitions
from einmal.metadata.topics import is_legal_name
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode, TopicPartition
from einmal.wire.api.describe_producers import (
    API,
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


@handler
class DescribeProducersHandler:
    api: ClassVar = API
    access: Access
    partitions: Partitions

    async def handle(self, context: RequestContext, request: DescribeProducersRequest) -> DescribeProducersResponse:
        # A partition that is asked for twice is answered once: the answer may be long.
        asked: dict[str, dict[int, None]] = {}
        for topic in request.topics:
            asked.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
        topics = []
        async for name, indexes in context.paced(asked.items()):
            refused = self.access.refusal(context, AclOperation.READ, ResourceType.TOPIC, name)
            partitions = [
                PartitionResponse(index, refused) if refused else await self._partition(context, name, index)
                async for index in context.paced(indexes)
            ]
            topics.append(TopicResponse(name, partitions))
        return DescribeProducersResponse(topics=topics)

    async def _partition(self, context: RequestContext, topic: str, index: int) -> PartitionResponse:
        if not is_legal_name(topic):
            return PartitionResponse(index, ErrorCode.invalid_topic_exception)
        topic_partition = TopicPartition(topic, index)
        partition = self.partitions.get(topic_partition)
        if partition is None or not partition.is_leader:
            return PartitionResponse(index, self.partitions.error_of_missing(topic_partition))
        return PartitionResponse(
            index,
            active_producers=[
                ProducerState(
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    last_sequence=producer.last_sequence,
                    last_timestamp=producer.last_timestamp,
                    coordinator_epoch=producer.coordinator_epoch,
                    current_txn_start_offset=producer.current_txn_start_offset,
                )
                async for producer in context.paced(partition.producers.describe())
            ],
        )
