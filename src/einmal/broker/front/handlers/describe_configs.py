"""DescribeConfigs: the settings of topics, of this broker, and of all brokers, and the log levels of this broker.

API: 32. Versions: 1-4.
Access: DESCRIBE_CONFIGS on Topic, DESCRIBE_CONFIGS on Group, DESCRIBE_CONFIGS on Cluster: by the type of resource.
Behaviour: every setting with its value and source; synonyms and documentation on request. A broker's settings are
read-only, but for those that topics inherit, which can be changed for all brokers. A resource BROKER_LOGGER has the
level of each logger (KIP-412).
Version notes: v1 sources and synonyms; v3 types and documentation.
"""

from __future__ import annotations

from typing import ClassVar

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.config import BrokerConfig
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.broker_loggers import BROKER_LOGGER_RESOURCE, describe_loggers
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.front.topics.changed_settings import setting_refusal
from einmal.broker.front.topics.setting_descriptions import SettingDescriptions
from einmal.metadata.image import BROKER_RESOURCE, CLUSTER_DEFAULT, TOPIC_RESOURCE
from einmal.metadata.topics import error_of_absent
from einmal.security.acl import AclOperation
from einmal.types import ErrorCode
from einmal.wire.api.describe_configs import (
    API,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)


@handler
class DescribeConfigsHandler:
    api: ClassVar = API
    access: Access
    config: BrokerConfig
    metadata: ClusterMetadata
    settings: SettingDescriptions

    async def handle(self, context: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        # A resource that is named twice is described once: its description is a hundred times as long as its name.
        named = {(item.resource_type, item.resource_name): item for item in request.resources}
        return DescribeConfigsResponse(
            results=[self._result(context, request, item) async for item in context.paced(named.values())]
        )

    def _result(
        self, context: RequestContext, request: DescribeConfigsRequest, item: DescribeConfigsResource
    ) -> DescribeConfigsResult:
        refused = setting_refusal(self.access, context, AclOperation.DESCRIBE_CONFIGS, item)
        described = DescribeConfigsResult(error_code=refused) if refused else self._describe(item)
        configs = [
            entry._replace(
                synonyms=entry.synonyms if request.include_synonyms else (),
                documentation=entry.documentation if request.include_documentation else None,
            )
            for entry in described.configs
        ]
        return described._replace(resource_type=item.resource_type, resource_name=item.resource_name, configs=configs)

    def _describe(self, resource: DescribeConfigsResource) -> DescribeConfigsResult:
        # As in Apache Kafka, an empty list asks for all.
        kind, name, keys = resource.resource_type, resource.resource_name, resource.configuration_keys or None
        if kind == TOPIC_RESOURCE:
            if name not in self.metadata.image.topics:
                return DescribeConfigsResult(error_code=error_of_absent(name))
            return DescribeConfigsResult(configs=self.settings.of_topic(name, keys))
        if kind == BROKER_RESOURCE and name == CLUSTER_DEFAULT:
            return DescribeConfigsResult(configs=self.settings.of_cluster(keys))
        if kind in (BROKER_RESOURCE, BROKER_LOGGER_RESOURCE):
            if name != str(self.config.node_id):
                message = f"Unexpected broker id, expected {self.config.node_id}, but received {name}"
                return DescribeConfigsResult(error_code=ErrorCode.invalid_request, error_message=message)
            configs = self.settings.of_broker(keys) if kind == BROKER_RESOURCE else describe_loggers(keys)
            return DescribeConfigsResult(configs=configs)
        message = f"Unsupported resource type: {kind}"
        return DescribeConfigsResult(error_code=ErrorCode.invalid_request, error_message=message)
