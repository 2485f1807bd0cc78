"""ElectLeaders: elect preferred replicas, or any replica of a partition without a leader.

API: 43. Versions: 0-2.
Access: ALTER on Cluster.
Behaviour: answered when the elections are committed. An unclean one may lose records, and is logged.
Version notes: v0 knows preferred leaders only and has no error of the whole request; v1 the kind of election.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import ClassVar

from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.metadata.partitions import ElectionResult
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode, TopicPartition
from einmal.wire.api.elect_leaders import (
    API,
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)


@handler
class ElectLeadersHandler:
    api: ClassVar = API
    access: Access
    controller: ControllerRuntime

    async def handle(self, context: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
        if refused := self.access.refusal(context, AclOperation.ALTER, ResourceType.CLUSTER):
            return await _refused(context, request, refused)
        error = ErrorCode.none
        topics: dict[str, list[PartitionResult]] = {}
        async for asked in _chunks(context, request):
            results = await self._elect(request.election_type, asked)
            if isinstance(results, ErrorCode):
                # It is the error of the whole request, unless some elections were held before.
                error = error if topics else results
                results = [ElectionResult(item, results) for item in asked or ()]
            for result in results:
                topics.setdefault(result.topic_partition.topic, []).append(
                    PartitionResult(result.topic_partition.partition, result.error, result.message)
                )
        return ElectLeadersResponse(
            error_code=error,
            replica_election_results=[ReplicaElectionResult(topic, results) for topic, results in topics.items()],
        )

    async def _elect(self, kind: int, asked: list[TopicPartition] | None) -> list[ElectionResult] | ErrorCode:
        return await self.controller.submit(lambda shard, now: shard.elect_leaders(kind, asked))


async def _chunks(context: RequestContext, request: ElectLeadersRequest) -> AsyncIterator[list[TopicPartition] | None]:
    """None: all partitions."""
    topics = request.topic_partitions
    if topics is None:
        yield None
        return
    asked = (TopicPartition(topic.topic, partition) for topic in topics for partition in topic.partitions)
    async for chunk in context.paced_chunks(asked):
        yield chunk


async def _refused(context: RequestContext, request: ElectLeadersRequest, error: ErrorCode) -> ElectLeadersResponse:
    """The error for the whole request and, for version 0, for each partition."""
    results = []
    async for topic in context.paced(request.topic_partitions or ()):
        partitions = [PartitionResult(index, error) async for index in context.paced(topic.partitions)]
        results.append(ReplicaElectionResult(topic.topic, partitions))
    return ElectLeadersResponse(error_code=error, replica_election_results=results)
