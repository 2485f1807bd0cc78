"""IncrementalAlterConfigs: change single settings of topics or of all brokers, or log levels of this broker.

API: 44. Versions: 0-1.
Access: ALTER_CONFIGS on Topic, ALTER_CONFIGS on Group, ALTER_CONFIGS on Cluster: by the type of resource.
Behaviour: set, delete, append, subtract (KIP-339); takes effect at once. INVALID_REQUEST for a resource, or a setting
of one, that is named twice. Of all brokers those settings can be changed that topics inherit (KIP-226). A single
broker's come from its command line: to take back what was set there, as kafka-reassign-partitions does with its
throttles, is always done already. Log levels (BROKER_LOGGER, KIP-412) are the addressed broker's own and not kept: a
request that names some is answered here, and its topics have NOT_CONTROLLER unless this node is the active controller.
Version notes: none that matter here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from einmal.broker.config import BrokerConfig
from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.broker_loggers import BROKER_LOGGER_RESOURCE, alter_loggers
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.front.topics.changed_settings import change_settings, changeable
from einmal.metadata.configs import ConfigChange
from einmal.metadata.topics import TopicResult
from einmal.types import ErrorCode
from einmal.wire.api.incremental_alter_configs import (
    API,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

_LOOKED_AT: Final = 1_000
"""Log levels behind so many other resources are not looked for: the controller has another id and refuses them."""


@handler
class IncrementalAlterConfigsHandler:
    api: ClassVar = API
    config: BrokerConfig
    access: Access
    controller: ControllerRuntime

    async def handle(
        self, context: RequestContext, request: IncrementalAlterConfigsRequest
    ) -> IncrementalAlterConfigsResponse:
        validate_only = request.validate_only
        changed = change_settings(
            context,
            self.controller,
            await changeable(context, self.access, request.resources),
            changes_of=_changes,
            decide_topics=lambda shard, changes: shard.alter_topic_configs(changes, validate_only=validate_only),
            decide_brokers=lambda shard, changes: shard.alter_cluster_configs(changes, validate_only=validate_only),
            alter_loggers=lambda name, changes: self._alter_loggers(name, changes, validate_only),
        )
        responses = [
            AlterConfigsResourceResponse(result.error, result.message, resource.resource_type, resource.resource_name)
            async for resource, result in changed
        ]
        return IncrementalAlterConfigsResponse(responses=responses)

    def is_of_this_node(self, request: IncrementalAlterConfigsRequest) -> bool:
        return any(item.resource_type == BROKER_LOGGER_RESOURCE for item in request.resources[:_LOOKED_AT])

    def _alter_loggers(self, name: str, changes: Sequence[ConfigChange], validate_only: bool) -> TopicResult:
        if name == str(self.config.node_id):
            return alter_loggers(changes, validate_only=validate_only)
        message = f"Unexpected node id. Expected {self.config.node_id}, but received {name}"
        return TopicResult(name=None, error=ErrorCode.invalid_request, message=message)


def _changes(resource: AlterConfigsResource) -> list[ConfigChange]:
    return [
        ConfigChange(name=item.name, operation=item.config_operation, value=item.value) for item in resource.configs
    ]
