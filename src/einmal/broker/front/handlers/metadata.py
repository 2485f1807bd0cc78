"""Metadata: brokers, topics, leaders.

API: 3. Versions: 0-13.
Access: DESCRIBE on Topic; without it a topic is left out where all are asked for. To create a topic CREATE on
Cluster, or CREATE on Topic. DESCRIBE on Cluster for the authorized operations.
Behaviour: brokers are those that are not fenced; a partition whose leader is none of them has LEADER_NOT_AVAILABLE. A
missing topic is created if client and broker allow it, and is in the answer at once. Encoded answers are kept until the
image changes: clients ask for the same again and again.
Version notes: v0 an empty list means all, from v1 on null does; below v4 every client allows creation; v10 topic ids;
v12 questions by id, which need no name, and ignore one. Before, they are INVALID_REQUEST: the answer must have names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Coroutine, Iterable, Mapping
from typing import Any, ClassVar, Final, NamedTuple, cast
from uuid import UUID

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.config import BrokerConfig
from einmal.broker.control.quorum_runtime import QuorumRuntime
from einmal.broker.control.topic_creation import TopicCreation
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import Body, RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.front.topics.metadata_answers import EncodedAnswers, MetadataKey
from einmal.metadata.image import ClusterImage, PartitionImage, TopicImage
from einmal.metadata.records import NO_LEADER
from einmal.metadata.topics import error_of_absent
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import BrokerId, ErrorCode
from einmal.wire.api.metadata import (
    API,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from einmal.wire.metadata import NO_AUTHORIZED_OPERATIONS, encode_metadata_response

_NO_TOPIC_ID: Final = UUID(int=0)

_Asked = tuple[tuple[str | None, UUID], ...] | None
"""Names and ids; None: all topics."""
_Visible = Mapping[str, int] | None
"""The topics of a question that the sender may see, with the bits of what he may do to them; None: he may do all."""

_LISTENER_NOT_FOUND: Final = 6
"""The first version with this error."""
_FIRST_BY_ID: Final = 12
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
    access: Access
    config: BrokerConfig
    metadata: ClusterMetadata
    quorum: QuorumRuntime
    topic_creation: TopicCreation
    encoded_answers: EncodedAnswers

    def handle(self, context: RequestContext, request: MetadataRequest) -> Body | Coroutine[Any, Any, Body]:
        asked = _asked(context, request)
        if asked is not None and context.api_version < _FIRST_BY_ID and _has_id(asked):
            return _refused(context, asked)
        if self.access.is_unlimited(context):
            return self._create_or_answer(context, request, asked, None)
        return self._look_and_answer(context, request, asked)

    async def _look_and_answer(self, context: RequestContext, request: MetadataRequest, asked: _Asked) -> Body:
        """Find out first what the sender may see. A topic that is made meanwhile is none of it."""
        image = self.metadata.image
        names: Iterable[str | None] = image.topics
        if asked is not None:
            names = (image.name_of(topic_id) if name is None else name for name, topic_id in asked)
        visible: dict[str, int] = {}
        async for name in context.paced(names):
            if name is not None and self.access.describes_topic(context, name, is_asked=asked is not None):
                visible[name] = self._topic_operations(context, request, name)
        answer = self._create_or_answer(context, request, asked, visible)
        return await answer if inspect.iscoroutine(answer) else cast(Body, answer)

    def _create_or_answer(
        self, context: RequestContext, request: MetadataRequest, asked: _Asked, visible: _Visible
    ) -> Body | Coroutine[Any, Any, Body]:
        if asked is not None and request.allow_auto_topic_creation and self.config.auto_create_topics_enable:
            topics = self.metadata.image.topics
            missing = [name for name, _topic_id in asked if name is not None and name not in topics]
            if visible is not None:
                missing = [name for name in missing if name in visible]
            if missing:
                return self._create_and_answer(context, request, asked, visible, missing)
        return self._answer(context, request, asked, visible, {})

    async def _create_and_answer(
        self, context: RequestContext, request: MetadataRequest, asked: _Asked, visible: _Visible, missing: list[str]
    ) -> Body:
        creates_all = self.access.allows(context, AclOperation.CREATE, ResourceType.CLUSTER, is_filter=True)
        errors: dict[str, ErrorCode] = {}
        created = 0
        async for name in context.paced(dict.fromkeys(missing)):
            refused = None if creates_all else self._creation_refusal(context, name)
            if refused:
                errors[name] = refused
            elif created < _CREATED_MAX:
                # The remaining topics are unknown for now: a client that needs one asks again.
                created += 1
                errors[name] = await self.topic_creation.ensure(name)
        return self._answer(context, request, asked, visible, errors)

    def _creation_refusal(self, context: RequestContext, name: str) -> ErrorCode | None:
        return self.access.refusal(context, AclOperation.CREATE, ResourceType.TOPIC, name)

    def _topic_operations(self, context: RequestContext, request: MetadataRequest, name: str) -> int:
        if not request.include_topic_authorized_operations:
            return NO_AUTHORIZED_OPERATIONS
        return self.access.authorized_operations(context, ResourceType.TOPIC, name)

    def _answer(
        self,
        context: RequestContext,
        request: MetadataRequest,
        asked: _Asked,
        visible: _Visible,
        errors: dict[str, ErrorCode],
    ) -> bytes:
        image = self.metadata.image
        controller_id = reported_controller_id(self.quorum, image, self.config.node_id)
        of_cluster = NO_AUTHORIZED_OPERATIONS
        if request.include_cluster_authorized_operations:
            of_cluster = cluster_operations(self.access, context)
        key = MetadataKey(
            context.api_version,
            asked,
            None if visible is None else frozenset(visible.items()),
            request.include_topic_authorized_operations,
            of_cluster,
            controller_id,
            context.listener.name,
        )
        answer = None if errors else self.encoded_answers.get(key)
        if answer is None:
            # Whoever sees all topics may do the same to each of them.
            of_any = self._topic_operations(context, request, "")
            response = MetadataResponse(
                brokers=_brokers(image, context.listener.name),
                topics=_topics(
                    context, image, asked, errors, (lambda _name: of_any) if visible is None else visible.get
                ),
                cluster_id=self.quorum.cluster_id,
                controller_id=controller_id,
                cluster_authorized_operations=of_cluster,
            )
            answer = encode_metadata_response(context.api_version, response)
            if not errors:
                # Those are of a request that may create topics; for others the topics are unknown.
                self.encoded_answers.put(key, answer)
        return answer


def _asked(context: RequestContext, request: MetadataRequest) -> _Asked:
    if request.topics is None or (context.api_version == 0 and not request.topics):
        return None
    if context.api_version >= _FIRST_BY_ID:
        return tuple(
            (None, topic.topic_id) if topic.topic_id else (topic.name, _NO_TOPIC_ID) for topic in request.topics
        )
    return tuple((topic.name, topic.topic_id or _NO_TOPIC_ID) for topic in request.topics)


def _has_id(asked: Iterable[tuple[str | None, UUID]]) -> bool:
    return any(name is None or topic_id != _NO_TOPIC_ID for name, topic_id in asked)


def _refused(context: RequestContext, asked: Iterable[tuple[str | None, UUID]]) -> bytes:
    topics = [
        MetadataResponseTopic(error_code=ErrorCode.invalid_request, name=name or "", topic_id=topic_id)
        for name, topic_id in asked
    ]
    return encode_metadata_response(context.api_version, MetadataResponse(topics=topics))


def cluster_operations(access: Access, context: RequestContext) -> int:
    """The bits of what the sender may do to the cluster; none without DESCRIBE."""
    if not access.allows(context, AclOperation.DESCRIBE, ResourceType.CLUSTER):
        return 0
    return access.authorized_operations(context, ResourceType.CLUSTER)


def reported_controller_id(quorum: QuorumRuntime, image: ClusterImage, node_id: int) -> int:
    """The active controller if it is a broker too, else this broker: every broker forwards to the controller
    (KIP-590)."""
    leader_id = quorum.leader_id
    broker = None if leader_id is None else image.brokers.get(BrokerId(leader_id))
    return node_id if broker is None or broker.is_fenced else broker.broker_id


def _brokers(image: ClusterImage, listener: str) -> list[MetadataResponseBroker]:
    return [
        MetadataResponseBroker(broker.broker_id, point.host, point.port, broker.rack)
        for broker in image.brokers.values()
        if not broker.is_fenced
        for point in (broker.end_point(listener),)
        if point is not None
    ]


def _topics(
    context: RequestContext,
    image: ClusterImage,
    asked: _Asked,
    errors: dict[str, ErrorCode],
    operations_of: Callable[[str], int | None],
) -> list[MetadataResponseTopic]:
    """``operations_of``: the bits of a topic, by its name; None: the sender may not see whether it exists."""
    alive = alive_on(image, context.listener.name)
    if context.api_version < _LISTENER_NOT_FOUND:
        alive = alive._replace(hidden=())
    if asked is None:
        return [
            _topic(topic, alive, operations)
            for name, topic in image.topics.items()
            if (operations := operations_of(name)) is not None
        ]
    answers = []
    for name, topic_id in dict.fromkeys(asked):
        topic_name = image.topic_names.get(topic_id) if name is None else name
        operations = None if topic_name is None else operations_of(topic_name)
        topic = None if topic_name is None else image.topics.get(topic_name)
        if topic_name is None:
            answers.append(MetadataResponseTopic(ErrorCode.unknown_topic_id, None, topic_id))
        elif operations is None:
            answers.append(MetadataResponseTopic(ErrorCode.topic_authorization_failed, name, topic_id))
        elif topic is None:
            error = errors.get(topic_name, error_of_absent(topic_name))
            if error is ErrorCode.topic_authorization_failed:
                operations = NO_AUTHORIZED_OPERATIONS
            answers.append(MetadataResponseTopic(error, topic_name, topic_id, topic_authorized_operations=operations))
        else:
            answers.append(_topic(topic, alive, operations))
    return answers


def _topic(topic: TopicImage, alive: AliveBrokers, operations: int) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[_partition(index, partition, alive) for index, partition in enumerate(topic.partitions)],
        topic_authorized_operations=operations,
    )


def _partition(index: int, partition: PartitionImage, alive: AliveBrokers) -> MetadataResponsePartition:
    is_led = partition.leader in alive.reachable
    return MetadataResponsePartition(
        alive.error_of(partition.leader),
        index,
        partition.leader if is_led else NO_LEADER,
        partition.leader_epoch,
        partition.replicas,
        partition.isr,
        offline_replicas(partition, alive.reachable),
    )


def offline_replicas(partition: PartitionImage, alive: Container[BrokerId]) -> tuple[BrokerId, ...]:
    return tuple(broker_id for broker_id in partition.replicas if broker_id not in alive)
