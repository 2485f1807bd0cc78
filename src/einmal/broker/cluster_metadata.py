"""The cluster's metadata at run time: the controller's shard on its log, and what a change of it does to this broker.

Every change goes: decide, append to ``__cluster_metadata-0``, flush, publish, then the folders and logs of replicas;
then whoever asked is answered. What others are told of the cluster is the published image: committed records only.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from einmal.broker.config import ConfigError
from einmal.broker.shard_runtime import ShardRuntime
from einmal.log.errors import LogCorruption
from einmal.metadata import records
from einmal.metadata.brokers import Heartbeat, Registration
from einmal.metadata.configs import ConfigChange
from einmal.metadata.controller import CallOnBrokers, Controller
from einmal.metadata.features import FIRST_LEVELS, SUPPORTED_FEATURES, TRANSACTION_VERSION
from einmal.metadata.image import CLUSTER_METADATA, CONSUMER_OFFSETS, TRANSACTION_STATE, ClusterImage
from einmal.metadata.plan import BrokerFenced, BrokerUnfenced, ControllerDefaults, LedAtRisk
from einmal.metadata.records import BrokerEndpoint
from einmal.metadata.topics import NewPartitions, NewTopic, TopicResult
from einmal.shard.decision import Decision
from einmal.types import BrokerId, ErrorCode, Instant, TopicPartition

if TYPE_CHECKING:
    from einmal.broker.node import Node

R = TypeVar("R")
METADATA_PARTITION: Final = TopicPartition(CLUSTER_METADATA, 0)
METADATA_TOPIC_ID: Final = UUID(int=1)
"""Kafka's fixed id of the metadata topic."""
_ENCODED_MAX: Final = 256
"""Encoded Metadata answers kept: enough for the topics that the clients of a broker ask for together."""


@dataclass(frozen=True, slots=True)
class _Committed:
    """Action: these records are committed; whoever asks may be told."""

    records: tuple[Any, ...]


class ClusterMetadata:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._runtime: ShardRuntime[Controller] | None = None
        self._controller = Controller()
        self._encoded: dict[Any, bytes] = {}
        self._encoded_version = -1
        self.image = ClusterImage()
        """What is committed. The controller's own image may be ahead of it."""
        self.cluster_id = ""
        self.broker_epoch = -1

    def encoded_answers(self) -> dict[Any, bytes]:
        """Encoded Metadata answers of the image as it is now, by what was asked."""
        if self._encoded_version != self.image.version or len(self._encoded) >= _ENCODED_MAX:
            self._encoded = {}
            self._encoded_version = self.image.version
        return self._encoded

    # --- start ---------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Replay the metadata log. Raises OSError, LogCorruption or ConfigError."""
        partition = self._node.partitions.open_metadata(METADATA_PARTITION, METADATA_TOPIC_ID)
        await partition.flushed()
        if partition.log.log_end_offset == 0 and self._node.partitions.folders():
            # They would be taken for what is left of deleted topics.
            raise ConfigError(
                f"{self._node.directory} holds partitions, but {METADATA_PARTITION} has lost what they are"
            )
        self._runtime = ShardRuntime(
            partition, self._new_controller, records, clock=self._node.clock, perform=self._perform
        )
        await self._runtime.load()
        self.image = self._controller.image.copy()
        if not self._runtime.is_loaded:
            raise LogCorruption(f"{METADATA_PARTITION} cannot be replayed")

    def stop(self) -> None:
        if self._runtime is not None:
            self._runtime.stop()

    def _new_controller(self) -> Controller:
        config = self._node.config
        transaction_version = {TRANSACTION_VERSION: config.transaction_version}
        self._controller = Controller(
            ControllerDefaults(
                partitions=config.num_partitions,
                replication_factor=config.default_replication_factor,
                min_insync_replicas=config.min_insync_replicas,
                unclean_leader_election=config.unclean_leader_election_enable,
                session_timeout_ms=2**40,
                features={**FIRST_LEVELS, **transaction_version},
                fixed_features=transaction_version if TRANSACTION_VERSION in config.given else {},
            )
        )
        return self._controller

    async def register(self, end_points: tuple[BrokerEndpoint, ...]) -> None:
        """Tell the cluster that this broker is here. Raises OSError when that cannot be written down."""
        assert self._runtime is not None, "the metadata log has not been loaded"
        config = self._node.config
        partition_log = self._runtime.partition.log
        broker_id = BrokerId(config.node_id)
        registration = Registration(
            broker_id=broker_id,
            incarnation_id=self._node.new_uuid(),
            end_points=end_points,
            rack=config.broker_rack or None,
            features=SUPPORTED_FEATURES,
        )
        now = self._node.clock.now()
        registered = await self._submit(
            lambda controller: controller.register_broker(registration, partition_log.log_end_offset, now)
        )
        if isinstance(registered, ErrorCode):
            raise OSError(f"cannot write to {METADATA_PARTITION}: {registered.name}")
        self.broker_epoch = registered.broker_epoch
        end = partition_log.log_end_offset
        beat = Heartbeat(broker_id=broker_id, broker_epoch=self.broker_epoch, metadata_offset=end)
        answer = await self._submit(lambda controller: controller.heartbeat(beat, end, now))
        error = answer if isinstance(answer, ErrorCode) else None
        if error is not None:
            raise OSError(f"cannot write to {METADATA_PARTITION}: {error.name}")

    def open_replicas(self) -> None:
        """Open what the image says this broker has, and remove what it does not know. Raises OSError."""
        for topic in list(self.image.topics.values()):
            self._node.partitions.open(topic, self.image.topic_configs(topic.name))
        self._node.partitions.remove_strays(self.image.topics)

    # --- changes -------------------------------------------------------------------------------------------------

    async def _submit(self, decide: Callable[[Controller], Decision[R]]) -> R | ErrorCode:
        """Make one change. An ErrorCode: it could not be written, or not in time."""
        assert self._runtime is not None, "the metadata log has not been loaded"

        def decide_and_publish(controller: Controller, now: Instant) -> Decision[R]:
            decision = decide(controller)
            return replace(decision, actions=(_Committed(decision.records), *decision.actions))

        return await self._runtime.submit(decide_and_publish)

    def _perform(self, action: Any) -> None:
        match action:
            case _Committed(committed):
                delta = self.image.apply(committed)
                self._node.partitions.apply(delta, self.image)
                if delta.deleted:
                    self._node.groups.topics_deleted()
            case BrokerFenced() | BrokerUnfenced() | LedAtRisk() | CallOnBrokers():
                pass
            case _:
                raise AssertionError(f"unknown action {action!r}")

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicResult] | ErrorCode:
        return await self._submit(lambda controller: controller.create_topics(topics, validate_only=validate_only))

    async def delete_topics(self, topics: Sequence[tuple[str | None, UUID]]) -> list[TopicResult] | ErrorCode:
        return await self._submit(lambda controller: controller.delete_topics(topics))

    async def create_partitions(
        self, topics: Sequence[NewPartitions], *, validate_only: bool = False
    ) -> list[TopicResult] | ErrorCode:
        return await self._submit(lambda controller: controller.create_partitions(topics, validate_only=validate_only))

    async def alter_topic_configs(
        self, changes: Sequence[tuple[str, Sequence[ConfigChange]]], *, validate_only: bool = False
    ) -> list[TopicResult] | ErrorCode:
        return await self._submit(
            lambda controller: controller.alter_topic_configs(changes, validate_only=validate_only)
        )

    async def replace_topic_configs(
        self, settings: Sequence[tuple[str, Mapping[str, str | None]]], *, validate_only: bool = False
    ) -> list[TopicResult] | ErrorCode:
        return await self._submit(
            lambda controller: controller.replace_topic_configs(settings, validate_only=validate_only)
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
        return await self._submit(
            lambda controller: controller.allocate_producer_ids(BrokerId(self._node.config.node_id), self.broker_epoch)
        )


def new_cluster_id(random_uuid: UUID) -> str:
    """As Kafka writes ids: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(random_uuid.bytes).decode().rstrip("=")
