"""Partitions that exist and answers in the shape of the request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.topics.committed_topics import CommittedTopics, by_partition, to_commit
from einmal.broker.resources.turns import Turns
from einmal.groups.requests import OffsetToCommit
from einmal.seams import SystemClock
from einmal.types import ErrorCode, TopicPartition
from einmal.wire.api.offset_commit import (
    OffsetCommitRequestPartition,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from einmal.wire.messages import RequestHeader

IMAGE: Any = SimpleNamespace(topics={"t": SimpleNamespace(name="t", partitions=[None, None])})
CONTEXT = RequestContext(RequestHeader(8, 8, 0, None), "client", Turns(SystemClock()))


def topics(*asked: tuple[str | None, list[int]]) -> CommittedTopics[OffsetCommitRequestPartition]:
    partitions = [
        (name, [OffsetCommitRequestPartition(index, 10 + index, committed_metadata="m") for index in indexes])
        for name, indexes in asked
    ]
    resolved = CommittedTopics(CONTEXT, Access(None), partitions)
    asyncio.run(resolved.resolve(IMAGE))
    return resolved


def errors(
    asked: CommittedTopics[OffsetCommitRequestPartition], answer: Mapping[TopicPartition, ErrorCode] | ErrorCode
) -> list[list[tuple[int, ErrorCode]]]:
    return asyncio.run(asked.responses(answer, lambda index, error: (index, error)))


def test_only_partitions_that_exist_are_committed() -> None:
    known = topics(("t", [1, 2, -1]), ("u", [0]), (None, [0])).known
    assert to_commit(known) == {TopicPartition("t", 1): OffsetToCommit(11, -1, "m")}


def test_the_answer_has_the_shape_of_the_request() -> None:
    asked = topics(("t", [0, 2]), ("u", [0]), (None, [0]))
    unknown = ErrorCode.unknown_topic_or_partition
    assert errors(asked, ErrorCode.not_coordinator) == [
        [(0, ErrorCode.not_coordinator), (2, unknown)],
        [(0, unknown)],
        [(0, ErrorCode.unknown_topic_id)],
    ]
    answered = OffsetCommitResponseTopic(name="t", partitions=[OffsetCommitResponsePartition(0, ErrorCode.none)])
    assert errors(asked, by_partition([answered]))[0] == [(0, ErrorCode.none), (2, unknown)]
