"""CreateTopics: make topics, with settings.

API: 19. Versions: 2-7.
Access: CREATE on Cluster, or CREATE on Topic; DESCRIBE_CONFIGS on Topic for the settings in the answer.
Behaviour: answered when the topics are committed in the metadata log and can be written to, or with the reason why not.
Version notes: v4 -1 for the cluster's default counts; v5 the answer has counts and settings; v6 refuses topics
beyond a quota; v7 topic ids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final
from uuid import UUID

from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.authorization.permitted_items import permitted_items
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.front.quotas.client_throttles import ClientThrottles
from einmal.broker.front.topics.made_partitions import MadePartitions
from einmal.broker.front.topics.mutation_quota import MutationQuota
from einmal.broker.front.topics.setting_descriptions import SettingDescriptions
from einmal.broker.replicas.partitions import Partitions
from einmal.metadata.topics import NewTopic, TopicResult
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode
from einmal.wire.api.create_topics import (
    API,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

_FIRST_STRICT: Final = 6
"""From this version on topics beyond a quota are refused with THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


@handler
class CreateTopicsHandler:
    api: ClassVar = API
    access: Access
    controller: ControllerRuntime
    partitions: Partitions
    settings: SettingDescriptions
    new_uuid: Callable[[], UUID]
    throttles: ClientThrottles

    async def handle(self, context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
        creates_all = self.access.allows(context, AclOperation.CREATE, ResourceType.CLUSTER, is_filter=True)
        asked = await permitted_items(
            context, request.topics, lambda topic: None if creates_all else self._refusal(context, topic.name)
        )
        topics = [
            NewTopic(
                name=topic.name,
                topic_id=self.new_uuid(),
                partitions=topic.num_partitions,
                replication_factor=topic.replication_factor,
                assignments=[(item.partition_index, item.broker_ids) for item in topic.assignments],
                configs={item.name: item.value for item in topic.configs},
            )
            async for topic in context.paced(asked.permitted)
        ]
        quota = MutationQuota(self.throttles, context, _FIRST_STRICT)
        made = MadePartitions(self.partitions)
        results = await self.controller.submit(
            lambda shard, _: shard.create_topics(topics, validate_only=request.validate_only, admits=quota.admits)
        )
        if isinstance(results, ErrorCode):
            results = [TopicResult(name=topic.name, error=results) for topic in topics]
        results = asked.merge(results, lambda topic, refused: TopicResult(name=topic.name, error=refused))
        shown = _ShownSettings(self.settings)
        answers = [self._result(context, result, shown) async for result in context.paced(made.results(results))]
        return CreateTopicsResponse(quota.throttle_ms, answers)

    def _refusal(self, context: RequestContext, name: str) -> ErrorCode | None:
        return self.access.refusal(context, AclOperation.CREATE, ResourceType.TOPIC, name)

    def _result(self, context: RequestContext, result: TopicResult, shown: _ShownSettings) -> CreatableTopicResult:
        if result.error is not ErrorCode.none:
            return _described(result, [])
        name = result.name or ""
        if refused := self.access.refusal(context, AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, name):
            return CreatableTopicResult(name=name, topic_id=result.topic_id, topic_config_error_code=refused)
        return _described(result, shown.of_topic(name))


class _ShownSettings:
    """Settings of the topics of one answer: most have none of their own, and share one list of those that hold."""

    def __init__(self, settings: SettingDescriptions) -> None:
        self._settings = settings
        self._shown: dict[frozenset[tuple[str, str]], list[CreatableTopicConfigs]] = {}

    def of_topic(self, name: str) -> list[CreatableTopicConfigs]:
        own = frozenset(self._settings.metadata.image.topic_configs(name).items())
        if own not in self._shown:
            self._shown[own] = [
                CreatableTopicConfigs(
                    setting.name, setting.value, setting.read_only, setting.config_source, setting.is_sensitive
                )
                for setting in self._settings.of_topic(name, None)
            ]
        return self._shown[own]


def _described(result: TopicResult, settings: list[CreatableTopicConfigs]) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=result.name or "",
        topic_id=result.topic_id,
        error_code=result.error,
        error_message=result.message,
        num_partitions=result.partitions,
        replication_factor=result.replication_factor,
        configs=settings,
    )
