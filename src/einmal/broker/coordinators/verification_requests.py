"""Asks the transaction coordinators on other brokers to verify or add partitions: AddPartitionsToTxn, by the leader.

One request is in flight to each broker; further questions are batched into the next, up to a size that brokers accept
(KIP-890). Several questions of one producer become one, each getting the answer for its own partitions. Retries
nothing: the client does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from itertools import groupby
from typing import Final, NamedTuple

from einmal.broker.resources.supervision import Supervisor
from einmal.broker.rpc.peers import Asker
from einmal.rpc.connection import NoAnswer
from einmal.transactions.coordinator import PartitionErrors
from einmal.types import BrokerId, ErrorCode, ProducerIdAndEpoch, TopicPartition
from einmal.wire.api.add_partitions_to_txn import API as ADD_PARTITIONS_TO_TXN
from einmal.wire.api.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from einmal.wire.errors import WireError

_VERSION: Final = 5
_TIMEOUT_MS: Final = 5_000
_LANE: Final = "verify"
_ROOM: Final = 1_000_000
"""Limit of one request: the characters of its ids, and ``_ELEMENT`` for each id and each partition. Brokers close the
connection for a request that is too large: nobody's question would be answered."""
_ELEMENT: Final = 100


class _Question(NamedTuple):
    transactional_id: str
    producer: ProducerIdAndEpoch
    adds: bool


class _Asked:
    """A question that waits, or is in flight."""

    __slots__ = ("answer", "partitions")

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, None] = {}
        self.answer: asyncio.Future[PartitionErrors] = asyncio.get_running_loop().create_future()


class _Lane:
    """The questions that wait for one broker, and the task that sends them."""

    __slots__ = ("queue", "task")

    def __init__(self) -> None:
        self.queue: dict[_Question, _Asked] = {}
        self.task: asyncio.Task[None] | None = None

    def take(self) -> dict[str, tuple[_Question, _Asked]]:
        """The questions of one request: at most one per transactional.id, which identifies the answers."""
        taken: dict[str, tuple[_Question, _Asked]] = {}
        room = _ROOM
        for question, asked in self.queue.items():
            room -= len(question.transactional_id) + _ELEMENT * (1 + len(asked.partitions))
            if taken and room < 0:
                break
            taken.setdefault(question.transactional_id, (question, asked))
        for question, _ in taken.values():
            del self.queue[question]
        return taken


class VerificationRequests:
    def __init__(self, peers: Asker) -> None:
        self._peers = peers
        self._supervisor = Supervisor()
        self._lanes: dict[BrokerId, _Lane] = {}

    async def ask(
        self,
        coordinator: BrokerId,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        *,
        adds: bool,
    ) -> PartitionErrors:
        """The coordinator's answer; NETWORK_EXCEPTION where there is none. ``adds``: not only to be verified."""
        lane = self._lanes.get(coordinator)
        if lane is None:
            lane = self._lanes[coordinator] = _Lane()
        question = _Question(transactional_id, producer, adds)
        asked = lane.queue.get(question)
        if asked is None:
            asked = lane.queue[question] = _Asked()
        asked.partitions.update(dict.fromkeys(partitions))
        if lane.task is None:
            lane.task = asyncio.get_running_loop().create_task(self._drain(coordinator, lane))
        # Others may wait for the same answer: a cancelled request must not cancel it.
        errors = await asyncio.shield(asked.answer)
        return {partition: errors.get(partition, ErrorCode.network_exception) for partition in partitions}

    def stop(self) -> None:
        for lane in self._lanes.values():
            if lane.task is not None:
                lane.task.cancel()

    async def _drain(self, coordinator: BrokerId, lane: _Lane) -> None:
        taken: dict[str, tuple[_Question, _Asked]] = {}
        try:
            while taken := lane.take():
                errors = await self._exchange(coordinator, taken)
                for transactional_id, (_question, asked) in taken.items():
                    asked.answer.set_result(errors.get(transactional_id, {}))
        finally:
            lane.task = None
            # Only when the node stops: nobody is left waiting.
            for _, asked in (*taken.values(), *lane.queue.items()):
                asked.answer.cancel()
            lane.queue.clear()

    async def _exchange(
        self, coordinator: BrokerId, taken: dict[str, tuple[_Question, _Asked]]
    ) -> dict[str, dict[TopicPartition, ErrorCode]]:
        request = AddPartitionsToTxnRequest(tuple(_transaction(*verification) for verification in taken.values()))
        try:
            answer = await self._peers.ask(
                coordinator, ADD_PARTITIONS_TO_TXN, _VERSION, request, timeout_ms=_TIMEOUT_MS, lane=_LANE
            )
        except (NoAnswer, WireError):
            return {}
        except Exception as error:  # noqa: BLE001 - whoever waits is answered, and asks again.
            self._supervisor.report(f"verifying transactions at broker {coordinator}", error)
            return {}
        return {
            result.transactional_id: {
                TopicPartition(topic.name, partition.partition_index): partition.partition_error_code
                for topic in result.topic_results
                for partition in topic.results_by_partition
            }
            for result in answer.results_by_transaction
        }


def _transaction(question: _Question, asked: _Asked) -> AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnTransaction(
        question.transactional_id,
        *question.producer,
        verify_only=not question.adds,
        topics=tuple(
            AddPartitionsToTxnTopic(topic, tuple(topic_partition.partition for topic_partition in group))
            for topic, group in groupby(sorted(asked.partitions), key=lambda topic_partition: topic_partition.topic)
        ),
    )
