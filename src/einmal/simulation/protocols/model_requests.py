"""The requests of a driver to the model of Kafka: answers get lost, requests are late, leaders are out of date.

Every method is a generator: at each ``yield`` anything else may happen first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final

from einmal.commit_protocol import effects as protocol
from einmal.commit_protocol.commit_record import CommitRecord
from einmal.simulation.protocols.kafka_model import Deposed
from einmal.simulation.protocols.spark_model import ModelWorld, Steps
from einmal.types import ErrorCode, ProducerIdAndEpoch, TransactionVersion

RECORDS: Final = "commits-0"
Request = (
    protocol.ReadRecord | protocol.InitProducerId | protocol.AbortHeld | protocol.WriteCommitRecord | protocol.EndTxn
)
"""Effects that are requests to Kafka, the same for a pipeline, a mirror and an ingester."""
_MARKER_STEPS: Final = 1_000
"""How long a marker may take to appear."""


class ModelRequests:
    """``acquired`` is called when the coordinator has granted an identity, answered or not."""

    def __init__(self, world: ModelWorld, acquired: Callable[[], None]) -> None:
        self._world = world
        self._acquired = acquired

    def perform(self, effect: Request) -> Generator[None, None, protocol.Event]:
        match effect:
            case protocol.ReadRecord(certain):
                return (yield from self.read_record(certain))
            case protocol.InitProducerId(previous):
                return (yield from self.init_producer_id(previous))
            case protocol.AbortHeld(identity):
                return (yield from self.end_txn(identity, committed=False))
            case protocol.WriteCommitRecord(identity, record):
                return (yield from self.append(identity, record))
            case protocol.EndTxn(identity, committed):
                return (yield from self.end_txn(identity, committed))

    def read_record(self, certain: bool) -> Generator[None, None, protocol.Event]:
        kafka = self._world.kafka
        yield
        if not certain:
            return self._last_record(self._leader())
        reached = yield from self.prove()
        for _ in range(_MARKER_STEPS):
            yield
            leader = self._leader()
            if kafka.high_watermark(RECORDS, leader) >= reached and not kafka.has_undecided(RECORDS, leader):
                return self._last_record(leader)
        return protocol.Failed("an undecided commit record")

    def _last_record(self, leader: Deposed | None) -> protocol.RecordRead:
        records = self._world.kafka.decided_values(RECORDS, leader)
        return protocol.RecordRead(records[-1] if records else None)

    def _leader(self) -> Deposed | None:
        """The target of the next request: each process has metadata of its own, which may be stale."""
        deposed = self._world.kafka.deposed.get(RECORDS)
        return deposed if deposed is not None and self._world.rng.random() < 0.5 else None

    def prove(self) -> Generator[None, None, int]:
        """Append after all committed records; returns the offset."""
        while True:
            yield
            offset = self._world.kafka.append_plain(RECORDS, self._leader())
            yield
            if offset is not None and not self._world.fault(0.03):
                return offset + 1

    def init_producer_id(self, previous: ProducerIdAndEpoch | None) -> Generator[None, None, protocol.Event]:
        while True:
            yield
            answer = self._world.kafka.init_producer_id(previous)
            if isinstance(answer, ProducerIdAndEpoch):
                self._acquired()
            yield
            if isinstance(answer, ProducerIdAndEpoch):
                if self._world.fault(0.03):
                    return protocol.Unclear("InitProducerId was not answered")
                return protocol.IdentityGranted(answer)
            if answer is not ErrorCode.concurrent_transactions:
                return protocol.Fenced(answer.name)

    def append(self, identity: ProducerIdAndEpoch, record: CommitRecord) -> Generator[None, None, protocol.Event]:
        answer = yield from self.produce(identity, RECORDS, 0, (record,))
        return protocol.Done() if isinstance(answer, tuple) else protocol.Failed(answer.name)

    def produce(
        self, identity: ProducerIdAndEpoch, partition: str, sequence: int, values: tuple[Any, ...]
    ) -> Generator[None, None, tuple[int, int] | ErrorCode]:
        """One batch: its first and last offset, or the error."""
        kafka = self._world.kafka
        while True:
            yield
            error = ErrorCode.none
            if kafka.version is not TransactionVersion.TV_2:
                error = kafka.add_partition(identity, partition)
            answer = error or kafka.produce(identity, partition, sequence, values)
            yield
            if isinstance(answer, tuple):
                if self._world.fault(0.02):
                    continue
                return answer
            if answer is not ErrorCode.concurrent_transactions:
                return answer

    def end_txn(self, identity: ProducerIdAndEpoch, committed: bool) -> Generator[None, None, protocol.Event]:
        world = self._world
        tv2 = world.kafka.version is TransactionVersion.TV_2
        while True:
            yield
            if world.fault(0.03):
                world.running.append(self._late_end_txn(identity, committed))
                return protocol.Unclear("EndTxn was not answered")
            answer = world.kafka.end_txn(identity, committed)
            yield
            if isinstance(answer, ProducerIdAndEpoch):
                if world.fault(0.05):
                    continue
                return protocol.Ended(answer if tv2 else None)
            if answer is ErrorCode.concurrent_transactions:
                continue
            if answer is ErrorCode.invalid_txn_state:
                return protocol.Failed(answer.name) if committed else protocol.Ended(None)
            if answer is ErrorCode.invalid_producer_id_mapping:
                return protocol.Expired(answer.name)
            return protocol.Fenced(answer.name)

    def _late_end_txn(self, identity: ProducerIdAndEpoch, committed: bool) -> Steps:
        for _ in range(self._world.rng.choice((1, 30, 300))):
            yield
        self._world.kafka.end_txn(identity, committed)
