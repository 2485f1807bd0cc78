"""DescribeLogDirs: how much each partition takes on disk.

API: 35. Versions: 1-4.
Behaviour: the one folder of this broker. Sizes of the volume are not reported (-1), as by brokers before them.
Version notes: v3 a top-level error; v4 sizes of the volume.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.types import ErrorCode

API_KEY: Final = 35
VERSIONS: Final = Versions(1, 4, flexible=2)


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    wanted: dict[str, frozenset[int]] | None = None
    if request.topics is not None:
        wanted = {topic.topic: frozenset(topic.partitions) for topic in request.topics}
    topics: dict[str, list[dict[str, Any]]] = {}
    async for partition in context.paced(context.node.partitions):
        topic, index = partition.topic_partition
        if wanted is None or index in wanted.get(topic, ()):
            topics.setdefault(topic, []).append(
                {
                    "partition_index": index,
                    "partition_size": partition.log.size(),
                    "offset_lag": 0,
                    "is_future_key": False,
                }
            )
    return {
        "error_code": ErrorCode.none,
        "results": [
            {
                "error_code": ErrorCode.none,
                "log_dir": str(context.node.directory),
                "topics": [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()],
                "total_bytes": -1,
                "usable_bytes": -1,
            }
        ],
    }
