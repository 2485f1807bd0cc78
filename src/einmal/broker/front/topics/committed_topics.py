"""The topics of a request about offsets, as they were asked for: by name or by id.

Turns them into partitions that exist and that the sender may read, and a shard's answer about those back into the shape
of the request. Shared by the handlers of OffsetCommit, TxnOffsetCommit and OffsetDelete. Knows no group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar
from uuid import UUID

from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.groups.requests import OffsetToCommit
from einmal.metadata.image import ClusterImage
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode, TopicPartition


class _Asked(Protocol):
    @property
    def partition_index(self) -> int: ...


class _Committed(_Asked, Protocol):
    @property
    def committed_offset(self) -> int: ...
    @property
    def committed_leader_epoch(self) -> int: ...
    @property
    def committed_metadata(self) -> str | None: ...


class _Answered(_Asked, Protocol):
    @property
    def error_code(self) -> ErrorCode: ...


class _AnsweredTopic(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def partitions(self) -> Sequence[_Answered]: ...


P = TypeVar("P", bound=_Asked)
R = TypeVar("R")


class CommittedTopics(Generic[P]):
    """``topics``: their names or ids, and what is asked of each partition."""

    def __init__(
        self, context: RequestContext, access: Access, topics: Iterable[tuple[str | UUID, Sequence[P]]]
    ) -> None:
        self._context = context
        self._access = access
        self._topics = tuple(topics)
        self.known: dict[TopicPartition, P] = {}
        """The partitions that exist and may be read, once they are resolved."""
        self._ids: dict[str, UUID] = {}
        """The ids of the topics that exist."""
        self._names: dict[str | UUID, str] = {}
        """The names of the topics that exist and may be read, by what was asked for."""
        self._refused: dict[str | UUID, ErrorCode] = {}
        """The topics that may not be read, by what was asked for: names, whether they exist or not."""

    async def resolve(self, image: ClusterImage) -> None:
        """Look up what exists."""
        async for asked, partitions in self._context.paced(self._topics):
            name = image.name_of_topic(asked)
            if name is None:
                continue
            if refused := self._access.refusal(self._context, AclOperation.READ, ResourceType.TOPIC, name):
                self._refused[asked] = refused
                continue
            topic = image.topics.get(name)
            # One that got the name since another of the request is not that one.
            if topic is None or self._ids.setdefault(name, topic.topic_id) != topic.topic_id:
                continue
            self._names[asked] = name
            async for partition in self._context.paced(partitions):
                if 0 <= partition.partition_index < len(topic.partitions):
                    self.known[TopicPartition(topic.name, partition.partition_index)] = partition

    def forget_deleted(self, image: ClusterImage) -> None:
        """Forget topics that were deleted since they were resolved: what has the name by now is another topic.

        To be called without a wait before the shard decides, which forgets the offsets of deleted topics only once.
        """
        gone = {
            name
            for name, topic_id in self._ids.items()
            if name not in image.topics or image.topics[name].topic_id != topic_id
        }
        if gone:
            self._names = {asked: name for asked, name in self._names.items() if name not in gone}
            self.known = {partition: asked for partition, asked in self.known.items() if partition.topic not in gone}

    async def responses(
        self, answer: Mapping[TopicPartition, ErrorCode] | ErrorCode, response: Callable[[int, ErrorCode], R]
    ) -> list[list[R]]:
        """The ``response`` for each partition, from index and error, topic by topic.

        An ErrorCode is the error of all partitions that exist.
        """
        responses = []
        async for topic, partitions in self._context.paced(self._topics):
            name = self._names.get(topic)
            is_id_unknown = isinstance(topic, UUID) and name is None
            unknown = ErrorCode.unknown_topic_id if is_id_unknown else ErrorCode.unknown_topic_or_partition
            unknown = self._refused.get(topic, unknown)
            of_topic = []
            async for asked in self._context.paced(partitions):
                partition = TopicPartition(name or "", asked.partition_index)
                error = unknown
                if partition in self.known:
                    error = answer if isinstance(answer, ErrorCode) else answer[partition]
                of_topic.append(response(asked.partition_index, error))
            responses.append(of_topic)
        return responses

    async def all_refused(self, error: ErrorCode, response: Callable[[int, ErrorCode], R]) -> list[list[R]]:
        """The ``response`` for each partition, whether it exists or not."""
        return [
            [response(asked.partition_index, error) async for asked in self._context.paced(partitions)]
            async for _name, partitions in self._context.paced(self._topics)
        ]


def to_commit(known: Mapping[TopicPartition, _Committed]) -> dict[TopicPartition, OffsetToCommit]:
    """Return what is to be committed for the partitions that exist."""
    return {
        partition: OffsetToCommit(asked.committed_offset, asked.committed_leader_epoch, asked.committed_metadata)
        for partition, asked in known.items()
    }


def by_partition(topics: Iterable[_AnsweredTopic]) -> dict[TopicPartition, ErrorCode]:
    """Return the errors that a shard has answered, by partition."""
    return {
        TopicPartition(topic.name, partition.partition_index): partition.error_code
        for topic in topics
        for partition in topic.partitions
    }
