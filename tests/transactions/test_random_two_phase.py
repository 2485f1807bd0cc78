"""Random two-phase commits (KIP-939) with a database, partitions, late requests, late markers and failovers.

Instances come and go; each fences its predecessors in the database, keeps what it finds and ends it as the database has
decided. At every step a committed marker is in the database, no name is used twice, and no marker is refused the first
time; where no transaction is open, partitions and database have the same transactions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from einmal.log.producer_state import CLIENT, ProducerStates
from einmal.shard.decision import Decision
from einmal.transactions.markers import WriteMarkers
from einmal.transactions.records import TransactionRecord
from einmal.transactions.states import AT_REST, TransactionState
from einmal.types import EPOCH_MAX, ErrorCode, Offset, ProducerEpoch, ProducerIdAndEpoch, Sequence, TopicPartition
from tests.log.making import batch, header_of
from tests.transactions.machine import ID, TV_2, Machine, with_epoch

PARTITIONS = tuple(TopicPartition("t", index) for index in range(2))
PICK = st.integers(0, 30)
OK = ErrorCode.none
RETRIED = (ErrorCode.concurrent_transactions, ErrorCode.coordinator_load_in_progress)


@dataclass
class Instance:
    """A producer with its database session. ``name``: of the open transaction, once it is prepared."""

    pair: ProducerIdAndEpoch
    owner: int
    kept: ProducerIdAndEpoch | None
    name: ProducerIdAndEpoch | None = None
    sequences: dict[TopicPartition, int] = field(default_factory=dict)
    is_dead: bool = False


@dataclass
class Partition:
    producers: ProducerStates = field(default_factory=ProducerStates)
    end: Offset = Offset(0)
    open: dict[int, ProducerIdAndEpoch] = field(default_factory=dict)
    """The pair of the records of each open transaction, by producer id."""
    committed: set[ProducerIdAndEpoch] = field(default_factory=set)
    aborted: set[ProducerIdAndEpoch] = field(default_factory=set)


class TwoPhase(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.machine = Machine()
        self.partitions = {each: Partition() for each in PARTITIONS}
        self.instances: list[Instance] = []
        self.ends: list[tuple[ProducerIdAndEpoch, bool]] = []
        """Every EndTxn that was ever sent: each may arrive again."""
        self.markers: list[WriteMarkers] = []
        """Every marker that was ever written: each may arrive again."""
        self.owner = 0
        self.rows: dict[ProducerIdAndEpoch, set[TopicPartition]] = {}
        """What the database has committed: the partitions of each name."""
        self.state: ProducerIdAndEpoch | None = None
        self.begun: set[ProducerIdAndEpoch] = set()

    @initialize(epoch=st.sampled_from([3, EPOCH_MAX - 3, EPOCH_MAX - 2, EPOCH_MAX - 1, EPOCH_MAX]))
    def start(self, epoch: int) -> None:
        with_epoch(self.machine, epoch)

    # --- an instance ------------------------------------------------------------------------------------------------

    @rule()
    def begin_instance(self) -> None:
        answer = self.machine.keep()
        if answer.error in RETRIED:
            return
        assert answer.error is OK
        pair = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
        kept = ProducerIdAndEpoch(answer.ongoing_producer_id, answer.ongoing_producer_epoch)
        # The database is acquired later: see ``recover``.
        self.instances.append(Instance(pair, 0, None if kept.producer_id < 0 else kept))

    @precondition(lambda self: self.instances)
    @rule(pick=PICK)
    def recover(self, pick: int) -> None:
        """Fence in the database, then end what was kept as it has decided."""
        one = self._picked(pick)
        if one.is_dead or (one.owner and one.kept is None):
            return
        if not one.owner:
            self.owner += 1
            one.owner = self.owner
            one.name = self.state
        if one.kept is not None and self._end(one, one.kept == one.name):
            one.kept = None
            one.name = None

    @precondition(lambda self: self.instances)
    @rule(pick=PICK, partition=st.sampled_from(PARTITIONS))
    def send(self, pick: int, partition: TopicPartition) -> None:
        """A record, after its partition was added; the coordinator is not asked again within a transaction."""
        one = self._picked(pick)
        if one.is_dead or not one.owner or one.kept is not None or one.name is not None:
            return
        at = self.partitions[partition]
        if not at.producers.has_open_transaction(one.pair):
            guard = at.producers.begin_verification(one.pair, Sequence(0), TV_2)
            error = self.machine.add(one.pair, partition)
            if error in RETRIED:
                return
            if error is not OK:
                one.is_dead = True
                return
            assert one.pair not in self.begun or one.sequences, "a name is used again"
            self.begun.add(one.pair)
        else:
            guard = None
        sequence = one.sequences.get(partition, 0)
        header = header_of(batch(of=one.pair, sequence=sequence, transactional=True))
        verdict = at.producers.check(header, CLIENT, guard)
        if verdict is not OK:
            one.is_dead = True
            return
        at.producers.replay_batch(header, at.end, at.end, self.machine.now.wall_ms, self.machine.now)
        at.end = Offset(at.end + 1)
        at.open[one.pair.producer_id] = one.pair
        one.sequences[partition] = sequence + 1

    @precondition(lambda self: self.instances)
    @rule(pick=PICK)
    def prepare(self, pick: int) -> None:
        one = self._picked(pick)
        if not one.is_dead and one.owner and one.kept is None and one.sequences:
            one.name = one.pair

    @precondition(lambda self: self.instances)
    @rule(pick=PICK)
    def commit_in_the_database(self, pick: int) -> None:
        one = self._picked(pick)
        if one.is_dead or one.name is None or one.kept is not None or one.name in self.rows:
            return
        if one.owner != self.owner:
            one.is_dead = True
            return
        self.rows[one.name] = set(one.sequences)
        self.state = one.name

    @precondition(lambda self: self.instances)
    @rule(pick=PICK)
    def complete(self, pick: int) -> None:
        one = self._picked(pick)
        if one.is_dead or one.kept is not None or one.name is None:
            return
        # As its own database session has decided: one that was fenced there does not know, and ends.
        if one.name not in self.rows and one.owner != self.owner:
            one.is_dead = True
        elif self._end(one, one.name in self.rows):
            one.name = None
            one.sequences.clear()

    def _end(self, one: Instance, committed: bool) -> bool:
        self.ends.append((one.pair, committed))
        error, following = self.machine.end(one.pair, committed)
        if error in RETRIED:
            return False
        if error is not OK:
            one.is_dead = True
            return False
        one.pair = following
        return True

    # --- often, these steps follow each other ----------------------------------------------------------------------

    @rule()
    def take_over(self) -> None:
        """Whatever the predecessor has left."""
        self.write_markers()
        self.begin_instance()
        self.recover(0)
        self.write_markers()

    @precondition(lambda self: self.instances)
    @rule(pick=st.integers(0, 2), partition=st.sampled_from(PARTITIONS), has_committed=st.booleans())
    def write(self, pick: int, partition: TopicPartition, has_committed: bool) -> None:
        self.send(pick, partition)
        self.prepare(pick)
        if has_committed:
            self.commit_in_the_database(pick)

    def _picked(self, pick: int) -> Instance:
        return self.instances[-1 - pick % len(self.instances)]

    # --- what happens meanwhile ---------------------------------------------------------------------------------------

    @precondition(lambda self: self.ends)
    @rule(pick=st.integers(0, 5))
    def late_end(self, pick: int) -> None:
        self.machine.end(*self.ends[-1 - pick % len(self.ends)])

    @rule()
    def write_markers(self) -> None:
        for action in self.machine.actions:
            for at in action.partitions:
                assert self._mark(at, action) is OK, "a marker is refused, and the transaction stays open"
            self.markers.append(action)
        self.machine.write_markers()

    @precondition(lambda self: self.machine.actions)
    @rule(partition=st.sampled_from(PARTITIONS))
    def write_one_marker(self, partition: TopicPartition) -> None:
        """It is written again with the others."""
        action = self.machine.actions[0]
        if partition in action.partitions:
            assert self._mark(partition, action) is OK

    @precondition(lambda self: self.markers)
    @rule(pick=PICK)
    def late_marker(self, pick: int) -> None:
        action = self.markers[-1 - pick % len(self.markers)]
        for partition in action.partitions:
            before = dict(self.partitions[partition].open)
            self._mark(partition, action)
            assert self.partitions[partition].open == before, "a late marker has ended another transaction"

    def _mark(self, partition: TopicPartition, action: WriteMarkers) -> ErrorCode:
        at, now = self.partitions[partition], self.machine.now
        error = at.producers.check_marker(action.producer, 0, action.transaction_version)
        if error is OK:
            completed = at.producers.replay_marker(
                action.producer,
                committed=action.committed,
                coordinator_epoch=0,
                offset=at.end,
                timestamp=now.wall_ms,
                now=now,
            )
            at.end = Offset(at.end + 1)
            at.producers.advance_high_watermark(at.end)
            ended = at.open.pop(action.producer.producer_id, None)
            assert (completed is None) == (ended is None)
            if ended is not None:
                (at.committed if action.committed else at.aborted).add(ended)
        return error

    @rule()
    def fail_over(self) -> None:
        self.machine.fail_over()

    @rule(after_ms=st.sampled_from([60_000, 10**9]))
    def wait(self, after_ms: int) -> None:
        self.machine.tick(after_ms)

    @rule(left=st.integers(0, 2))
    def use_up_epochs(self, left: int) -> None:
        """Thousands of transactions later, at rest; or as many crashes of those that keep one."""
        if ID not in self.machine.shard.transactions:
            return
        stored = self.machine.stored()
        epoch = ProducerEpoch(EPOCH_MAX - left)
        if stored.is_kept and not stored.state.is_prepared and stored.next_producer_epoch < epoch:
            moved = replace(stored, next_producer_epoch=epoch)
        elif stored.state in AT_REST and stored.producer_epoch < epoch:
            moved = replace(stored, producer_epoch=epoch, last_producer_epoch=ProducerEpoch(-1))
        else:
            return
        self.machine.run(Decision(records=(TransactionRecord(ID, moved),), response=None))

    # --- claims -------------------------------------------------------------------------------------------------------

    @invariant()
    def what_is_committed_is_in_the_database(self) -> None:
        for partition, at in self.partitions.items():
            for name in at.committed:
                assert partition in self.rows.get(name, ()), f"{name} is committed, and not in the database"
            assert not at.aborted & self.rows.keys(), "the database has what is aborted"

    @invariant()
    def at_rest_both_have_the_same(self) -> None:
        stored = self.machine.shard.transactions.get(ID)
        if stored is None or stored.state not in AT_REST or self.machine.actions:
            return
        for partition, at in self.partitions.items():
            assert not at.open, "nobody ends this transaction"
            assert at.committed == {name for name, places in self.rows.items() if partition in places}

    @invariant()
    def nothing_ends_by_itself(self) -> None:
        stored = self.machine.shard.transactions.get(ID)
        if stored is not None and stored.state is TransactionState.ONGOING:
            assert stored.is_two_phase


TwoPhase.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
test_random_two_phase_commits = TwoPhase.TestCase
