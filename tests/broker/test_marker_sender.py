"""The marker sender against scripted brokers, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from einmal.broker.coordinators.marker_sender import Coordinator, MarkerSender
from einmal.broker.coordinators.marker_writer import Markers, PartitionErrors, TransactionEnd
from einmal.metadata.records import NO_LEADER
from einmal.transactions.markers import WriteMarkers
from einmal.types import (
    BrokerId,
    ErrorCode,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)
from tests.virtual_time import running_loop, virtual_time

A, B, C = (TopicPartition("t", index) for index in range(3))
ONE, OTHER = BrokerId(1), BrokerId(2)
COORDINATOR = Coordinator(0, 5)


def write_markers(number: int = 7, *partitions: TopicPartition) -> WriteMarkers:
    return WriteMarkers(
        transactional_id=f"x{number}",
        producer=ProducerIdAndEpoch(ProducerId(number), ProducerEpoch(1)),
        committed=True,
        partitions=partitions or (A, B, C),
        transaction_version=TransactionVersion.TV_2,
    )


ACTION = write_markers()


class Broker:
    """Answers each partition with its next error; when there is none left, with success. ``seconds``: per request."""

    def __init__(self, *, seconds: float = 0.0, **errors: list[ErrorCode]) -> None:
        self.errors = errors
        self.seconds = seconds
        self.requests: list[tuple[Markers, ...]] = []
        self.under_way = 0

    @property
    def asked(self) -> list[tuple[TopicPartition, ...]]:
        """The partitions of each request."""
        return [tuple(each for _, partitions in request for each in partitions) for request in self.requests]

    async def write_markers(self, asked: Sequence[Markers]) -> list[PartitionErrors]:
        self.requests.append(tuple(asked))
        self.under_way += 1
        assert self.under_way == 1, "one request at a time"
        if self.seconds:
            await asyncio.sleep(self.seconds)
        self.under_way -= 1
        return [{partition: self._next(partition) for partition in partitions} for _, partitions in asked]

    def _next(self, partition: TopicPartition) -> ErrorCode:
        errors = self.errors.get("abc"[partition.partition])
        return errors.pop(0) if errors else ErrorCode.none


class Sent:
    """``leaders`` may be changed while it runs; a partition that is not there is deleted."""

    def __init__(self, one: Broker | None = None, other: Broker | None = None, **leaders: BrokerId | None) -> None:
        self.loop = running_loop()
        self.one, self.other = one or Broker(), other or Broker()
        self.leaders: dict[TopicPartition, BrokerId | None] = dict.fromkeys((A, B, C), ONE)
        self.leaders.update({TopicPartition("t", "abc".index(name)): leader for name, leader in leaders.items()})
        self.sender = MarkerSender(self.leaders.get, {ONE: self.one, OTHER: self.other}.__getitem__)
        self.reports: list[str] = []

    def send(self, action: WriteMarkers = ACTION, coordinator: Coordinator = COORDINATOR) -> None:
        async def written() -> None:
            self.reports.append(action.transactional_id)

        self.sender.send(action, coordinator, written)

    async def run(self, seconds: float = 30.0) -> Sent:
        self.send()
        await asyncio.sleep(seconds)
        return self


@virtual_time
async def test_each_leader_gets_one_request_for_all_of_its_partitions() -> None:
    sent = await Sent(b=OTHER).run()
    assert (sent.one.asked, sent.other.asked) == ([(A, C)], [(B,)])
    assert sent.reports == ["x7"]
    ((markers,),) = sent.other.requests
    assert markers.end == TransactionEnd(
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
        ErrorCode.network_exception,
        ErrorCode.kafka_storage_error,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    ],
)
@virtual_time
async def test_what_may_pass_is_tried_again_and_only_that(error: ErrorCode) -> None:
    sent = await Sent(Broker(b=[error] * 3)).run()
    assert sent.one.asked == [(A, B, C), (B,), (B,), (B,)]
    assert sent.reports == ["x7"]


@virtual_time
async def test_markers_are_sent_again_after_a_defect() -> None:
    sent = Sent()
    write, left = sent.one.write_markers, [ValueError("a defect")] * 3

    async def failing(asked: Sequence[Markers]) -> list[PartitionErrors]:
        if left:
            raise left.pop()
        return await write(asked)

    sent.one.write_markers = failing  # type: ignore[method-assign]
    told: list[Any] = []
    sent.loop.call_exception_handler = told.append  # type: ignore[assignment,method-assign]
    await sent.run()
    assert (sent.reports, len(told)) == (["x7"], 1)


@virtual_time
async def test_nothing_is_reported_while_a_marker_is_missing() -> None:
    sent = await Sent(Broker(b=[ErrorCode.not_leader_or_follower] * 1_000)).run(seconds=60)
    assert sent.reports == []
    assert 50 < len(sent.one.asked) < 100, "with pauses of up to a second"


@virtual_time
async def test_a_partition_without_a_leader_is_waited_for_and_not_taken_for_a_deleted_one() -> None:
    sent = Sent(b=NO_LEADER)
    sent.send()
    await asyncio.sleep(60)
    assert (sent.one.asked, sent.reports) == ([(A, C)], [])
    sent.leaders[B] = OTHER
    sent.sender.leaders_changed()
    await asyncio.sleep(0.001)
    assert (sent.other.asked, sent.reports) == ([(B,)], ["x7"])


@virtual_time
async def test_a_new_leader_is_found_without_a_notification() -> None:
    sent = Sent(b=NO_LEADER)
    sent.send()
    await asyncio.sleep(10)
    sent.leaders[B] = OTHER
    await asyncio.sleep(1.1)
    assert sent.reports == ["x7"]


@virtual_time
async def test_a_deleted_topic_needs_no_marker() -> None:
    sent = await Sent(b=None).run()
    assert sent.one.asked == [(A, C)]
    assert sent.reports == ["x7"]


@virtual_time
async def test_a_topic_may_be_deleted_while_its_marker_is_missing() -> None:
    sent = Sent(Broker(b=[ErrorCode.unknown_topic_or_partition] * 1_000))
    sent.send()
    await asyncio.sleep(10)
    assert sent.reports == []
    del sent.leaders[B]
    sent.sender.leaders_changed()
    await asyncio.sleep(0.001)
    assert sent.reports == ["x7"]


@virtual_time
async def test_a_transaction_whose_topics_are_all_gone_is_complete() -> None:
    assert (await Sent(a=None, b=None, c=None).run()).reports == ["x7"]


@virtual_time
async def test_a_partition_that_has_seen_a_later_epoch_needs_no_marker() -> None:
    sent = await Sent(Broker(b=[ErrorCode.invalid_producer_epoch])).run()
    assert len(sent.one.asked) == 1
    assert sent.reports == ["x7"]


@virtual_time
async def test_a_coordinator_that_is_fenced_stops_and_reports_nothing() -> None:
    broker = Broker(b=[ErrorCode.transaction_coordinator_fenced], c=[ErrorCode.not_leader_or_follower])
    sent = await Sent(broker).run()
    assert len(sent.one.asked) == 1
    assert sent.reports == []


# --- many transactions, many brokers -------------------------------------------------------------------------------


@virtual_time
async def test_what_comes_while_a_request_is_on_its_way_goes_out_together_with_the_next() -> None:
    sent = Sent(Broker(seconds=1.0))
    sent.send(write_markers(1, A))
    await asyncio.sleep(0.5)
    for number in range(2, 100):
        sent.send(write_markers(number, B))
    await asyncio.sleep(1.6)
    assert [len(request) for request in sent.one.requests] == [1, 98]
    assert len(sent.reports) == 99


@virtual_time
async def test_what_is_decided_in_one_turn_goes_out_in_one_request() -> None:
    sent = Sent()
    for number in range(10):
        sent.send(write_markers(number, A, B))
    await asyncio.sleep(0.001)
    assert [len(request) for request in sent.one.requests] == [10]
    assert len(sent.reports) == 10


@virtual_time
async def test_a_broker_that_does_not_answer_holds_up_no_other_requests() -> None:
    sent = Sent(Broker(seconds=60.0), b=OTHER)
    for number in range(10):
        sent.send(write_markers(number, A))
        sent.send(write_markers(100 + number, B))
        await asyncio.sleep(0.01)
    assert sent.reports == [f"x{100 + number}" for number in range(10)]


@virtual_time
async def test_when_a_leader_hangs_and_another_is_elected_the_new_one_is_asked_at_once() -> None:
    """What was asked of the hung one may still be carried out: its leader epoch is over, nobody will see it."""
    sent = Sent(Broker(seconds=60.0))
    sent.send(write_markers(1, A))
    await asyncio.sleep(1)
    sent.send(write_markers(2, A))
    sent.leaders[A] = OTHER
    sent.sender.leaders_changed()
    await asyncio.sleep(0.001)
    assert sent.reports == ["x1", "x2"]
    await asyncio.sleep(100)
    assert len(sent.one.requests) == 1, "what only waited for it went elsewhere"
    assert sent.reports == ["x1", "x2"]


@virtual_time
async def test_a_change_of_other_leaders_changes_nothing() -> None:
    sent = Sent(Broker(seconds=1.0))
    sent.send()
    await asyncio.sleep(0.5)
    sent.sender.leaders_changed()
    await asyncio.sleep(1)
    assert sent.one.asked == [(A, B, C)]
    assert sent.reports == ["x7"]


# --- one sender at a time ------------------------------------------------------------------------------------------


@virtual_time
async def test_an_outcome_that_is_on_its_way_is_not_sent_a_second_time() -> None:
    """A coordinator that is loaded again repeats what it found decided; the loser of two senders would come late."""
    sent = Sent(Broker(b=[ErrorCode.kafka_storage_error] * 5))
    sent.send()
    await asyncio.sleep(0.05)
    sent.send()
    await asyncio.sleep(30)
    assert sent.one.asked == [(A, B, C)] + [(B,)] * 5
    assert sent.reports == ["x7"]


@virtual_time
async def test_the_next_transaction_may_begin_and_end_while_the_report_is_still_unanswered() -> None:
    sent = Sent()
    answered = asyncio.Event()

    async def written() -> None:
        sent.reports.append("x7")
        await answered.wait()

    for _ in range(2):
        sent.sender.send(ACTION, COORDINATOR, written)
        await asyncio.sleep(1)
    assert sent.one.asked == [(A, B, C)] * 2
    assert sent.reports == ["x7", "x7"]


@virtual_time
async def test_after_its_leadership_a_coordinator_sends_and_reports_nothing_any_more() -> None:
    sent = Sent(Broker(seconds=1.0), Broker(b=[ErrorCode.not_leader_or_follower] * 1_000), b=OTHER)
    sent.send()
    sent.send(replace(ACTION, transactional_id="theirs"), Coordinator(1, 5))
    await asyncio.sleep(0.5)
    sent.sender.forget(COORDINATOR)
    asked = len(sent.other.requests)
    await asyncio.sleep(5)
    assert all(len(request) == 1 for request in sent.other.requests[asked:]), "only the other coordinator's"
    assert sent.reports == []
    sent.other.errors.clear()
    await asyncio.sleep(2)
    assert sent.reports == ["theirs"]


@virtual_time
async def test_markers_under_way_from_an_earlier_leadership_report_nothing_into_the_next() -> None:
    sent = Sent(Broker(seconds=1.0))
    sent.send()
    await asyncio.sleep(0.5)
    sent.sender.forget(COORDINATOR)
    sent.send(coordinator=Coordinator(0, 7))
    await asyncio.sleep(0.7)
    assert sent.reports == [], "the answer to the first request was of epoch 5"
    await asyncio.sleep(1)
    assert sent.reports == ["x7"]
    assert [request[0].end.coordinator_epoch for request in sent.one.requests] == [5, 7]


@virtual_time
async def test_stopping_leaves_nothing_behind() -> None:
    sent = Sent(Broker(seconds=1.0), b=NO_LEADER)
    sent.send()
    await asyncio.sleep(0.5)
    sent.sender.stop()
    await asyncio.sleep(10)
    assert sent.reports == []
    assert len(asyncio.all_tasks()) == 1
