"""What a transaction's coordinator writes, does and answers, and what partitions make of it: files in ``transcripts/``.

Clients are named; all have the transactional id ``orders``. Commands:

- ``version 0``: transactions of version 0 (2 is the default, KIP-890);
- ``init CLIENT [MS]``: InitProducerId, with a transaction timeout; the client has the identity from then on;
- ``init-two-phase CLIENT``: the same without a timeout, ``keep CLIENT``: and the open transaction is kept (KIP-939);
- ``add CLIENT PARTITION ...``, ``end CLIENT commit|abort``: requests to the coordinator; ``end-unheard``: the answer is
  lost, so the client does not learn of its next epoch;
- ``produce CLIENT PARTITION``: the client's next batch to a partition, without asking the coordinator;
- ``markers``: those that are due are written to their partitions, and reported to the coordinator;
- ``wait MS``: time moves on, and the coordinator is notified;
- ``failover``: another broker loads the coordinator's log; what was only in memory is gone;
- ``status``: the coordinator's state, and the offsets of each partition.

A producer is shown as ID/EPOCH.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from einmal.log.producer_state import CLIENT, BatchMetadata, ProducerStates
from einmal.transactions.coordinator import TransactionDecision
from einmal.transactions.markers import WriteMarkers
from einmal.transactions.records import TransactionRecord
from einmal.types import (
    NO_PRODUCER_ID,
    ErrorCode,
    Instant,
    Offset,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)
from tests.log.making import batch, header_of
from tests.transactions.machine import TV_0, TV_2, Machine, R
from tests.transcripts import World, check, show

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


class Partition:
    """What the leader of a partition knows of its producers; every batch has one record."""

    def __init__(self) -> None:
        self.producers = ProducerStates()
        self.end = Offset(0)

    @property
    def stable(self) -> Offset:
        first = self.producers.first_unstable_offset
        return self.end if first is None else first

    def append(self, who: ProducerIdAndEpoch, sequence: int, now: Instant) -> str:
        header = header_of(batch(of=who, sequence=sequence, transactional=True))
        verdict = self.producers.check(header, CLIENT)
        if isinstance(verdict, BatchMetadata):
            return f"a duplicate of offset {verdict.first_offset}"
        if verdict is not ErrorCode.none:
            return f"refused: {verdict.name}"
        self.producers.replay_batch(header, self.end, self.end, now.wall_ms, now)
        return f"appended at offset {self._next()}"

    def mark(self, action: WriteMarkers, now: Instant) -> str:
        error = self.producers.check_marker(action.producer, 0, action.transaction_version)
        if error is not ErrorCode.none:
            return f"refused: {error.name}"
        self.producers.replay_marker(
            action.producer,
            committed=action.committed,
            coordinator_epoch=0,
            offset=self.end,
            timestamp=now.wall_ms,
            now=now,
        )
        offset = self._next()
        self.producers.advance_high_watermark(self.end)
        return f"appended at offset {offset}"

    def _next(self) -> Offset:
        offset, self.end = self.end, Offset(self.end + 1)
        return offset


class Coordinator(Machine):
    """Logs what it writes and what it wants done."""

    def __init__(self, world: World, version: TransactionVersion) -> None:
        self.world = world
        super().__init__(version=version)

    def run(self, decision: TransactionDecision[R]) -> R:
        for record in decision.records:
            assert isinstance(record, TransactionRecord)
            transaction = record.transaction
            assert transaction is not None
            partitions = f" partitions={_names(transaction.partitions)}" if transaction.partitions else ""
            client = f" client={show(transaction.client)}" if transaction.is_kept else ""
            producer = show(transaction.producer)
            self.world.log(f"  record: {transaction.state.name} producer={producer}{client}{partitions}")
        for action in decision.actions:
            self.world.log(f"  action: {_outcome(action)} producer={show(action.producer)} {_names(action.partitions)}")
        return super().run(decision)


class Transactions(World):
    def __init__(self) -> None:
        super().__init__()
        self.coordinator = Coordinator(self, TV_2)
        self.version = TV_2
        self.clients: dict[str, ProducerIdAndEpoch] = {}
        self.sequences: dict[tuple[ProducerIdAndEpoch, str], int] = {}
        self.partitions: dict[str, Partition] = {}

    def do_version(self, version: str) -> None:
        self.version = TransactionVersion(int(version))
        self.coordinator = Coordinator(self, self.version)

    def do_init(self, client: str, timeout_ms: str = "60000") -> None:
        error, who = self.coordinator.init(timeout_ms=int(timeout_ms))
        if error is ErrorCode.none:
            self.clients[client] = who
        self.log(f"answer: {error.name}" + (f" {show(who)}" if error is ErrorCode.none else ""))

    def do_init_two_phase(self, client: str) -> None:
        self.clients[client] = self.coordinator.begin_two_phase()
        self.log(f"answer: none {show(self.clients[client])}")

    def do_keep(self, client: str) -> None:
        answer = self.coordinator.keep()
        self.clients[client] = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
        kept = ProducerIdAndEpoch(answer.ongoing_producer_id, answer.ongoing_producer_epoch)
        what = "nothing" if kept.producer_id == NO_PRODUCER_ID else show(kept)
        self.log(f"answer: {answer.error.name} {show(self.clients[client])}, kept {what}")

    def do_add(self, client: str, *names: str) -> None:
        partitions = [TopicPartition("t", int(name.removeprefix("t-"))) for name in names]
        error = self.coordinator.add(self.clients[client], *partitions, version=self.version)
        self.log(f"answer: {error.name}")

    def do_end(self, client: str, outcome: str) -> None:
        error, who = self._end(client, outcome)
        if error is ErrorCode.none and self.version is not TV_0:
            self.clients[client] = who

    def do_end_unheard(self, client: str, outcome: str) -> None:
        self._end(client, outcome)

    def _end(self, client: str, outcome: str) -> tuple[ErrorCode, ProducerIdAndEpoch]:
        committed = {"commit": True, "abort": False}[outcome]
        error, who = self.coordinator.end(self.clients[client], committed, version=self.version)
        self.log(f"answer: {error.name}" + (f" {show(who)}" if error is ErrorCode.none and who != (-1, -1) else ""))
        return error, who

    def do_produce(self, client: str, name: str) -> None:
        who = self.clients[client]
        sequence = self.sequences.get((who, name), 0)
        result = self.partitions.setdefault(name, Partition()).append(who, sequence, self.coordinator.now)
        if result.startswith("appended"):
            self.sequences[who, name] = sequence + 1
        self.log(f"{name}: batch of {show(who)}, sequence {sequence}: {result}")

    def do_markers(self) -> None:
        due, self.coordinator.actions = self.coordinator.actions, []
        for action in due:
            for topic_partition in action.partitions:
                name = str(topic_partition)
                result = self.partitions.setdefault(name, Partition()).mark(action, self.coordinator.now)
                self.log(f"{name}: {_outcome(action)} of {show(action.producer)}: {result}")
            coordinator = self.coordinator
            coordinator.run(
                coordinator.shard.markers_written(action.transactional_id, action.producer, coordinator.now)
            )

    def do_wait(self, milliseconds: str) -> None:
        self.coordinator.tick(int(milliseconds))

    def do_failover(self) -> None:
        self.coordinator.fail_over()

    def do_status(self) -> None:
        transaction = self.coordinator.stored()
        self.log(f"orders: {transaction.state.name} producer={show(transaction.producer)}")
        for name, partition in sorted(self.partitions.items()):
            self.log(f"{name}: last stable offset {partition.stable}, end {partition.end}")


def _names(partitions: tuple[TopicPartition, ...]) -> str:
    return f"[{' '.join(map(str, partitions))}]"


def _outcome(action: WriteMarkers) -> str:
    return f"{'COMMIT' if action.committed else 'ABORT'} marker"


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_a_transaction_follows_the_transcript(path: Path) -> None:
    check(path, Transactions())
