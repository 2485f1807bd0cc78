"""AlterConfigs: replace all settings of topics, or of all brokers.

API: 33. Versions: 0-2.
Access: ALTER_CONFIGS on Topic, ALTER_CONFIGS on Group, ALTER_CONFIGS on Cluster: by the type of resource.
Behaviour: settings that are not named return to their defaults. INVALID_REQUEST for a resource, or a setting of one,
that is named twice. Superseded by IncrementalAlterConfigs, whose documentation lists the settings that can be changed.
Version notes: none that matter here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.front.topics.changed_settings import change_settings, changeable
from einmal.metadata.configs import SET, ConfigChange
from einmal.wire.api.alter_configs import (
    API,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


@handler
class AlterConfigsHandler:
    api: ClassVar = API
    access: Access
    controller: ControllerRuntime

    async def handle(self, context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
        validate_only = request.validate_only
        changed = change_settings(
            context,
            self.controller,
            await changeable(context, self.access, request.resources),
            changes_of=_changes,
            decide_topics=lambda shard, topics: shard.replace_topic_configs(
                [(name, _settings(changes)) for name, changes in topics], validate_only=validate_only
            ),
            decide_brokers=lambda shard, changes: shard.replace_cluster_configs(
                _settings(changes), validate_only=validate_only
            ),
        )
        responses = [
            AlterConfigsResourceResponse(result.error, result.message, resource.resource_type, resource.resource_name)
            async for resource, result in changed
        ]
        return AlterConfigsResponse(responses=responses)


def _changes(resource: AlterConfigsResource) -> list[ConfigChange]:
    return [ConfigChange(name=item.name, operation=SET, value=item.value) for item in resource.configs]


def _settings(changes: Sequence[ConfigChange]) -> dict[str, str | None]:
    return {change.name: change.value for change in changes}
