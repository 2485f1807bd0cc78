"""AlterConfigs: give topics, or all brokers, a whole new set of settings.

API: 33. Versions: 0-2.
Behaviour: settings that are not named go back to their default. Superseded by IncrementalAlterConfigs, which says what
can be changed.
Version notes: none that matter here.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.broker.handlers.incremental_alter_configs import answer, is_of_all_brokers
from einmal.metadata.image import CLUSTER_DEFAULT, TOPIC_RESOURCE
from einmal.metadata.topics import TopicResult
from einmal.types import ErrorCode

API_KEY: Final = 33
VERSIONS: Final = Versions(0, 2, flexible=2)
FORWARDED: Final = True


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    metadata, validate_only = context.node.metadata, request.validate_only
    settings = [
        (resource.resource_name, _settings(resource))
        for resource in request.resources
        if resource.resource_type == TOPIC_RESOURCE
    ]
    results = await metadata.replace_topic_configs(settings, validate_only=validate_only)
    of_brokers: TopicResult | ErrorCode = TopicResult(name=CLUSTER_DEFAULT)
    for resource in request.resources:
        if is_of_all_brokers(resource):
            of_brokers = await metadata.replace_cluster_configs(_settings(resource), validate_only=validate_only)
    return answer(request, results, of_brokers)


def _settings(resource: Any) -> dict[str, str | None]:
    return {item.name: item.value for item in resource.configs}
