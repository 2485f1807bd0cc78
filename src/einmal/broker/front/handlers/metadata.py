"""Metadata: brokers, topics, leaders.

API: 3. Versions: 0-13.
Behaviour: brokers are those that are not fenced; a partition whose leader is none of them has LEADER_NOT_AVAILABLE. A
missing topic is created if client and broker allow it, and is in the answer at once. Encoded answers are kept until the
image changes: clients ask for the same again and again.
Version notes: v0 an empty list means all, from v1 on null does; below v4 every client allows creation; v10 topic ids,
asked for by id from v12 on.
"""

from __future__ import annotations

from collections.abc import Container, Coroutine
from typing import Any, ClassVar, Final, NamedTuple
from uuid import UUID

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.config import BrokerConfig
from einmal.broker.control.quorum_runtime import QuorumRuntime
from einmal.broker.control.topic_creation import TopicCreation
from einmal.broker.front.context import Body, RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.front.metadata_answers import EncodedAnswers, MetadataKey
from einmal.metadata.image import ClusterImage, PartitionImage, TopicImage
from einmal.metadata.records import NO_LEADER
from einmal.types import BrokerId, ErrorCode
from einmal.wire.api.metadata import API, MetadataRequest
from einmal.wire.metadata import (
    NO_AUTHORIZED_OPERATIONS,
    MetadataBroker,
    MetadataPartition,
    MetadataResponse,
    MetadataTopic,
    encode_metadata_response,
)

_NO_TOPIC_ID: Final = UUID(int=0)
TOPIC_OPERATIONS: Final = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""Read, write, create, delete, alter, describe and both for settings: every accepted client may do all of them."""
CLUSTER_OPERATIONS: Final = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))

_Asked = tuple[tuple[str | None, UUID], ...] | None
"""Names and ids; None: all topics."""

_LISTENER_NOT_FOUND: Final = 6
"""The first version with this error."""
_CREATED_MAX: Final = 100
"""Topics that one request may create."""


class AliveBrokers(NamedTuple):
    """Brokers by whether they have the listener that a request came to. ``hidden``: those that have not."""

    reachable: Container[BrokerId]
    hidden: Container[BrokerId]

    def error_of(self, leader: BrokerId) -> ErrorCode:
        if leader in self.reachable:
            return ErrorCode.none
        return ErrorCode.listener_not_found if leader in self.hidden else ErrorCode.leader_not_available


def alive_on(image: ClusterImage, listener: str) -> AliveBrokers:
    reachable: set[BrokerId] = set()
    hidden: set[BrokerId] = set()
    for broker in image.brokers.values():
        if not broker.is_fenced:
            (hidden if broker.end_point(listener) is None else reachable).add(broker.broker_id)
    return AliveBrokers(reachable, hidden)


@handler
class MetadataHandler:
    api: ClassVar = API
    config: BrokerConfig
    metadata: ClusterMetadata
    quorum: QuorumRuntime
    topic_creation: TopicCreation
    encoded_answers: EncodedAnswers

    def handle(self, context: RequestContext, request: MetadataRequest) -> Body | Coroutine[Any, Any, Body]:
        asked = _asked(context, request)
        if asked is not None and request.allow_auto_topic_creation and self.config.auto_create_topics_enable:
            topics = self.metadata.image.topics
            missing = [name for name, _topic_id in asked if name is not None and name not in topics]
            if missing:
                return self._create_and_answer(context, request, asked, missing)
        return self._answer(context, request, asked, {})

    async def _create_and_answer(
        self, context: RequestContext, request: MetadataRequest, asked: _Asked, missing: list[str]
    ) -> Body:
        # The remaining topics are unknown for now: a client that needs one asks again.
        names = list(dict.fromkeys(missing))[:_CREATED_MAX]
        errors = {name: await self.topic_creation.ensure(name) for name in names}
        return self._answer(context, request, asked, errors)

    def _answer(
        self, context: RequestContext, request: MetadataRequest, asked: _Asked, errors: dict[str, ErrorCode]
    ) -> bytes:
        image = self.metadata.image
        controller_id = told_controller_id(self.quorum, image, self.config.node_id)
        key = MetadataKey(
            context.api_version,
            asked,
            request.include_topic_authorized_operations,
            request.include_cluster_authorized_operations,
            controller_id,
            context.listener.name,
        )
        answer = None if errors else self.encoded_answers.get(key)
        if answer is None:
            response = MetadataResponse(
                brokers=_brokers(image, context.listener.name),
                topics=_topics(context, image, asked, errors, request.include_topic_authorized_operations),
                cluster_id=self.quorum.cluster_id,
                controller_id=controller_id,
                cluster_authorized_operations=(
                    CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NO_AUTHORIZED_OPERATIONS
                ),
            )
            answer = encode_metadata_response(context.api_version, response)
            if not errors:
                # Those are of a request that may create topics; for others the topics are unknown.
                self.encoded_answers.put(key, answer)
        return answer


def _asked(context: RequestContext, request: MetadataRequest) -> _Asked:
    if request.topics is None or (context.api_version == 0 and not request.topics):
        return None
    return tuple((topic.name, topic.topic_id or _NO_TOPIC_ID) for topic in request.topics)


def told_controller_id(quorum: QuorumRuntime, image: ClusterImage, node_id: int) -> int:
    """The active controller if it is a broker too, else this broker: every broker forwards to the controller
    (KIP-590)."""
    leader_id = quorum.leader_id
    broker = None if leader_id is None else image.brokers.get(BrokerId(leader_id))
    return node_id if broker is None or broker.is_fenced else broker.broker_id


def _brokers(image: ClusterImage, listener: str) -> list[MetadataBroker]:
    return [
        MetadataBroker(broker.broker_id, point.host, point.port, broker.rack)
        for broker in image.brokers.values()
        if not broker.is_fenced
        for point in (broker.end_point(listener),)
        if point is not None
    ]


def _topics(
    context: RequestContext, image: ClusterImage, asked: _Asked, errors: dict[str, ErrorCode], with_operations: bool
) -> list[MetadataTopic]:
    operations = TOPIC_OPERATIONS if with_operations else NO_AUTHORIZED_OPERATIONS
    alive = alive_on(image, context.listener.name)
    if context.api_version < _LISTENER_NOT_FOUND:
        alive = alive._replace(hidden=())
    if asked is None:
        return [_topic(topic, alive, operations) for topic in image.topics.values()]
    answers = []
    for name, topic_id in dict.fromkeys(asked):
        error = ErrorCode.unknown_topic_or_partition
        if name is None:
            name = image.topic_names.get(topic_id)
            error = ErrorCode.unknown_topic_id
        topic = None if name is None else image.topics.get(name)
        if topic is not None:
            answers.append(_topic(topic, alive, operations))
        else:
            error = errors.get(name, error) if name is not None else error
            answers.append(MetadataTopic(name, topic_id, (), error_code=error))
    return answers


def _topic(topic: TopicImage, alive: AliveBrokers, operations: int) -> MetadataTopic:
    return MetadataTopic(
        topic.name,
        topic.topic_id,
        [_partition(index, partition, alive) for index, partition in enumerate(topic.partitions)],
        topic.is_internal,
        topic_authorized_operations=operations,
    )


def _partition(index: int, partition: PartitionImage, alive: AliveBrokers) -> MetadataPartition:
    is_led = partition.leader in alive.reachable
    return MetadataPartition(
        index,
        partition.leader if is_led else NO_LEADER,
        partition.leader_epoch,
        partition.replicas,
        partition.isr,
        offline_replicas(partition, alive.reachable),
        alive.error_of(partition.leader),
    )


def offline_replicas(partition: PartitionImage, alive: Container[BrokerId]) -> tuple[BrokerId, ...]:
    return tuple(broker_id for broker_id in partition.replicas if broker_id not in alive)
