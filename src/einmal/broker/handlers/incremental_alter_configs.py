"""IncrementalAlterConfigs: change single settings of topics.

API: 44. Versions: 0-1.
Behaviour: set, delete, append, subtract (KIP-339); takes effect at once. A broker's settings come from its command line
only: to take back what was set here, as kafka-reassign-partitions does with its throttles, is always done already.
Version notes: none that matter here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.metadata.configs import DELETE, ConfigChange
from einmal.metadata.image import BROKER_RESOURCE, CLUSTER_DEFAULT, TOPIC_RESOURCE
from einmal.metadata.topics import TopicResult
from einmal.types import ErrorCode

API_KEY: Final = 44
VERSIONS: Final = Versions(0, 1, flexible=1)
FORWARDED: Final = True


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    changes = [
        (
            resource.resource_name,
            [
                ConfigChange(name=item.name, operation=item.config_operation, value=item.value)
                for item in resource.configs
            ],
        )
        for resource in request.resources
        if resource.resource_type == TOPIC_RESOURCE
    ]
    results = await context.node.metadata.alter_topic_configs(changes, validate_only=request.validate_only)
    return answer(request, results, is_no_change=_takes_back_at_a_broker)


def answer(
    request: Any, results: list[TopicResult] | ErrorCode, *, is_no_change: Callable[[Any], bool] = lambda _: False
) -> dict[str, Any]:
    """The answer's fields: topics in the order of the request, other resources refused unless nothing changes there."""
    of_topics = iter(results) if not isinstance(results, ErrorCode) else None
    responses = []
    for resource in request.resources:
        if is_no_change(resource):
            error, message = ErrorCode.none, None
        elif resource.resource_type != TOPIC_RESOURCE:
            error, message = ErrorCode.invalid_request, "Only the settings of topics can be altered."
        elif of_topics is None:
            assert isinstance(results, ErrorCode)
            error, message = results, None
        else:
            result = next(of_topics)
            error, message = result.error, result.message
        responses.append(
            {
                "error_code": error,
                "error_message": message,
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
            }
        )
    return {"responses": responses}


def _takes_back_at_a_broker(resource: Any) -> bool:
    return (
        resource.resource_type == BROKER_RESOURCE
        and resource.resource_name != CLUSTER_DEFAULT
        and all(item.config_operation == DELETE for item in resource.configs)
    )
