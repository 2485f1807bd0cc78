"""Settings of topics, and of all brokers together, as AlterConfigs and IncrementalAlterConfigs change them.

All topics of a request are one decision of the controller, and so is each resource that stands for all brokers. The two
APIs differ in what a resource asks for, and in the methods of the controller that decide it. A single broker's settings
come from its file or command line, so they cannot be changed here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, Protocol, TypeVar

from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.authorization.permitted_items import PermittedItems, permitted_items
from einmal.broker.front.context import RequestContext
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
    changes_of: Callable[[ResourceT], ChangesT],
    decide_topics: Callable[[Controller, Sequence[tuple[str, ChangesT]]], MetadataDecision[list[TopicResult]]],
    decide_brokers: Callable[[Controller, ChangesT], MetadataDecision[TopicResult]],
    only_deletes: Callable[[ResourceT], bool] = lambda _: False,
) -> AsyncIterator[tuple[ResourceT, TopicResult]]:
    """The resources in their order, each with its result. ``only_deletes``: it takes settings back, no more."""
    changes = [
        (resource.resource_name, changes_of(resource))
        async for resource in context.paced(asked.permitted)
        if resource.resource_type == TOPIC_RESOURCE
    ]
    of_topics = await controller.submit(_deciding(decide_topics, changes))
    of_brokers: TopicResult | ErrorCode = TopicResult(name=CLUSTER_DEFAULT)
    async for resource in context.paced(asked.permitted):
        if _is_of_all_brokers(resource):
            of_brokers = await controller.submit(_deciding(decide_brokers, changes_of(resource)))
    remaining = iter(() if isinstance(of_topics, ErrorCode) else of_topics)
    async for resource, refused in context.paced(asked):
        result: TopicResult | ErrorCode
        if refused is not None:
            result = refused
        elif resource.resource_type == TOPIC_RESOURCE:
            result = of_topics if isinstance(of_topics, ErrorCode) else next(remaining)
        elif _is_of_all_brokers(resource):
            result = of_brokers
        else:
            result = _refused(resource.resource_type, only_deletes=only_deletes(resource))
        yield resource, TopicResult(name=None, error=result) if isinstance(result, ErrorCode) else result


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


def _refused(resource_type: int, *, only_deletes: bool) -> TopicResult:
    if resource_type == BROKER_RESOURCE:
        if only_deletes:
            return TopicResult(name=None)
        message = (
            "The settings of a single broker come from its file or command line; those of all brokers, under the empty "
            "name, can be changed where topics inherit them."
        )
    elif resource_type == _GROUP_RESOURCE:
        message = "Groups have no settings: the consumer protocol of KIP-848 is not supported."
    else:
        message = f"Settings of resource type {resource_type} are not supported: only of topics and brokers."
    return TopicResult(name=None, error=ErrorCode.invalid_request, message=message)
