"""Questions to coordinators on other brokers: what goes into one request, and who gets which answer."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from einmal.broker.coordinators.verification_requests import VerificationRequests
from einmal.rpc.connection import NoAnswer
from einmal.types import BrokerId, ErrorCode, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from einmal.wire.api.add_partitions_to_txn import (
    API,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from einmal.wire.messages import Api, Q, R
from tests.virtual_time import virtual_time

VERSION = 5
ONE, OTHER = BrokerId(1), BrokerId(2)
A, B, C = (TopicPartition("t", index) for index in range(3))


def producer(producer_id: int, epoch: int = 0) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))


class Peers:
    """Every partition is well, but those of ``errors``; an answer takes a second."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, list[tuple[str, int, bool, list[tuple[str, int]]]]]] = []
        self.errors: dict[TopicPartition, ErrorCode] = {}
        self.failure: Exception | None = None
        self.silent: list[str] = []

    async def ask(
        self,
        node_id: int,
        api: Api[Q, R],
        version: int,
        request: Q,
        *,
        timeout_ms: int,
        lane: str = "control",
    ) -> R:
        assert (api.key, version) == (API.key, VERSION)
        assert isinstance(request, AddPartitionsToTxnRequest)
        self.requests.append(
            (
                node_id,
                [
                    (
                        each.transactional_id,
                        each.producer_epoch,
                        each.verify_only,
                        [(topic.name, index) for topic in each.topics for index in topic.partitions],
                    )
                    for each in request.transactions
                ],
            )
        )
        await asyncio.sleep(1)
        if self.failure is not None:
            raise self.failure
        return cast(R, AddPartitionsToTxnResponse(results_by_transaction=self._results(request)))

    def _results(self, request: AddPartitionsToTxnRequest) -> list[AddPartitionsToTxnResult]:
        return [
            AddPartitionsToTxnResult(
                each.transactional_id,
                [
                    AddPartitionsToTxnTopicResult(
                        topic.name,
                        [
                            AddPartitionsToTxnPartitionResult(
                                index, self.errors.get(TopicPartition(topic.name, index), ErrorCode.none)
                            )
                            for index in topic.partitions
                        ],
                    )
                    for topic in each.topics
                ],
            )
            for each in request.transactions
            if each.transactional_id not in self.silent
        ]


@virtual_time
async def test_one_question_is_one_request() -> None:
    peers = Peers()
    requests = VerificationRequests(peers)
    peers.errors[B] = ErrorCode.transaction_abortable
    errors = await requests.ask(ONE, "x", producer(1, 3), [A, B], adds=False)
    assert errors == {A: ErrorCode.none, B: ErrorCode.transaction_abortable}
    assert peers.requests == [(1, [("x", 3, True, [("t", 0), ("t", 1)])])]


@virtual_time
async def test_what_comes_meanwhile_goes_out_together_with_the_next() -> None:
    peers = Peers()
    requests = VerificationRequests(peers)
    first = asyncio.ensure_future(requests.ask(ONE, "x0", producer(0), [A], adds=True))
    await asyncio.sleep(0.5)
    rest = [requests.ask(ONE, f"x{number}", producer(number), [A], adds=True) for number in range(1, 50)]
    answers = await asyncio.gather(first, *rest)
    assert [len(asked) for _, asked in peers.requests] == [1, 49]
    assert answers == [{A: ErrorCode.none}] * 50


@virtual_time
async def test_no_request_is_larger_than_a_broker_reads() -> None:
    """Its coordinator would close the connection, and answer nobody's question."""
    peers = Peers()
    requests = VerificationRequests(peers)
    many = [TopicPartition("t", index) for index in range(9_000)]
    asked = [
        *(requests.ask(ONE, f"{number:03}" + "x" * 32_000, producer(number), [A], adds=True) for number in range(100)),
        *(requests.ask(ONE, f"y{number}", producer(number), many, adds=True) for number in range(5)),
    ]
    answers = await asyncio.gather(*asked)
    assert answers[:100] == [{A: ErrorCode.none}] * 100
    assert {len(answer) for answer in answers[100:]} == {9_000}
    assert len({name for _, request in peers.requests for name, *_ in request}) == 105
    for _, request in peers.requests:
        assert sum(len(name) + 20 * len(partitions) for name, _, _, partitions in request) < 2_000_000
        assert sum(len(partitions) for *_, partitions in request) < 20_000


@virtual_time
async def test_brokers_do_not_wait_for_each_other() -> None:
    peers = Peers()
    requests = VerificationRequests(peers)
    await asyncio.gather(
        requests.ask(ONE, "x", producer(1), [A], adds=True), requests.ask(OTHER, "y", producer(2), [A], adds=True)
    )
    assert asyncio.get_running_loop().time() < 1.1


@virtual_time
async def test_several_questions_of_one_producer_become_one() -> None:
    peers = Peers()
    requests = VerificationRequests(peers)
    peers.errors[C] = ErrorCode.unknown_topic_or_partition
    answers = await asyncio.gather(*(requests.ask(ONE, "x", producer(1), [each], adds=False) for each in (C, A, B, A)))
    assert peers.requests == [(1, [("x", 0, True, [("t", 0), ("t", 1), ("t", 2)])])]
    assert answers == [
        {C: ErrorCode.unknown_topic_or_partition},
        {A: ErrorCode.none},
        {B: ErrorCode.none},
        {A: ErrorCode.none},
    ]


@virtual_time
async def test_verifications_that_one_response_could_not_distinguish_are_sent_in_turn() -> None:
    peers = Peers()
    requests = VerificationRequests(peers)
    await asyncio.gather(
        requests.ask(ONE, "x", producer(1, 0), [A], adds=True),
        requests.ask(ONE, "x", producer(1, 1), [A], adds=True),
        requests.ask(ONE, "x", producer(1, 1), [A], adds=False),
    )
    assert [asked for _, asked in peers.requests] == [
        [("x", 0, False, [("t", 0)])],
        [("x", 1, False, [("t", 0)])],
        [("x", 1, True, [("t", 0)])],
    ]


@virtual_time
async def test_after_a_defect_callers_get_an_error_and_may_retry() -> None:
    peers = Peers()
    requests = VerificationRequests(peers)
    told: list[Any] = []
    asyncio.get_running_loop().call_exception_handler = told.append  # type: ignore[assignment,method-assign]
    peers.failure = ValueError("a defect")
    assert await requests.ask(ONE, "x", producer(1), [A], adds=True) == {A: ErrorCode.network_exception}
    peers.failure = None
    assert await requests.ask(ONE, "x", producer(1), [A], adds=True) == {A: ErrorCode.none}
    assert len(told) == 1


@pytest.mark.parametrize("was_sent", [False, True])
@virtual_time
async def test_without_a_response_callers_get_an_error_and_the_next_request_is_sent(was_sent: bool) -> None:
    peers = Peers()
    requests = VerificationRequests(peers)
    peers.failure = NoAnswer("gone", was_sent=was_sent)
    assert await requests.ask(ONE, "x", producer(1), [A], adds=True) == {A: ErrorCode.network_exception}
    peers.failure = None
    assert await requests.ask(ONE, "x", producer(1), [A], adds=True) == {A: ErrorCode.none}


@virtual_time
async def test_what_an_answer_leaves_out_is_unknown() -> None:
    peers = Peers()
    requests = VerificationRequests(peers)
    peers.silent = ["x"]
    first, second = await asyncio.gather(
        requests.ask(ONE, "x", producer(1), [A], adds=True), requests.ask(ONE, "y", producer(2), [A], adds=True)
    )
    assert (first, second) == ({A: ErrorCode.network_exception}, {A: ErrorCode.none})


@virtual_time
async def test_a_cancelled_caller_does_not_cancel_the_response_of_others() -> None:
    peers = Peers()
    requests = VerificationRequests(peers)
    impatient = asyncio.ensure_future(requests.ask(ONE, "x", producer(1), [A], adds=True))
    patient = asyncio.ensure_future(requests.ask(ONE, "x", producer(1), [A], adds=True))
    await asyncio.sleep(0.5)
    impatient.cancel()
    assert await patient == {A: ErrorCode.none}


@virtual_time
async def test_stopping_cancels_all_waiting_callers() -> None:
    peers = Peers()
    requests = VerificationRequests(peers)
    asked = [asyncio.ensure_future(requests.ask(ONE, "x", producer(1, epoch), [A], adds=True)) for epoch in range(3)]
    await asyncio.sleep(0.5)
    requests.stop()
    assert [type(each) for each in await asyncio.gather(*asked, return_exceptions=True)] == [asyncio.CancelledError] * 3
