"""Random operations of several clients, with lost answers, late requests and failovers.

At every step: the state rebuilt from the records equals the live state, only moves of the table happen, no identity
has two owners, and no outcome turns.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from einmal.transactions.states import VALID_PREVIOUS, TransactionState
from einmal.transactions.transaction import Transaction
from einmal.types import (
    EPOCH_MAX,
    NO_PRODUCER_ID,
    ErrorCode,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)
from tests.transactions.machine import Machine, with_epoch

IDS = st.sampled_from(["orders", "other"])
PARTITIONS = st.lists(st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 3)), max_size=3)
VERSIONS = st.sampled_from([TransactionVersion.TV_0, TransactionVersion.TV_2])
WHO = st.integers(0, 30)


class Coordinator(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.machine = Machine(id_expiration_ms=200_000, id_expiration_interval_ms=50_000)
        # Every identity that a client ever got, for late requests.
        self.told: list[ProducerIdAndEpoch] = []
        self.fresh: set[ProducerIdAndEpoch] = set()
        self.outcomes: dict[ProducerIdAndEpoch, bool] = {}
        self.before: dict[str, Transaction] = {}

    @initialize(version=VERSIONS, epoch=st.sampled_from([0, 0, EPOCH_MAX - 2]))
    def start(self, version: TransactionVersion, epoch: int) -> None:
        self.machine = Machine(version=version, id_expiration_ms=200_000, id_expiration_interval_ms=50_000)
        self.told.append(with_epoch(self.machine, epoch))

    def who(self, pick: int) -> ProducerIdAndEpoch:
        return self.told[-1 - pick % len(self.told)]

    @rule(id=IDS, timeout_ms=st.sampled_from([1_000, 60_000]))
    def init(self, id: str, timeout_ms: int) -> None:
        error, who = self.machine.init(id=id, timeout_ms=timeout_ms)
        if error is ErrorCode.none:
            assert who not in self.fresh, "two new instances got one identity"
            self.fresh.add(who)
            self.told.append(who)

    @rule(id=IDS, two_phase=st.booleans())
    def keep(self, id: str, two_phase: bool) -> None:
        before = self.machine.shard.transactions.get(id)
        answer = self.machine.keep(id=id, two_phase=two_phase)
        if answer.error is not ErrorCode.none:
            return
        who = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
        assert who not in self.fresh, "two new instances got one identity"
        self.fresh.add(who)
        self.told.append(who)
        if before is not None and before.state is TransactionState.ONGOING:
            after = self.machine.stored(id)
            assert (after.state, after.producer, after.partitions) == (before.state, before.producer, before.partitions)
            assert (answer.ongoing_producer_id, answer.ongoing_producer_epoch) == before.producer
            assert after.client != before.client
        else:
            assert answer.ongoing_producer_id == NO_PRODUCER_ID

    @rule(id=IDS, pick=WHO)
    def recover(self, id: str, pick: int) -> None:
        error, who = self.machine.init(self.who(pick), id=id)
        if error is ErrorCode.none:
            assert who == self.machine.stored(id).producer
            self.told.append(who)

    @rule(id=IDS, pick=WHO, partitions=PARTITIONS, version=VERSIONS)
    def add(self, id: str, pick: int, partitions: list[TopicPartition], version: TransactionVersion) -> None:
        who = self.who(pick)
        if self.machine.add(who, *partitions, version=version, id=id) is ErrorCode.none:
            assert self.machine.stored(id).producer == who
            assert set(partitions) <= set(self.machine.stored(id).partitions)

    @rule(id=IDS, pick=WHO, partitions=PARTITIONS)
    def verify(self, id: str, pick: int, partitions: list[TopicPartition]) -> None:
        who = self.who(pick)
        for partition, error in zip(partitions, self.machine.verify(who, *partitions, id=id), strict=True):
            if error is ErrorCode.none:
                assert self.machine.stored(id).state is TransactionState.ONGOING
                assert partition in self.machine.stored(id).partitions

    @rule(id=IDS, pick=WHO, committed=st.booleans(), version=VERSIONS)
    def end(self, id: str, pick: int, committed: bool, version: TransactionVersion) -> None:
        before = self.machine.shard.transactions.get(id)
        error, who = self.machine.end(self.who(pick), committed, version=version, id=id)
        if error is ErrorCode.none and before is not None and before.is_kept:
            assert self.who(pick) == before.client, "a fenced instance ended a transaction that was kept"
        if error is ErrorCode.none and version is TransactionVersion.TV_2:
            assert who.producer_epoch <= EPOCH_MAX
            self.told.append(who)

    @rule()
    def write_markers(self) -> None:
        for action in self.machine.write_markers():
            assert action.partitions
            assert action.committed == self.outcomes.setdefault(action.producer, action.committed) or (
                action.transaction_version is TransactionVersion.TV_0
            ), "an outcome turned"

    @precondition(lambda self: self.machine.actions)
    @rule(pick=WHO)
    def write_some_markers(self, pick: int) -> None:
        action = self.machine.actions.pop(pick % len(self.machine.actions))
        self.machine.run(self.machine.shard.markers_written(action.transactional_id, action.producer, self.machine.now))

    @rule()
    def fail_over(self) -> None:
        self.machine.fail_over()
        prepared = [each for each in self.machine.shard.transactions.values() if each.state.is_prepared]
        assert len(self.machine.actions) == len(prepared)

    @rule(after_ms=st.sampled_from([1, 500, 1_000, 60_000, 250_000]))
    def wait(self, after_ms: int) -> None:
        self.machine.tick(after_ms)
        deadline = self.machine.shard.next_deadline()
        assert deadline is None or deadline > self.machine.now_ms, "nothing overdue is left behind"

    @invariant()
    def rebuilt_state_equals_live_state(self) -> None:
        assert self.machine.reloaded().transactions == self.machine.shard.transactions

    @invariant()
    def only_moves_of_the_table_happen(self) -> None:
        for id, now in self.machine.shard.transactions.items():
            before = self.before.get(id)
            if before is not None and before != now:
                # An empty transaction prepares and completes in one step.
                reachable = VALID_PREVIOUS[now.state] | {
                    each for step in VALID_PREVIOUS[now.state] for each in VALID_PREVIOUS[step]
                }
                assert before.state in reachable
            assert (now.next_producer_id == NO_PRODUCER_ID) or now.state.is_prepared or now.is_kept
            assert not now.is_kept or now.state.is_prepared or now.state is TransactionState.ONGOING
            if now.is_kept and now.client.producer_id == now.producer_id:
                assert now.client.producer_epoch > now.producer_epoch, "the next transaction begins after the markers"
        self.before = dict(self.machine.shard.transactions)


Coordinator.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_random_operations = Coordinator.TestCase
