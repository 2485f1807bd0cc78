"""Partitions that exist and answers in the shape of the request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest

from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.topics.committed_topics import CommittedTopics, by_partition, to_commit
from einmal.broker.resources.turns import Turns
from einmal.groups.requests import OffsetToCommit
from einmal.metadata.image import ClusterImage
from einmal.metadata.records import MetadataRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from einmal.seams import SystemClock
from einmal.types import BrokerId, ErrorCode, LeaderEpoch, TopicPartition
from einmal.wire.api.offset_commit import (
    OffsetCommitRequestPartition,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from einmal.wire.messages import RequestHeader


def created(name: str, number: int, partitions: int = 1) -> list[MetadataRecord]:
    """The records of a topic that is created, under the id of a number."""
    topic_id, replicas = UUID(int=number), (BrokerId(1),)
    return [
        TopicRecord(name, topic_id),
        *(
            PartitionRecord(index, topic_id, replicas, replicas, BrokerId(1), LeaderEpoch(0), 0)
            for index in range(partitions)
        ),
    ]


NOBODY = UUID(int=99)
IMAGE = ClusterImage()
IMAGE.apply(created("t", 1, 2))
CONTEXT = RequestContext(RequestHeader(8, 8, 0, None), "client", Turns(SystemClock()))


def topics(
    *asked: tuple[str | UUID, list[int]], image: ClusterImage = IMAGE
) -> CommittedTopics[OffsetCommitRequestPartition]:
    partitions = [
        (name, [OffsetCommitRequestPartition(index, 10 + index, committed_metadata="m") for index in indexes])
        for name, indexes in asked
    ]
    resolved = CommittedTopics(CONTEXT, Access(None), partitions)
    asyncio.run(resolved.resolve(image))
    return resolved


def errors(
    asked: CommittedTopics[OffsetCommitRequestPartition], answer: Mapping[TopicPartition, ErrorCode] | ErrorCode
) -> list[list[tuple[int, ErrorCode]]]:
    return asyncio.run(asked.responses(answer, lambda index, error: (index, error)))


def test_only_partitions_that_exist_are_committed() -> None:
    known = topics(("t", [1, 2, -1]), ("u", [0]), (NOBODY, [0])).known
    assert to_commit(known) == {TopicPartition("t", 1): OffsetToCommit(11, -1, "m")}


def test_the_answer_has_the_shape_of_the_request() -> None:
    asked = topics(("t", [0, 2]), ("u", [0]), (NOBODY, [0]))
    unknown = ErrorCode.unknown_topic_or_partition
    assert errors(asked, ErrorCode.not_coordinator) == [
        [(0, ErrorCode.not_coordinator), (2, unknown)],
        [(0, unknown)],
        [(0, ErrorCode.unknown_topic_id)],
    ]
    answered = OffsetCommitResponseTopic(name="t", partitions=[OffsetCommitResponsePartition(0, ErrorCode.none)])
    assert errors(asked, by_partition([answered]))[0] == [(0, ErrorCode.none), (2, unknown)]


def test_a_topic_that_was_deleted_meanwhile_is_unknown_also_if_another_has_its_name() -> None:
    image = ClusterImage()
    image.apply([*created("kept", 1), *created("deleted", 2), *created("recreated", 3)])
    asked = topics(("kept", [0]), ("deleted", [0]), ("recreated", [0]), image=image)
    image.apply([RemoveTopicRecord(UUID(int=2)), RemoveTopicRecord(UUID(int=3)), *created("recreated", 4)])
    asked.forget_deleted(image)
    assert list(asked.known) == [TopicPartition("kept", 0)]
    unknown = ErrorCode.unknown_topic_or_partition
    assert errors(asked, ErrorCode.none) == [[(0, ErrorCode.none)], [(0, unknown)], [(0, unknown)]]


def test_a_topic_that_is_asked_for_by_id_is_not_another_that_has_its_name_by_the_time_it_is_looked_up() -> None:
    image = ClusterImage()
    image.apply([*created("kept", 1), *created("recreated", 2)])
    requested = [(UUID(int=number), [OffsetCommitRequestPartition(0, 5)]) for number in (1, 2)]
    asked = CommittedTopics(CONTEXT, Access(None), requested)
    image.apply([RemoveTopicRecord(UUID(int=2)), *created("recreated", 3)])
    asyncio.run(asked.resolve(image))
    asked.forget_deleted(image)
    assert list(asked.known) == [TopicPartition("kept", 0)]
    assert errors(asked, ErrorCode.none) == [[(0, ErrorCode.none)], [(0, ErrorCode.unknown_topic_id)]]


def test_the_id_of_a_topic_that_is_deleted_after_it_was_looked_up_is_unknown() -> None:
    image = ClusterImage()
    image.apply(created("recreated", 1))
    asked = topics((UUID(int=1), [0, 1]), image=image)
    unknown = ErrorCode.unknown_topic_or_partition
    assert errors(asked, ErrorCode.none) == [[(0, ErrorCode.none), (1, unknown)]]
    image.apply([RemoveTopicRecord(UUID(int=1)), *created("recreated", 2)])
    asked.forget_deleted(image)
    assert errors(asked, ErrorCode.none) == [[(0, ErrorCode.unknown_topic_id), (1, ErrorCode.unknown_topic_id)]]


@pytest.mark.parametrize("mentions", [("t", "t"), (UUID(int=1), UUID(int=2))], ids=["by name", "by id"])
def test_a_topic_that_another_replaces_between_two_mentions_is_unknown(mentions: tuple[str | UUID, ...]) -> None:
    image = ClusterImage()
    image.apply([*created("t", 1, 2), *created("between", 3)])

    class Recreating(Access):
        def refusal(self, *asked: Any) -> ErrorCode | None:
            if "between" in asked:
                image.apply([RemoveTopicRecord(UUID(int=1)), *created("t", 2, 2)])
            return super().refusal(*asked)

    first, second = mentions
    requested: list[tuple[str | UUID, list[OffsetCommitRequestPartition]]] = [
        (first, [OffsetCommitRequestPartition(0, 5)]),
        ("between", []),
        (second, [OffsetCommitRequestPartition(1, 5)]),
    ]
    asked = CommittedTopics(CONTEXT, Recreating(None), requested)
    asyncio.run(asked.resolve(image))
    asked.forget_deleted(image)
    assert asked.known == {}
