"""Topics created without an admin: those that a client names, and those in which coordinators keep their records.

The active controller is asked, by one request for everybody who wants a topic at the same time. The topic exists for
this broker when its image has it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.config import BrokerConfig
from einmal.broker.rpc.controller_channel import ControllerChannel
from einmal.event_log import EventLog
from einmal.metadata.image import CLUSTER_METADATA, CONSUMER_OFFSETS, TRANSACTION_STATE
from einmal.metadata.topic_configs import INTERNAL_SEGMENT_BYTES, SEGMENT_BYTES_MIN
from einmal.metadata.topics import name_problem
from einmal.rpc.connection import NoAnswer
from einmal.types import ErrorCode
from einmal.wire.api.create_topics import API as CREATE_TOPICS
from einmal.wire.api.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from einmal.wire.errors import WireError

log = EventLog(__name__)

_VERSION: Final = 7
_TIMEOUT_MS: Final = 5_000
_SEEN_SECONDS: Final = 5.0
"""So long a new topic may take to be seen here."""


class TopicCreation:
    def __init__(self, config: BrokerConfig, metadata: ClusterMetadata, controller: ControllerChannel) -> None:
        self._config = config
        self._metadata = metadata
        self._controller = controller
        self._creating: dict[str, asyncio.Task[ErrorCode]] = {}

    async def ensure(self, name: str) -> ErrorCode:
        """Create the topic with the cluster's defaults, or as the internal topic that it is, unless it is there."""
        if name in self._metadata.image.topics:
            return ErrorCode.none
        if name == CLUSTER_METADATA:
            # Apache Kafka's brokers do not report the controller's refusal of it either.
            return ErrorCode.unknown_topic_or_partition
        error, _ = name_problem(name)
        if error is not ErrorCode.none:
            # Not even asked for: a client could have a line logged with every request.
            return error
        creating = self._creating.get(name)
        if creating is None:
            creating = self._creating[name] = asyncio.get_running_loop().create_task(self._create(name))
            creating.add_done_callback(lambda _: self._creating.pop(name, None))
        return await asyncio.shield(creating)

    async def _create(self, name: str) -> ErrorCode:
        """Ask the controller, and wait until the topic is seen here."""
        request = CreateTopicsRequest((self._creatable(name),), _TIMEOUT_MS)
        try:
            answer = await self._controller.ask(CREATE_TOPICS, _VERSION, request, timeout_ms=_TIMEOUT_MS)
        except (NoAnswer, WireError) as failure:
            log.warning("topic_creation_failed", "topic %(topic)s is not made: %(error)s", topic=name, error=failure)
            return ErrorCode.request_timed_out
        error = answer.topics[0].error_code
        if error not in (ErrorCode.none, ErrorCode.topic_already_exists):
            reason = answer.topics[0].error_message or error.name
            log.warning("topic_creation_failed", "topic %(topic)s is not made: %(error)s", topic=name, error=reason)
            return error
        is_seen = await self._metadata.until(lambda: name in self._metadata.image.topics, _SEEN_SECONDS)
        return ErrorCode.none if is_seen else ErrorCode.leader_not_available

    def _creatable(self, name: str) -> CreatableTopic:
        """An internal topic is as this broker's settings have it, another one as the controller's."""
        config = self._config
        partitions = replication_factor = -1
        configs: dict[str, str] = {}
        # Both are compacted and never deleted by age, which would forget committed offsets and transactional ids. A
        # coordinator loads the live records and one segment, at some 5 MB per second: hence segments of 4 MiB by
        # default, where Apache Kafka has 100.
        if name == CONSUMER_OFFSETS:
            partitions = config.offsets_topic_num_partitions
            replication_factor = config.offsets_topic_replication_factor
            configs = {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                **_segment_bytes(config.offsets_topic_segment_bytes),
            }
        elif name == TRANSACTION_STATE:
            partitions = config.transaction_state_log_num_partitions
            replication_factor = config.transaction_state_log_replication_factor
            configs = {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": str(config.transaction_state_log_min_isr),
                **_segment_bytes(config.transaction_state_log_segment_bytes),
                "unclean.leader.election.enable": "false",
            }
        return CreatableTopic(
            name,
            partitions,
            replication_factor,
            configs=tuple(CreatableTopicConfig(*setting) for setting in configs.items()),
        )

    def stop(self) -> None:
        for task in list(self._creating.values()):
            task.cancel()


def _segment_bytes(size: int) -> dict[str, str]:
    """A small size, which tests have, under the name that allows it."""
    return {"segment.bytes" if size >= SEGMENT_BYTES_MIN else INTERNAL_SEGMENT_BYTES: str(size)}
