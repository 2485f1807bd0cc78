"""The marker sender against leaders that answer as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

import pytest

from einmal.broker.marker_sender import MarkerSender
from einmal.broker.marker_writer import TransactionEnd
from einmal.simulation.loop import SimulatedLoop
from einmal.transactions.markers import WriteMarkers
from einmal.types import (
    ErrorCode,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)

A, B, C = (TopicPartition("t", index) for index in range(3))
ACTION = WriteMarkers(
    transactional_id="x",
    producer=ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(1)),
    committed=True,
    partitions=(A, B, C),
    transaction_version=TransactionVersion.TV_2,
)


class Leader:
    """Answers each partition with its next error; when there is none left, with success."""

    def __init__(self, **errors: list[ErrorCode]) -> None:
        self.errors = errors
        self.asked: list[tuple[TopicPartition, ...]] = []
        self.ends: list[TransactionEnd] = []

    async def write_markers(
        self, end: TransactionEnd, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        self.ends.append(end)
        self.asked.append(tuple(partitions))
        return {partition: self._next(partition) for partition in self.asked[-1]}

    def _next(self, partition: TopicPartition) -> ErrorCode:
        errors = self.errors.get("abc"[partition.partition])
        return errors.pop(0) if errors else ErrorCode.none


class Sent:
    def __init__(self, leader_of: Callable[[TopicPartition], Leader | None]) -> None:
        self.loop = SimulatedLoop()  # type: ignore[abstract]
        self.sender = MarkerSender(leader_of)
        self.reports = 0

    async def _written(self) -> None:
        self.reports += 1

    def run(self, seconds: float = 30.0) -> Sent:
        async def main() -> None:
            self.sender.send(ACTION, 5, self._written)
            await asyncio.sleep(seconds)

        work: Coroutine[Any, Any, None] = main()
        self.loop.run_until_complete(work)
        return self


def test_each_leader_is_asked_once_for_all_of_its_partitions() -> None:
    one, other = Leader(), Leader()
    sent = Sent(lambda partition: other if partition is B else one).run()
    assert (one.asked, other.asked) == ([(A, C)], [(B,)])
    assert sent.reports == 1
    (end,) = other.ends
    assert end == TransactionEnd(
        producer=ACTION.producer, committed=True, coordinator_epoch=5, transaction_version=TransactionVersion.TV_2
    )


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_leader_or_follower,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.request_timed_out,
        ErrorCode.kafka_storage_error,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    ],
)
def test_what_may_pass_is_tried_again_and_only_that(error: ErrorCode) -> None:
    leader = Leader(b=[error] * 3)
    sent = Sent(lambda _: leader).run()
    assert leader.asked == [(A, B, C), (B,), (B,), (B,)]
    assert sent.reports == 1


def test_nothing_is_reported_while_a_marker_is_missing() -> None:
    leader = Leader(b=[ErrorCode.not_leader_or_follower] * 1_000)
    sent = Sent(lambda _: leader).run(seconds=60)
    assert sent.reports == 0
    assert 50 < len(leader.asked) < 100, "with pauses of up to a second"


def test_a_partition_without_a_leader_for_a_moment_is_not_taken_for_a_deleted_one() -> None:
    leader = Leader(a=[ErrorCode.unknown_topic_or_partition])
    sent = Sent(lambda _: leader).run()
    assert leader.asked[1] == (A,)
    assert sent.reports == 1


def test_a_deleted_topic_needs_no_marker() -> None:
    leader = Leader()
    sent = Sent(lambda partition: None if partition is B else leader).run()
    assert leader.asked == [(A, C)]
    assert sent.reports == 1


def test_a_transaction_whose_topics_are_all_gone_is_complete() -> None:
    assert Sent(lambda _: None).run().reports == 1


def test_a_partition_that_has_seen_a_later_epoch_needs_no_marker() -> None:
    leader = Leader(b=[ErrorCode.invalid_producer_epoch])
    sent = Sent(lambda _: leader).run()
    assert len(leader.asked) == 1
    assert sent.reports == 1


def test_a_coordinator_that_is_fenced_stops_and_reports_nothing() -> None:
    leader = Leader(b=[ErrorCode.transaction_coordinator_fenced], c=[ErrorCode.not_leader_or_follower])
    sent = Sent(lambda _: leader).run()
    assert len(leader.asked) == 1
    assert sent.reports == 0


def test_an_outcome_that_is_on_its_way_is_not_sent_a_second_time() -> None:
    """A coordinator that is loaded again repeats what it found decided; the loser of two senders would come late."""
    leader = Leader(b=[ErrorCode.kafka_storage_error] * 5)
    sent = Sent(lambda _: leader)

    async def main() -> None:
        sent.sender.send(ACTION, 5, sent._written)
        await asyncio.sleep(0.05)
        sent.sender.send(ACTION, 5, sent._written)
        await asyncio.sleep(30)

    sent.loop.run_until_complete(main())
    assert leader.asked == [(A, B, C)] + [(B,)] * 5
    assert sent.reports == 1


def test_the_next_transaction_may_begin_and_end_while_the_report_is_still_unanswered() -> None:
    leader = Leader()
    sent = Sent(lambda _: leader)
    answered = asyncio.Event()

    async def written() -> None:
        await sent._written()
        await answered.wait()

    async def main() -> None:
        for _ in range(2):
            sent.sender.send(ACTION, 5, written)
            await asyncio.sleep(1)

    sent.loop.run_until_complete(main())
    assert leader.asked == [(A, B, C)] * 2
    assert sent.reports == 2
