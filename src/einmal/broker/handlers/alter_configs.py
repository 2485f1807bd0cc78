"""AlterConfigs: give topics a whole new set of settings.

API: 33. Versions: 0-2.
Behaviour: settings that are not named go back to their default. Superseded by IncrementalAlterConfigs, still spoken.
Version notes: none that matter here.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.broker.handlers.incremental_alter_configs import answer
from einmal.metadata.image import TOPIC_RESOURCE

API_KEY: Final = 33
VERSIONS: Final = Versions(0, 2, flexible=2)
FORWARDED: Final = True


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    settings = [
        (resource.resource_name, {item.name: item.value for item in resource.configs})
        for resource in request.resources
        if resource.resource_type == TOPIC_RESOURCE
    ]
    results = await context.node.metadata.replace_topic_configs(settings, validate_only=request.validate_only)
    return answer(request, results)
