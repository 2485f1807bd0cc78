"""AlterReplicaLogDirs: move replicas to another folder of this broker.

API: 34. Versions: 1-2.
Access: ALTER on Cluster.
Behaviour: there is one folder. A replica that is asked to be where it is has nothing to do; LOG_DIR_NOT_FOUND for any
other folder.
Version notes: none that matter here.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import ClassVar

from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.replicas.partitions import Partitions
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode, TopicPartition
from einmal.wire.api.alter_replica_log_dirs import (
    API,
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


@handler
class AlterReplicaLogDirsHandler:
    api: ClassVar = API
    access: Access
    partitions: Partitions
    directory: PurePosixPath

    async def handle(self, context: RequestContext, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
        refused = self.access.refusal(context, AclOperation.ALTER, ResourceType.CLUSTER)
        results: dict[str, dict[int, ErrorCode]] = {}
        async for directory in context.paced(request.dirs):
            async for topic in context.paced(directory.topics):
                errors = results.setdefault(topic.name, {})
                async for index in context.paced(topic.partitions):
                    errors[index] = refused or self._move(TopicPartition(topic.name, index), directory.path)
        return AlterReplicaLogDirsResponse(
            results=[
                AlterReplicaLogDirTopicResult(
                    topic,
                    [
                        AlterReplicaLogDirPartitionResult(index, error)
                        async for index, error in context.paced(errors.items())
                    ],
                )
                async for topic, errors in context.paced(results.items())
            ]
        )

    def _move(self, topic_partition: TopicPartition, path: str) -> ErrorCode:
        if PurePosixPath(path) != self.directory:
            return ErrorCode.log_dir_not_found
        is_here = self.partitions.get(topic_partition) is not None
        return ErrorCode.none if is_here else ErrorCode.unknown_topic_or_partition
