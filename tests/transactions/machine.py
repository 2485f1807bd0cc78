"""A coordinator with its log: what the runtime does, without waiting. Decisions are appended and replayed at once."""

from __future__ import annotations

from typing import Any, TypeVar

from einmal.shard.decision import Decision
from einmal.transactions.coordinator import (
    InitProducerIdResult,
    TransactionConfig,
    TransactionCoordinator,
    TransactionDecision,
    TwoPhase,
)
from einmal.transactions.markers import WriteMarkers
from einmal.transactions.records import TransactionRecord, decode, encode
from einmal.transactions.transaction import Transaction
from einmal.types import (
    ErrorCode,
    Instant,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)

R = TypeVar("R")
TV_0 = TransactionVersion.TV_0
TV_2 = TransactionVersion.TV_2
ID = "orders"
P0, P1, P2 = (TopicPartition("t", n) for n in range(3))
WALL = 1_700_000_000_000


def producer(producer_id: int, epoch: int) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))


class Machine:
    """Time stands still unless ``now_ms`` is moved. Markers are written when ``write_markers`` is called."""

    def __init__(self, *, version: TransactionVersion = TV_2, **config: Any) -> None:
        self.config = TransactionConfig(version=version, **config)
        self.now_ms = 1_000
        self.next_producer_id = 1_000
        self.has_producer_ids = True
        self.log: list[tuple[bytes, bytes | None]] = []
        self.actions: list[WriteMarkers] = []
        self.shard = TransactionCoordinator(self.config, self.allocate)
        self.shard.loaded(self.now)

    @property
    def now(self) -> Instant:
        return Instant(WALL + self.now_ms, self.now_ms)

    def allocate(self) -> ProducerId | None:
        if not self.has_producer_ids:
            return None
        self.next_producer_id += 1
        return ProducerId(self.next_producer_id - 1)

    def run(self, decision: TransactionDecision[R]) -> R:
        for record in decision.records:
            assert isinstance(record, TransactionRecord)
            self.log.append(encode(record))
            self.shard.replay(record)
        self.actions += decision.actions
        return decision.response

    def fail_over(self) -> None:
        """Another broker loads the log. What was only in memory is gone."""
        self.actions.clear()
        self.shard = self.reloaded()
        for decision in self.shard.loaded(self.now):
            self.run(decision)

    def reloaded(self) -> TransactionCoordinator:
        shard = TransactionCoordinator(self.config, self.allocate)
        for key, value in self.log:
            record = decode(key, value)
            assert record is not None
            shard.replay(record)
        return shard

    def stored(self, transactional_id: str = ID) -> Transaction:
        return self.shard.transactions[transactional_id]

    def init(
        self, who: ProducerIdAndEpoch | None = None, *, timeout_ms: int = 60_000, id: str = ID
    ) -> tuple[ErrorCode, ProducerIdAndEpoch]:
        answer = self.run(self.shard.init_producer_id(id, timeout_ms, who, self.now))
        return answer.error, ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)

    def keep(self, *, two_phase: bool = True, timeout_ms: int = 60_000, id: str = ID) -> InitProducerIdResult:
        """A new instance asks to keep the open transaction (KIP-939)."""
        how = TwoPhase(two_phase, keeps_prepared=True)
        return self.run(self.shard.init_producer_id(id, timeout_ms, None, self.now, how))

    def begin_two_phase(self, *, id: str = ID) -> ProducerIdAndEpoch:
        """A fresh identity whose transactions have no timeout. There is no open transaction."""
        answer = self.run(self.shard.init_producer_id(id, 0, None, self.now, TwoPhase(is_enabled=True)))
        assert answer.error is ErrorCode.none
        return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)

    def begin(self, *, timeout_ms: int = 60_000, id: str = ID) -> ProducerIdAndEpoch:
        """A fresh identity, whatever it takes."""
        for _ in range(3):
            error, who = self.init(timeout_ms=timeout_ms, id=id)
            if error is ErrorCode.none:
                return who
            self.write_markers()
        raise AssertionError(error)

    def add(
        self, who: ProducerIdAndEpoch, *partitions: TopicPartition, version: TransactionVersion = TV_2, id: str = ID
    ) -> ErrorCode:
        return self.run(self.shard.add_partitions_to_txn(id, who, partitions, version, self.now))

    def verify(self, who: ProducerIdAndEpoch, *partitions: TopicPartition, id: str = ID) -> list[ErrorCode]:
        answer = self.run(self.shard.verify_partitions(id, who, partitions))
        return [answer[each] for each in partitions]

    def end(
        self, who: ProducerIdAndEpoch, committed: bool, *, version: TransactionVersion = TV_2, id: str = ID
    ) -> tuple[ErrorCode, ProducerIdAndEpoch]:
        answer = self.run(self.shard.end_txn(id, who, committed=committed, version=version, now=self.now))
        return answer.error, ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)

    def write_markers(self) -> list[WriteMarkers]:
        """All that are due; reports each."""
        done, self.actions = self.actions, []
        for action in done:
            self.run(self.shard.markers_written(action.transactional_id, action.producer, self.now))
        return done

    def tick(self, after_ms: int = 0) -> None:
        self.now_ms += after_ms
        for decision in self.shard.tick(self.now):
            self.run(decision)


def with_epoch(machine: Machine, epoch: int, *, version: TransactionVersion = TV_0) -> ProducerIdAndEpoch:
    """A producer of that epoch at rest, without walking through thousands of them."""
    who = machine.begin()
    record = TransactionRecord(
        ID,
        Transaction(
            transactional_id=ID,
            producer_id=who.producer_id,
            producer_epoch=ProducerEpoch(epoch),
            previous_producer_id=who.producer_id,
            timeout_ms=60_000,
            state=machine.stored().state,
            last_update_ms=machine.now.wall_ms,
            client_version=version,
            updated_at=machine.now_ms,
        ),
    )
    machine.run(Decision(records=(record,), response=None))
    return machine.stored().producer
