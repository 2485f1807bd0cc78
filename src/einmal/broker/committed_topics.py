"""The topics of a request about offsets, as they were asked for: by name or by id.

Turns them into partitions that exist, and a shard's answer about those back into the shape of the request. Shared by
the handlers of OffsetCommit, TxnOffsetCommit and OffsetDelete. Knows no group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from einmal.groups.requests import OffsetToCommit, Response
from einmal.types import NO_LEADER_EPOCH, ErrorCode, TopicPartition

if TYPE_CHECKING:
    from einmal.broker.node import Node


class _Topic(NamedTuple):
    reference: dict[str, Any]
    """``name`` or ``topic_id``, as the answer must have it."""
    name: str | None
    unknown: ErrorCode
    partitions: tuple[int, ...]


class CommittedTopics:
    def __init__(self, node: Node, topics: tuple[Any, ...]) -> None:
        self._topics = [_reference(node, topic) for topic in topics]
        self._known: dict[TopicPartition, Any] = {}
        for topic, asked in zip(self._topics, topics, strict=True):
            known = None if topic.name is None else node.metadata.image.topics.get(topic.name)
            for partition in asked.partitions:
                if known is not None and 0 <= partition.partition_index < len(known.partitions):
                    self._known[TopicPartition(known.name, partition.partition_index)] = partition

    @property
    def known(self) -> tuple[TopicPartition, ...]:
        """The partitions that exist."""
        return tuple(self._known)

    @property
    def offsets(self) -> dict[TopicPartition, OffsetToCommit]:
        """What is to be committed, of a request that commits, for the partitions that exist."""
        return {
            topic_partition: OffsetToCommit(
                partition.committed_offset,
                getattr(partition, "committed_leader_epoch", NO_LEADER_EPOCH),
                partition.committed_metadata,
            )
            for topic_partition, partition in self._known.items()
        }

    def answer(self, response: Response | ErrorCode) -> dict[str, Any]:
        """The answer in the shape of the request; an ErrorCode is the error of every partition that exists."""
        errors = _by_partition(response)
        topics = []
        for topic in self._topics:
            partitions = []
            for index in topic.partitions:
                partition = TopicPartition(topic.name or "", index)
                error = errors(partition) if partition in self._known else topic.unknown
                partitions.append({"partition_index": index, "error_code": error})
            topics.append({**topic.reference, "partitions": partitions})
        return {"topics": topics}


def _by_partition(response: Response | ErrorCode) -> Callable[[TopicPartition], ErrorCode]:
    if isinstance(response, ErrorCode):
        return lambda partition: response
    errors = {
        TopicPartition(topic["name"], partition["partition_index"]): partition["error_code"]
        for topic in response["topics"]
        for partition in topic["partitions"]
    }
    return errors.__getitem__


def _reference(node: Node, topic: Any) -> _Topic:
    partitions = tuple(partition.partition_index for partition in topic.partitions)
    if not hasattr(topic, "topic_id"):
        return _Topic({"name": topic.name}, topic.name, ErrorCode.unknown_topic_or_partition, partitions)
    name = None if topic.topic_id is None else node.metadata.image.topic_names.get(topic.topic_id)
    unknown = ErrorCode.unknown_topic_id if name is None else ErrorCode.unknown_topic_or_partition
    return _Topic({"topic_id": topic.topic_id}, name, unknown, partitions)
