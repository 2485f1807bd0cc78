"""The cluster's metadata as this node has it: what is committed, and what a change of it does here.

Every committed record is replayed into the image. Each change of the image is then applied to the node: replicas,
fetchers, transaction coordinators, group coordinators, in this order. A broker applies nothing before its image has its
own registration: an older one would let it lead what it has lost since, and take topics it does not know yet for
deleted ones. Changes are the active controller's to make, wherever that is.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from einmal.client.aio.connection import Disconnected
from einmal.log.errors import LogCorruption
from einmal.metadata import records
from einmal.metadata.configs import ConfigChange
from einmal.metadata.image import CLUSTER_METADATA, CONSUMER_OFFSETS, TRANSACTION_STATE, ClusterImage, ImageDelta
from einmal.metadata.records import MetadataRecord
from einmal.metadata.topics import NewPartitions, NewTopic, TopicResult, name_problem
from einmal.types import ErrorCode, Offset, TopicPartition
from einmal.wire.errors import WireError
from einmal.wire.record_batch import decode_records, iter_headers

if TYPE_CHECKING:
    from einmal.broker.node import Node

log = logging.getLogger(__name__)

METADATA_PARTITION: Final = TopicPartition(CLUSTER_METADATA, 0)
METADATA_TOPIC_ID: Final = UUID(int=1)
"""Kafka's fixed id of the metadata topic."""
_ENCODED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Encoded Metadata answers kept: enough for the topics that the clients of a broker ask for together."""
_ENCODED_OVERHEAD: Final = 1024
_ENCODED_NAMES_MAX: Final = 100
"""Of a question whose answer is kept."""
_READ_BYTES: Final = 1024 * 1024
_CREATE_TOPICS: Final = 19
_CREATE_TOPICS_VERSION: Final = 7
_ALLOCATE_PRODUCER_IDS: Final = 67
_CONTROLLER_TIMEOUT_MS: Final = 5_000
_SEEN_SECONDS: Final = 5.0
"""So long a new topic may take to be seen here."""


class MetadataKey(NamedTuple):
    """All that an answer to Metadata depends on beside the image."""

    version: int
    asked: tuple[tuple[str | None, UUID], ...] | None
    with_topic_operations: bool
    with_cluster_operations: bool
    controller_id: int
    for_brokers: bool


class EncodedAnswers:
    """Encoded Metadata answers of the image as it is now, by what was asked."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata
        self._answers: dict[MetadataKey, bytes] = {}
        self._bytes = 0
        self._version = -1

    def get(self, key: MetadataKey) -> bytes | None:
        if self._version != self._metadata.image.version:
            self._clear()
        return self._answers.get(key)

    def put(self, key: MetadataKey, answer: bytes) -> None:
        size = len(answer) + _ENCODED_OVERHEAD
        if self._version != self._metadata.image.version or self._bytes + size > _ENCODED_BYTES_MAX:
            self._clear()
        if size <= _ENCODED_BYTES_MAX and (key.asked is None or len(key.asked) <= _ENCODED_NAMES_MAX):
            self._answers[key] = answer
            self._bytes += size

    def _clear(self) -> None:
        self._answers, self._bytes = {}, 0
        self._version = self._metadata.image.version


class ClusterMetadata:
    def __init__(self, node: Node) -> None:
        self._node = node
        self.encoded_answers = EncodedAnswers(self)
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._creating: dict[str, asyncio.Task[ErrorCode]] = {}
        self.image = ClusterImage()
        """What is committed. The controller's own image may be ahead of it."""
        self.next_offset = Offset(0)
        """Of the first record that is not in the image."""
        self.cluster_id = ""
        self.is_applied = False
        """Whether the node follows the image."""
        self._deleted: dict[UUID, str] = {}
        """Topics whose removal is committed and not applied yet."""

    # --- what is committed ---------------------------------------------------------------------------------------

    def published(self, high_watermark: Offset) -> None:
        """The metadata log is committed up to here: take it in."""
        committed: list[MetadataRecord] = []
        partition_log = self._node.quorum.partition.log
        try:
            while self.next_offset < high_watermark:
                batches = partition_log.read(self.next_offset, _READ_BYTES, below=high_watermark)
                for position, header in iter_headers(batches):
                    if not header.is_control:
                        for record in decode_records(batches, position, header):
                            decoded = records.decode(record.key, record.value, None)
                            if decoded is not None:
                                committed.append(decoded)
                    self.next_offset = header.next_offset
                if not batches:
                    break
        except (OSError, LogCorruption, WireError) as error:
            # What was read is taken in; the rest when there is more.
            log.error("cannot read %s at offset %d: %s", METADATA_PARTITION, self.next_offset, error)
        self._changed(self.image.apply(committed))

    def load_snapshot(self, snapshot: Sequence[MetadataRecord], end_offset: Offset, epoch: int) -> None:
        """Take what is in a snapshot for all that was before."""
        log.info("metadata snapshot", extra={"end_offset": end_offset, "epoch": epoch})
        before, image = self.image, ClusterImage()
        image.apply(snapshot)
        image.version += before.version
        deleted = [
            (topic.name, topic.topic_id) for topic in before.topics.values() if topic.topic_id not in image.topic_names
        ]
        self.image, self.next_offset = image, end_offset
        self._changed(_whole(image, deleted))

    def _changed(self, delta: ImageDelta) -> None:
        if self.is_applied:
            self._node.apply(delta)
        else:
            self._deleted.update((topic_id, name) for name, topic_id in delta.deleted)
        self.look()
        for done, future in [waiting for waiting in self._waiting if waiting[0]()]:
            self._waiting.remove((done, future))
            if not future.done():
                future.set_result(None)

    def look(self) -> None:
        """Begin to follow the image, if it has this broker's registration."""
        if not self.is_applied and 0 <= self._node.broker_epoch < self.next_offset:
            self.is_applied = True
            try:
                self._node.partitions.sort_out(self.image, self._deleted)
            except OSError as error:
                log.error("cannot list %s: %s", self._node.directory, error)
            self._deleted.clear()
            self._node.apply(_whole(self.image, ()))

    async def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until the image is as the condition wants it; False: it was not in time."""
        if condition():
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (condition, future)
        self._waiting.append(waiting)
        timer = asyncio.get_running_loop().call_later(seconds, future.cancel)
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():
                raise
            return condition()
        finally:
            timer.cancel()
            if waiting in self._waiting:
                self._waiting.remove(waiting)
        return True

    def stop(self) -> None:
        for _condition, future in self._waiting:
            future.cancel()
        for task in list(self._creating.values()):
            task.cancel()

    # --- changes -------------------------------------------------------------------------------------------------

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicResult] | ErrorCode:
        return await self._node.controller.submit(
            lambda controller, _: controller.create_topics(topics, validate_only=validate_only)
        )

    async def delete_topics(self, topics: Sequence[tuple[str | None, UUID]]) -> list[TopicResult] | ErrorCode:
        return await self._node.controller.submit(lambda controller, _: controller.delete_topics(topics))

    async def create_partitions(
        self, topics: Sequence[NewPartitions], *, validate_only: bool = False
    ) -> list[TopicResult] | ErrorCode:
        return await self._node.controller.submit(
            lambda controller, _: controller.create_partitions(topics, validate_only=validate_only)
        )

    async def alter_topic_configs(
        self, changes: Sequence[tuple[str, Sequence[ConfigChange]]], *, validate_only: bool = False
    ) -> list[TopicResult] | ErrorCode:
        return await self._node.controller.submit(
            lambda controller, _: controller.alter_topic_configs(changes, validate_only=validate_only)
        )

    async def replace_topic_configs(
        self, settings: Sequence[tuple[str, Mapping[str, str | None]]], *, validate_only: bool = False
    ) -> list[TopicResult] | ErrorCode:
        return await self._node.controller.submit(
            lambda controller, _: controller.replace_topic_configs(settings, validate_only=validate_only)
        )

    async def alter_cluster_configs(
        self, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> TopicResult | ErrorCode:
        return await self._node.controller.submit(
            lambda controller, _: controller.alter_cluster_configs(changes, validate_only=validate_only)
        )

    async def replace_cluster_configs(
        self, settings: Mapping[str, str | None], *, validate_only: bool = False
    ) -> TopicResult | ErrorCode:
        return await self._node.controller.submit(
            lambda controller, _: controller.replace_cluster_configs(settings, validate_only=validate_only)
        )

    async def ensure_topic(self, name: str) -> ErrorCode:
        """Create the topic with the cluster's defaults, or as the internal topic that it is, unless it is there."""
        if name in self.image.topics:
            return ErrorCode.none
        error, _ = name_problem(name)
        if error is not ErrorCode.none:
            # Not even asked for: a client could have a line logged with every request.
            return error
        creating = self._creating.get(name)
        if creating is None:
            creating = self._creating[name] = asyncio.get_running_loop().create_task(self._create(name))
            creating.add_done_callback(lambda _: self._creating.pop(name, None))
        return await asyncio.shield(creating)

    async def ensure_internal_topic(self, name: str) -> ErrorCode:
        return await self.ensure_topic(name)

    async def _create(self, name: str) -> ErrorCode:
        """Ask the controller, and wait until the topic is seen here."""
        fields = {"topics": [self._topic_fields(name)], "timeout": _CONTROLLER_TIMEOUT_MS}
        try:
            answer = await self._node.peers.ask_controller(
                _CREATE_TOPICS, _CREATE_TOPICS_VERSION, fields, timeout_ms=_CONTROLLER_TIMEOUT_MS
            )
        except (Disconnected, WireError) as failure:
            log.warning("topic %s is not made: %s", name, failure)
            return ErrorCode.request_timed_out
        error: ErrorCode = answer.topics[0].error_code
        if error not in (ErrorCode.none, ErrorCode.topic_already_exists):
            log.warning("topic %s is not made: %s", name, answer.topics[0].error_message or error.name)
            return error
        is_seen = await self.until(lambda: name in self.image.topics, _SEEN_SECONDS)
        return ErrorCode.none if is_seen else ErrorCode.leader_not_available

    def _topic_fields(self, name: str) -> dict[str, Any]:
        """Of CreateTopics: an internal topic is as this broker's settings have it, another one as the controller's."""
        config = self._node.config
        partitions = replication_factor = -1
        configs: dict[str, str] = {}
        if name == CONSUMER_OFFSETS:
            partitions = config.offsets_topic_num_partitions
            replication_factor = config.offsets_topic_replication_factor
            configs = {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
            }
        elif name == TRANSACTION_STATE:
            partitions = config.transaction_state_log_num_partitions
            replication_factor = config.transaction_state_log_replication_factor
            configs = {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": str(config.transaction_state_log_min_isr),
                "segment.bytes": str(config.transaction_state_log_segment_bytes),
                "unclean.leader.election.enable": "false",
            }
        return {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": replication_factor,
            "assignments": (),
            "configs": [{"name": key, "value": value} for key, value in configs.items()],
        }

    async def allocate_producer_ids(self) -> range | ErrorCode:
        """A block of producer ids that nobody else gets, also after a crash."""
        fields = {"broker_id": self._node.config.node_id, "broker_epoch": self._node.broker_epoch}
        try:
            answer = await self._node.peers.ask_controller(
                _ALLOCATE_PRODUCER_IDS, 0, fields, timeout_ms=_CONTROLLER_TIMEOUT_MS
            )
        except (Disconnected, WireError):
            return ErrorCode.coordinator_not_available
        if answer.error_code is not ErrorCode.none:
            return ErrorCode(answer.error_code)
        return range(answer.producer_id_start, answer.producer_id_start + answer.producer_id_len)


def _whole(image: ClusterImage, deleted: Sequence[tuple[str, UUID]]) -> ImageDelta:
    """Everything is new."""
    return ImageDelta(
        topics=dict.fromkeys(image.topics),
        deleted=tuple(deleted),
        configs=dict.fromkeys(image.topics),
        cluster_configs=True,
        brokers=True,
        features=True,
    )


def cluster_id_of(voters: Mapping[int, object]) -> str:
    """The id of a cluster whose nodes have it from nobody: it follows from who its controllers are."""
    told = ",".join(f"{node_id}@{endpoint}" for node_id, endpoint in sorted(voters.items()))
    return new_cluster_id(UUID(bytes=hashlib.sha256(told.encode()).digest()[:16], version=4))


def new_cluster_id(random_uuid: UUID) -> str:
    """As Kafka writes ids: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(random_uuid.bytes).decode().rstrip("=")
