"""IncrementalAlterConfigs: change single settings of topics, or of all brokers.

API: 44. Versions: 0-1.
Behaviour: set, delete, append, subtract (KIP-339); takes effect at once. Of all brokers those settings can be changed
that topics inherit (KIP-226). A single broker's come from its command line: to take back what was set there, as
kafka-reassign-partitions does with its throttles, is always done already.
Version notes: none that matter here.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.metadata.configs import DELETE, ConfigChange
from einmal.metadata.image import BROKER_RESOURCE, CLUSTER_DEFAULT, TOPIC_RESOURCE
from einmal.metadata.topics import TopicResult
from einmal.types import ErrorCode

API_KEY: Final = 44
VERSIONS: Final = Versions(0, 1, flexible=1)
FORWARDED: Final = True
_GROUP_RESOURCE: Final = 32


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    metadata, validate_only = context.node.metadata, request.validate_only
    changes = [
        (resource.resource_name, _changes(resource))
        for resource in request.resources
        if resource.resource_type == TOPIC_RESOURCE
    ]
    results = await metadata.alter_topic_configs(changes, validate_only=validate_only)
    of_brokers: TopicResult | ErrorCode = TopicResult(name=CLUSTER_DEFAULT)
    for resource in request.resources:
        if is_of_all_brokers(resource):
            of_brokers = await metadata.alter_cluster_configs(_changes(resource), validate_only=validate_only)
    return answer(request, results, of_brokers)


def is_of_all_brokers(resource: Any) -> bool:
    return bool(resource.resource_type == BROKER_RESOURCE and resource.resource_name == CLUSTER_DEFAULT)


def answer(
    request: Any, of_topics: list[TopicResult] | ErrorCode, of_brokers: TopicResult | ErrorCode
) -> dict[str, Any]:
    """The answer's fields, in the order of the request."""
    remaining = iter(() if isinstance(of_topics, ErrorCode) else of_topics)
    responses = []
    for resource in request.resources:
        result: TopicResult | ErrorCode
        if resource.resource_type == TOPIC_RESOURCE:
            result = of_topics if isinstance(of_topics, ErrorCode) else next(remaining)
        elif is_of_all_brokers(resource):
            result = of_brokers
        else:
            result = _refused(resource)
        if isinstance(result, ErrorCode):
            result = TopicResult(name=None, error=result)
        responses.append(
            {
                "error_code": result.error,
                "error_message": result.message,
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
            }
        )
    return {"responses": responses}


def _changes(resource: Any) -> list[ConfigChange]:
    return [
        ConfigChange(name=item.name, operation=item.config_operation, value=item.value) for item in resource.configs
    ]


def _refused(resource: Any) -> TopicResult:
    if resource.resource_type == BROKER_RESOURCE:
        if all(getattr(item, "config_operation", None) == DELETE for item in resource.configs):
            return TopicResult(name=None)
        message = (
            "The settings of a single broker come from its file or command line; those of all brokers, under the empty "
            "name, can be changed where topics inherit them."
        )
    elif resource.resource_type == _GROUP_RESOURCE:
        message = "Groups have no settings: the consumer protocol of KIP-848 is not supported."
    else:
        message = f"Settings of resource type {resource.resource_type} are not supported: only of topics and brokers."
    return TopicResult(name=None, error=ErrorCode.invalid_request, message=message)
