"""Settings of topics, and of all brokers together, as AlterConfigs and IncrementalAlterConfigs change them.

All topics of a request are one decision of the controller, and so is the resource that stands for all brokers. The two
APIs differ in what a resource asks for, and in the methods of the controller that decide it. A single broker's settings
come from its file or command line, so they cannot be changed here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.authorization.permitted_items import PermittedItems, permitted_items
from einmal.broker.front.broker_loggers import BROKER_LOGGER_RESOURCE
from einmal.broker.front.context import RequestContext
from einmal.metadata.configs import DELETE, ConfigChange, problem_of_changes
from einmal.metadata.controller import Controller
from einmal.metadata.image import BROKER_RESOURCE, CLUSTER_DEFAULT, TOPIC_RESOURCE
from einmal.metadata.plan import MetadataDecision
from einmal.metadata.topics import TopicResult
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode, Instant

_GROUP_RESOURCE: Final = 32


class Resource(Protocol):
    """A resource of the request."""

    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...


ResourceT = TypeVar("ResourceT", bound=Resource)
ChangesT = TypeVar("ChangesT")
R = TypeVar("R")
Changes: TypeAlias = Sequence[ConfigChange]


class _Wanted(NamedTuple, Generic[ResourceT]):
    """``result``: the one of a resource about which there is nothing to decide."""

    resource: ResourceT
    changes: Changes
    result: TopicResult | None


async def changeable(
    context: RequestContext, access: Access, resources: Sequence[ResourceT]
) -> PermittedItems[ResourceT]:
    """The resources, and whether the sender may change their settings."""
    return await permitted_items(
        context, resources, lambda resource: setting_refusal(access, context, AclOperation.ALTER_CONFIGS, resource)
    )


async def change_settings(
    context: RequestContext,
    controller: ControllerRuntime,
    asked: PermittedItems[ResourceT],
    *,
    changes_of: Callable[[ResourceT], Changes],
    decide_topics: Callable[[Controller, Sequence[tuple[str, Changes]]], MetadataDecision[list[TopicResult]]],
    decide_brokers: Callable[[Controller, Changes], MetadataDecision[TopicResult]],
    alter_loggers: Callable[[str, Changes], TopicResult] | None = None,
) -> AsyncIterator[tuple[ResourceT, TopicResult]]:
    """The resources in their order, each with its result. ``alter_loggers``: of the broker of that name; None: log
    levels cannot be changed."""
    wanted = await _checked(context, asked, changes_of, takes_loggers=alter_loggers is not None)
    topics = []
    of_brokers: TopicResult | ErrorCode = TopicResult(name=CLUSTER_DEFAULT)
    async for resource, changes, known in context.paced(wanted):
        if known is None and resource.resource_type == TOPIC_RESOURCE:
            topics.append((resource.resource_name, changes))
    of_topics = await controller.submit(_deciding(decide_topics, topics))
    async for resource, changes, known in context.paced(wanted):
        if known is None and resource.resource_type == BROKER_RESOURCE:
            of_brokers = await controller.submit(_deciding(decide_brokers, changes))
    remaining = iter(() if isinstance(of_topics, ErrorCode) else of_topics)
    async for resource, changes, known in context.paced(wanted):
        result: TopicResult | ErrorCode
        if known is not None:
            result = known
        elif resource.resource_type == TOPIC_RESOURCE:
            result = of_topics if isinstance(of_topics, ErrorCode) else next(remaining)
        elif alter_loggers is not None and resource.resource_type == BROKER_LOGGER_RESOURCE:
            result = alter_loggers(resource.resource_name, changes)
        else:
            result = of_brokers
        yield resource, TopicResult(name=None, error=result) if isinstance(result, ErrorCode) else result


async def _checked(
    context: RequestContext,
    asked: PermittedItems[ResourceT],
    changes_of: Callable[[ResourceT], Changes],
    *,
    takes_loggers: bool,
) -> list[_Wanted[ResourceT]]:
    """Each resource with its changes. One that is named twice is refused: changes have no order among resources."""
    named: Counter[tuple[int, str]] = Counter()
    async for resource, _refused in context.paced(asked):
        named[resource.resource_type, resource.resource_name] += 1
    wanted: list[_Wanted[ResourceT]] = []
    async for resource, refused in context.paced(asked):
        changes = changes_of(resource)
        result = None
        if named[resource.resource_type, resource.resource_name] > 1:
            result = _invalid("Each resource must appear at most once: put all its changes together.")
        elif refused is not None:
            result = TopicResult(name=None, error=refused)
        elif (problem := problem_of_changes(changes)) is not None:
            result = _invalid(problem)
        elif resource.resource_type == TOPIC_RESOURCE:
            if not resource.resource_name:
                result = _invalid("Default topic resources are not allowed: name the topic.")
        elif not _is_of_all_brokers(resource) and not (
            takes_loggers and resource.resource_type == BROKER_LOGGER_RESOURCE
        ):
            result = _of_other_resource(resource.resource_type, changes)
        wanted.append(_Wanted(resource, changes, result))
    return wanted


def setting_refusal(
    access: Access, context: RequestContext, operation: AclOperation, resource: Resource
) -> ErrorCode | None:
    """The error for a sender who may not see or change the resource's settings; None: he may, or it has none."""
    kind, name = resource.resource_type, resource.resource_name
    if kind == TOPIC_RESOURCE:
        return access.refusal(context, operation, ResourceType.TOPIC, name)
    if kind == _GROUP_RESOURCE:
        return access.refusal(context, operation, ResourceType.GROUP, name)
    return access.refusal(context, operation, ResourceType.CLUSTER)


def _deciding(
    decide: Callable[[Controller, ChangesT], MetadataDecision[R]], changes: ChangesT
) -> Callable[[Controller, Instant], MetadataDecision[R]]:
    return lambda shard, _now: decide(shard, changes)


def _is_of_all_brokers(resource: Resource) -> bool:
    return resource.resource_type == BROKER_RESOURCE and resource.resource_name == CLUSTER_DEFAULT


def _of_other_resource(resource_type: int, changes: Changes) -> TopicResult:
    """The result of a single broker, or of a resource that has no settings here."""
    if resource_type == BROKER_RESOURCE:
        if all(change.operation == DELETE for change in changes):
            return TopicResult(name=None)
        return _invalid(
            "The settings of a single broker come from its file or command line; those of all brokers, under the empty "
            "name, can be changed where topics inherit them."
        )
    if resource_type == _GROUP_RESOURCE:
        return _invalid("Groups have no settings: the consumer protocol of KIP-848 is not supported.")
    return _invalid(f"Settings of resource type {resource_type} are not supported: only of topics and brokers.")


def _invalid(message: str) -> TopicResult:
    return TopicResult(name=None, error=ErrorCode.invalid_request, message=message)
