"""The admin client's calls for what the leaders of partitions remember of producers (KIP-664)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from einmal.client.aio.network.cluster import Cluster, by_topic
from einmal.client.aio.network.leaders import LeaderRequest, ask_each_leader, ask_leaders
from einmal.client.descriptions import ProducerDescription
from einmal.client.errors import KafkaError
from einmal.types import TopicPartition
from einmal.wire.api.describe_producers import API as DESCRIBE_PRODUCERS
from einmal.wire.api.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    TopicRequest,
)


def _producers_request(partitions: Sequence[TopicPartition]) -> DescribeProducersRequest:
    topics = by_topic(partitions)
    return DescribeProducersRequest(tuple(TopicRequest(name, tuple(indexes)) for name, indexes in topics.items()))


def _producers_results(response: DescribeProducersResponse) -> list[tuple[TopicPartition, PartitionResponse]]:
    return [
        (TopicPartition(topic.name, partition.partition_index), partition)
        for topic in response.topics
        for partition in topic.partitions
    ]


_PRODUCERS: Final = LeaderRequest(DESCRIBE_PRODUCERS, _producers_request, _producers_results)


def _producers(partitions: Mapping[TopicPartition, PartitionResponse]) -> list[ProducerDescription]:
    return [
        ProducerDescription(
            topic_partition,
            producer.producer_id,
            producer.producer_epoch,
            producer.last_sequence,
            producer.last_timestamp,
            producer.coordinator_epoch,
            producer.current_txn_start_offset,
        )
        for topic_partition, partition in partitions.items()
        for producer in partition.active_producers
    ]


class ProducerCalls:
    """Calls of ``Admin`` about producers."""

    _cluster: Cluster

    async def describe_producers(self, partitions: Iterable[TopicPartition]) -> list[ProducerDescription]:
        """Every producer that the leaders of these partitions remember: shows which ones hold the last stable offset
        back."""
        return _producers(
            (await ask_leaders(self._cluster, _PRODUCERS, partitions, deadline=self._cluster.deadline())).all_or_raise()
        )

    async def describe_producers_each(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[list[ProducerDescription], dict[TopicPartition, KafkaError]]:
        """As ``describe_producers``, and the errors of partitions that have no leader, do not exist or are refused."""
        deadline = self._cluster.deadline()
        answers = await ask_each_leader(self._cluster, _PRODUCERS, partitions, deadline=deadline)
        return _producers(answers.results), answers.errors
