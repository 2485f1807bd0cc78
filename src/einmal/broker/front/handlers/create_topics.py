"""CreateTopics: make topics, with settings.

API: 19. Versions: 2-7.
Behaviour: answered when the topics are committed in the metadata log and can be written to.
Version notes: v4 -1 for the cluster's default counts; v5 the answer has counts and settings; v6 refuses topics
beyond a quota; v7 topic ids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final
from uuid import UUID

from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.front.client_throttles import ClientThrottles
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.front.mutation_quota import MutationQuota
from einmal.broker.front.setting_descriptions import SettingDescriptions
from einmal.metadata.topics import NewTopic, TopicResult
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
    controller: ControllerRuntime
    settings: SettingDescriptions
    new_uuid: Callable[[], UUID]
    throttles: ClientThrottles

    async def handle(self, context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
        topics = [
            NewTopic(
                name=topic.name,
                topic_id=self.new_uuid(),
                partitions=topic.num_partitions,
                replication_factor=topic.replication_factor,
                assignments={item.partition_index: item.broker_ids for item in topic.assignments},
                configs={item.name: item.value for item in topic.configs},
            )
            async for topic in context.paced(request.topics)
        ]
        quota = MutationQuota(self.throttles, context, _FIRST_STRICT)
        results = await self.controller.submit(
            lambda shard, _: shard.create_topics(topics, validate_only=request.validate_only, admits=quota.admits)
        )
        if isinstance(results, ErrorCode):
            results = [TopicResult(name=topic.name, error=results) for topic in topics]
        answers = [self._result(result) async for result in context.paced(results)]
        return CreateTopicsResponse(quota.throttle_ms, answers)

    def _result(self, result: TopicResult) -> CreatableTopicResult:
        described = self.settings.of_topic(result.name or "", None) if result.error is ErrorCode.none else ()
        return CreatableTopicResult(
            name=result.name or "",
            topic_id=result.topic_id,
            error_code=result.error,
            error_message=result.message,
            num_partitions=result.partitions,
            replication_factor=result.replication_factor,
            configs=[
                CreatableTopicConfigs(each.name, each.value, each.read_only, each.config_source, each.is_sensitive)
                for each in described
            ],
        )
