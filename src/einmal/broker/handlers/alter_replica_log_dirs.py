"""AlterReplicaLogDirs: move replicas to another folder of this broker.

API: 34. Versions: 1-2.
Behaviour: there is one folder. A replica that is asked to be where it is has nothing to do; LOG_DIR_NOT_FOUND for any
other folder.
Version notes: none that matter here.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.types import ErrorCode, TopicPartition

API_KEY: Final = 34
VERSIONS: Final = Versions(1, 2, flexible=2)


def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    results: dict[str, dict[int, ErrorCode]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            errors = results.setdefault(topic.name, {})
            for index in topic.partitions:
                errors[index] = _move(context, TopicPartition(topic.name, index), directory.path)
    return {
        "results": [
            {
                "topic_name": topic,
                "partitions": [{"partition_index": index, "error_code": error} for index, error in errors.items()],
            }
            for topic, errors in results.items()
        ]
    }


def _move(context: RequestContext, topic_partition: TopicPartition, path: str) -> ErrorCode:
    if PurePosixPath(path) != context.node.directory:
        return ErrorCode.log_dir_not_found
    partitions = context.node.partitions
    return ErrorCode.none if partitions.get(topic_partition) is not None else ErrorCode.unknown_topic_or_partition
