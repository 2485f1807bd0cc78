"""DescribeLogDirs: how much each partition takes on disk.

API: 35. Versions: 1-4.
Access: DESCRIBE on Cluster.
Behaviour: the one folder of this broker. Sizes of the volume are not reported (-1), as by brokers before them.
Version notes: v3 a top-level error; v4 sizes of the volume.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import ClassVar

from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.replicas.partitions import Partitions
from einmal.security.acl import AclOperation, ResourceType
from einmal.wire.api.describe_log_dirs import (
    API,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


@handler
class DescribeLogDirsHandler:
    api: ClassVar = API
    access: Access
    partitions: Partitions
    directory: PurePosixPath

    async def handle(self, context: RequestContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
        if refused := self.access.refusal(context, AclOperation.DESCRIBE, ResourceType.CLUSTER):
            return DescribeLogDirsResponse(error_code=refused)
        wanted: dict[str, frozenset[int]] | None = None
        if request.topics is not None:
            wanted = {topic.topic: frozenset(topic.partitions) for topic in request.topics}
        topics: dict[str, list[DescribeLogDirsPartition]] = {}
        async for partition in context.paced(self.partitions):
            topic, index = partition.topic_partition
            if wanted is None or index in wanted.get(topic, ()):
                described = DescribeLogDirsPartition(partition_index=index, partition_size=partition.log_size)
                topics.setdefault(topic, []).append(described)
        return DescribeLogDirsResponse(
            results=[
                DescribeLogDirsResult(
                    log_dir=str(self.directory),
                    topics=[DescribeLogDirsTopic(name, partitions) for name, partitions in topics.items()],
                    total_bytes=-1,
                    usable_bytes=-1,
                )
            ]
        )
