"""The cluster's metadata at run time: the controller's shard on its log, and what a change of it does to this broker.

Every change goes: decide, append to ``__cluster_metadata-0``, flush, replay, then the folders and logs of replicas.
Whoever asked is answered after all of it. Changes are made one after the other.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from einmal.broker.partitions import Partition
from einmal.log.producer_state import Origin
from einmal.metadata import records
from einmal.metadata.controller import (
    ConfigChange,
    ConfigsChanged,
    Controller,
    ControllerDefaults,
    NewPartitions,
    NewTopic,
    TopicResult,
    TopicsCreated,
    TopicsDeleted,
)
from einmal.metadata.image import CLUSTER_METADATA, CONSUMER_OFFSETS, TRANSACTION_STATE, ClusterImage
from einmal.metadata.records import BrokerEndpoint
from einmal.shard.decision import Decision
from einmal.types import BrokerId, ErrorCode, Instant, TopicPartition
from einmal.wire.record_batch import NewRecord, decode_records, encode_batch, iter_headers

if TYPE_CHECKING:
    from einmal.broker.node import Node

R = TypeVar("R")
METADATA_PARTITION: Final = TopicPartition(CLUSTER_METADATA, 0)
METADATA_TOPIC_ID: Final = UUID(int=1)
"""Kafka's fixed id of the metadata topic."""
_READ_BYTES: Final = 1024 * 1024
_ENCODED_MAX: Final = 256
"""Encoded Metadata answers kept: enough for the topics that the clients of a broker ask for together."""


class ClusterMetadata:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._controller = Controller(
            ControllerDefaults(
                partitions=node.config.num_partitions, replication_factor=node.config.default_replication_factor
            )
        )
        self._partition: Partition | None = None
        self._order = asyncio.Lock()
        self._encoded: dict[Any, bytes] = {}
        self._encoded_version = -1
        self.cluster_id = ""
        self.broker_epoch = -1

    @property
    def image(self) -> ClusterImage:
        return self._controller.image

    def encoded_answers(self) -> dict[Any, bytes]:
        """Encoded Metadata answers of the image as it is now, by what was asked."""
        if self._encoded_version != self.image.version or len(self._encoded) >= _ENCODED_MAX:
            self._encoded = {}
            self._encoded_version = self.image.version
        return self._encoded

    # --- start ---------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Replay the metadata log. Raises OSError."""
        self._partition = self._node.partitions.open_metadata(METADATA_PARTITION, METADATA_TOPIC_ID)
        await self._partition.flushed()
        log = self._partition.log
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            batches = log.read(offset, _READ_BYTES, below=log.log_end_offset)
            for position, header in iter_headers(batches):
                for record in decode_records(batches, position, header):
                    decoded = records.decode(record.key, record.value)
                    if decoded is not None:
                        self._controller.replay(decoded)
                offset = header.next_offset

    async def register(self, end_points: tuple[BrokerEndpoint, ...]) -> None:
        """Tell the cluster that this broker is here."""
        assert self._partition is not None
        config = self._node.config
        self.broker_epoch = self._partition.log.log_end_offset
        await self.submit(
            lambda now: self._controller.register_broker(
                BrokerId(config.node_id),
                self._node.new_uuid(),
                self.broker_epoch,
                end_points,
                config.broker_rack or None,
                {"transaction.version": config.transaction_version},
            )
        )

    def open_replicas(self) -> None:
        """Open what the image says this broker has, and remove what it does not know. Raises OSError."""
        for topic in list(self.image.topics.values()):
            self._node.partitions.open(topic, self.image.topic_configs(topic.name))
        self._node.partitions.remove_strays(self.image.topics)

    # --- changes -------------------------------------------------------------------------------------------------

    async def submit(self, decide: Callable[[Instant], Decision[R]]) -> R | ErrorCode:
        """Make one change. An ErrorCode: it could not be written."""
        partition = self._partition
        assert partition is not None, "the metadata log has not been loaded"
        async with self._order:
            now = self._node.clock.now()
            decision = decide(now)
            if decision.records:
                batch = encode_batch(
                    [NewRecord(*records.encode(record), timestamp=now.wall_ms) for record in decision.records]
                )
                result = partition.append(bytearray(batch), now, Origin.COORDINATOR)
                error = result.error
                if error is ErrorCode.none:
                    error = await partition.committed(result.last_offset)
                if error is not ErrorCode.none:
                    return error
                for record in decision.records:
                    self._controller.replay(record)
            for action in decision.actions:
                self._perform(action)
            return decision.response

    def _perform(self, action: Any) -> None:
        partitions, image = self._node.partitions, self.image
        match action:
            case TopicsCreated(names):
                for name in names:
                    partitions.open(image.topics[name], image.topic_configs(name))
            case TopicsDeleted(topics):
                for name, topic_id in topics:
                    partitions.delete(name, topic_id)
            case ConfigsChanged(names):
                for name in names:
                    partitions.reconfigure(image.topics[name], image.topic_configs(name))
            case _:
                raise AssertionError(f"unknown action {action!r}")

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicResult] | ErrorCode:
        return await self.submit(lambda now: self._controller.create_topics(topics, validate_only=validate_only))

    async def delete_topics(self, topics: Sequence[tuple[str | None, UUID]]) -> list[TopicResult] | ErrorCode:
        return await self.submit(lambda now: self._controller.delete_topics(topics))

    async def create_partitions(
        self, topics: Sequence[NewPartitions], *, validate_only: bool = False
    ) -> list[TopicResult] | ErrorCode:
        return await self.submit(lambda now: self._controller.create_partitions(topics, validate_only=validate_only))

    async def alter_topic_configs(
        self, changes: Sequence[tuple[str, Sequence[ConfigChange]]], *, validate_only: bool = False
    ) -> list[TopicResult] | ErrorCode:
        return await self.submit(lambda now: self._controller.alter_topic_configs(changes, validate_only=validate_only))

    async def replace_topic_configs(
        self, settings: Sequence[tuple[str, Mapping[str, str | None]]], *, validate_only: bool = False
    ) -> list[TopicResult] | ErrorCode:
        return await self.submit(
            lambda now: self._controller.replace_topic_configs(settings, validate_only=validate_only)
        )

    async def ensure_topic(self, name: str) -> ErrorCode:
        """Create the topic with the cluster's defaults, or as the internal topic that it is, unless it is there."""
        if name in self.image.topics:
            return ErrorCode.none
        results = await self.create_topics([self._new_topic(name)])
        if isinstance(results, ErrorCode):
            return results
        error = results[0].error
        return ErrorCode.none if error is ErrorCode.topic_already_exists else error

    async def ensure_internal_topic(self, name: str) -> ErrorCode:
        return await self.ensure_topic(name)

    def _new_topic(self, name: str) -> NewTopic:
        config = self._node.config
        topic_id = self._node.new_uuid()
        if name == CONSUMER_OFFSETS:
            return NewTopic(
                name=name,
                topic_id=topic_id,
                partitions=config.offsets_topic_num_partitions,
                replication_factor=config.offsets_topic_replication_factor,
                configs={
                    "cleanup.policy": "compact",
                    "compression.type": "producer",
                    "segment.bytes": str(config.offsets_topic_segment_bytes),
                },
            )
        if name == TRANSACTION_STATE:
            return NewTopic(
                name=name,
                topic_id=topic_id,
                partitions=config.transaction_state_log_num_partitions,
                replication_factor=config.transaction_state_log_replication_factor,
                configs={
                    "cleanup.policy": "compact",
                    "compression.type": "uncompressed",
                    "min.insync.replicas": str(config.transaction_state_log_min_isr),
                    "segment.bytes": str(config.transaction_state_log_segment_bytes),
                    "unclean.leader.election.enable": "false",
                },
            )
        return NewTopic(name=name, topic_id=topic_id)

    async def allocate_producer_ids(self) -> range | ErrorCode:
        """A block of producer ids that nobody else gets, also after a crash."""
        return await self.submit(
            lambda now: self._controller.allocate_producer_ids(BrokerId(self._node.config.node_id), self.broker_epoch)
        )


def new_cluster_id(random_uuid: UUID) -> str:
    """As Kafka writes ids: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(random_uuid.bytes).decode().rstrip("=")
