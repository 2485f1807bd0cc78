"""Metadata: brokers, topics, leaders.

API: 3. Versions: 0-13.
Behaviour: brokers are those that are not fenced; a partition whose leader is none of them has LEADER_NOT_AVAILABLE. A
topic that is not there is created where client and broker allow it, and is in the answer at once. Encoded answers are
kept until the image changes: clients ask for the same again and again.
Version notes: v0 an empty list means all, from v1 on null does; below v4 every client allows creation; v10 topic ids,
asked for by id from v12 on.
"""

from __future__ import annotations

from collections.abc import Container, Coroutine
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from einmal.broker.cluster_metadata import MetadataKey
from einmal.broker.context import Body, RequestContext, Versions
from einmal.metadata.image import ClusterImage, PartitionImage, TopicImage
from einmal.metadata.records import NO_LEADER
from einmal.types import BrokerId, ErrorCode
from einmal.wire.metadata import (
    NO_AUTHORIZED_OPERATIONS,
    MetadataBroker,
    MetadataPartition,
    MetadataResponse,
    MetadataTopic,
    encode_metadata_response,
)

if TYPE_CHECKING:
    from einmal.broker.node import Node

API_KEY: Final = 3
VERSIONS: Final = Versions(0, 13, flexible=9)
_NO_TOPIC_ID: Final = UUID(int=0)
TOPIC_OPERATIONS: Final = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""Read, write, create, delete, alter, describe and both for settings: what everybody may who is not refused."""
CLUSTER_OPERATIONS: Final = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))

_Asked = tuple[tuple[str | None, UUID], ...] | None
"""Names and ids; None: all topics."""

_CREATED_MAX: Final = 100
"""Topics that one request may create by asking for them."""


def handle(context: RequestContext, request: Any) -> Body | Coroutine[Any, Any, Body]:
    asked = _asked(context, request)
    if asked is not None and getattr(request, "allow_auto_topic_creation", True):
        topics = context.node.metadata.image.topics
        missing = [name for name, _topic_id in asked if name is not None and name not in topics]
        if missing and context.node.config.auto_create_topics_enable:
            return _create_and_answer(context, request, asked, missing)
    return _answer(context, request, asked, {})


def _asked(context: RequestContext, request: Any) -> _Asked:
    if request.topics is None or (context.api_version == 0 and not request.topics):
        return None
    return tuple((topic.name, getattr(topic, "topic_id", None) or _NO_TOPIC_ID) for topic in request.topics)


async def _create_and_answer(context: RequestContext, request: Any, asked: _Asked, missing: list[str]) -> Body:
    # What is left is unknown for now: whoever means it asks again.
    names = list(dict.fromkeys(missing))[:_CREATED_MAX]
    errors = {name: await context.node.metadata.ensure_topic(name) for name in names}
    return _answer(context, request, asked, errors)


def _answer(context: RequestContext, request: Any, asked: _Asked, errors: dict[str, ErrorCode]) -> bytes:
    with_topic_operations = getattr(request, "include_topic_authorized_operations", False)
    with_cluster_operations = getattr(request, "include_cluster_authorized_operations", False)
    controller_id = told_controller_id(context.node)
    key = MetadataKey(
        context.api_version,
        asked,
        with_topic_operations,
        with_cluster_operations,
        controller_id,
        context.for_brokers,
    )
    encoded = context.node.metadata.encoded_answers
    answer = None if errors else encoded.get(key)
    if answer is None:
        response = MetadataResponse(
            brokers=_brokers(context.node.metadata.image, context.for_brokers),
            topics=_topics(context.node, asked, errors, with_topic_operations),
            cluster_id=context.node.metadata.cluster_id,
            controller_id=controller_id,
            cluster_authorized_operations=(CLUSTER_OPERATIONS if with_cluster_operations else NO_AUTHORIZED_OPERATIONS),
        )
        answer = encode_metadata_response(context.api_version, response)
        encoded.put(key, answer)
    return answer


def told_controller_id(node: Node) -> int:
    """The active controller where it is a broker too, else this broker: whoever is asked forwards to it (KIP-590)."""
    leader_id = node.quorum.leader_id
    broker = None if leader_id is None else node.metadata.image.brokers.get(BrokerId(leader_id))
    return node.config.node_id if broker is None or broker.is_fenced else broker.broker_id


def _brokers(image: ClusterImage, for_brokers: bool) -> list[MetadataBroker]:
    return [
        MetadataBroker(broker.broker_id, point.host, point.port, broker.rack)
        for broker in image.brokers.values()
        if not broker.is_fenced and broker.end_points
        for point in (broker.end_point(for_brokers=for_brokers),)
    ]


def _topics(node: Node, asked: _Asked, errors: dict[str, ErrorCode], with_operations: bool) -> list[MetadataTopic]:
    image = node.metadata.image
    operations = TOPIC_OPERATIONS if with_operations else NO_AUTHORIZED_OPERATIONS
    alive = {broker.broker_id for broker in image.brokers.values() if not broker.is_fenced}
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


def _topic(topic: TopicImage, alive: Container[BrokerId], operations: int) -> MetadataTopic:
    return MetadataTopic(
        topic.name,
        topic.topic_id,
        [_partition(index, partition, alive) for index, partition in enumerate(topic.partitions)],
        topic.is_internal,
        topic_authorized_operations=operations,
    )


def _partition(index: int, partition: PartitionImage, alive: Container[BrokerId]) -> MetadataPartition:
    is_led = partition.leader in alive
    return MetadataPartition(
        index,
        partition.leader if is_led else NO_LEADER,
        partition.leader_epoch,
        partition.replicas,
        partition.isr,
        offline_replicas(partition, alive),
        ErrorCode.none if is_led else ErrorCode.leader_not_available,
    )


def offline_replicas(partition: PartitionImage, alive: Container[BrokerId]) -> tuple[BrokerId, ...]:
    return tuple(broker_id for broker_id in partition.replicas if broker_id not in alive)
