"""Claims about a client's transaction: which calls are possible when, and what an error leaves possible."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from einmal.client.apis import SPOKEN, ApiKey
from einmal.client.cores.transaction_core import (
    VALID_MOVES,
    TransactionCore,
    TxnPhase,
    as_abortable,
    coordinator_error,
    end_txn_error,
    no_two_phase_commit,
    produce_versions,
    version_for,
)
from einmal.client.errors import (
    AbortableError,
    CommitFailed,
    FatalError,
    InvalidState,
    KafkaError,
    ProducerFenced,
    ProducerNotAuthorized,
    RetriableError,
    TransactionAborted,
    UnknownOutcome,
    error_for,
)
from einmal.client.prepared_txn_state import PreparedTxnState
from einmal.types import ErrorCode, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition, TransactionVersion
from tests.suite.cases import each_case

T0 = TopicPartition("t", 0)
FIRST = ProducerIdAndEpoch(ProducerId(4), ProducerEpoch(0))
SECOND = ProducerIdAndEpoch(ProducerId(4), ProducerEpoch(1))
OTHER = ProducerIdAndEpoch(ProducerId(3), ProducerEpoch(7))


def ready(version: TransactionVersion = TransactionVersion.TV_2) -> TransactionCore:
    core = TransactionCore("id")
    core.begin_initialization()
    core.initialized(FIRST)
    core.version = version
    return core


def in_transaction(version: TransactionVersion = TransactionVersion.TV_2) -> TransactionCore:
    core = ready()
    core.begin(version)
    return core


# --- states ------------------------------------------------------------------------------------------------------


def test_every_state_can_be_reached_and_fatal_is_the_only_end() -> None:
    reached = {TxnPhase.UNINITIALIZED}
    while following := {to for at in reached for to in VALID_MOVES[at]} - reached:
        reached |= following
    assert reached == set(TxnPhase)
    assert [state for state in TxnPhase if not VALID_MOVES[state]] == [TxnPhase.FATAL_ERROR]


@each_case(("at", "to"), itertools.product(TxnPhase, TxnPhase))
def test_only_valid_moves_are_made(at: TxnPhase, to: TxnPhase) -> None:
    core = TransactionCore("id")
    core.state = at
    if to in VALID_MOVES[at]:
        core._move(to)
        assert core.state is to
    else:
        with pytest.raises(AssertionError):
            core._move(to)


CALLS: dict[str, Callable[[TransactionCore], object]] = {
    "init": lambda core: core.begin_initialization(),
    "begin": lambda core: core.begin(TransactionVersion.TV_2),
    "send": lambda core: core.check_send(),
    "prepare": lambda core: core.begin_prepare(),
    "complete": lambda core: core.decision(PreparedTxnState()),
    "commit": lambda core: core.begin_commit(),
    "abort": lambda core: core.begin_abort(),
}
POSSIBLE = {
    TxnPhase.UNINITIALIZED: {"init"},
    TxnPhase.INITIALIZING: set(),
    TxnPhase.READY: {"begin"},
    TxnPhase.IN_TRANSACTION: {"send", "prepare", "commit", "abort"},
    TxnPhase.PREPARING: set(),
    TxnPhase.PREPARED: {"complete", "commit", "abort"},
    TxnPhase.COMMITTING: set(),
    TxnPhase.ABORTING: set(),
    TxnPhase.ABORTABLE_ERROR: {"abort"},
    TxnPhase.FATAL_ERROR: set(),
}


@each_case(("state", "call"), itertools.product(TxnPhase, CALLS))
def test_each_call_is_possible_in_its_states_only(state: TxnPhase, call: str) -> None:
    core = TransactionCore("id", has_two_phase_commit=True)
    core.state = state
    if call in POSSIBLE[state]:
        CALLS[call](core)
    else:
        with pytest.raises(InvalidState, match="is not possible in state"):
            CALLS[call](core)


def test_a_spoiled_transaction_answers_with_what_spoiled_it() -> None:
    core = in_transaction()
    core.failed(error_for(ErrorCode.transaction_abortable, "x"))
    for call in ("send", "commit", "begin"):
        with pytest.raises(AbortableError, match="TRANSACTION_ABORTABLE"):
            CALLS[call](core)
    core.begin_abort()
    core.ended(SECOND)
    core.begin(TransactionVersion.TV_2)
    assert core.identity == SECOND


def test_a_fenced_producer_answers_everything_with_that() -> None:
    core = in_transaction()
    core.failed(ProducerFenced(ErrorCode.producer_fenced))
    for call in CALLS:
        with pytest.raises(ProducerFenced):
            CALLS[call](core)


def test_the_first_error_is_kept_and_only_a_fatal_one_replaces_it() -> None:
    core = in_transaction()
    first = error_for(ErrorCode.transaction_abortable)
    core.failed(first)
    core.failed(error_for(ErrorCode.invalid_txn_state))
    assert core.error is first
    fatal = ProducerFenced(ErrorCode.producer_fenced)
    core.failed(fatal)
    assert (core.state, core.error) == (TxnPhase.FATAL_ERROR, fatal)


def test_a_record_that_fails_while_aborting_does_not_spoil_the_abort() -> None:
    core = in_transaction()
    core.begin_abort()
    core.record_failed(TransactionAborted())
    before = core.state
    core.ended(SECOND)
    assert (before, core.state) == (TxnPhase.ABORTING, TxnPhase.READY)


def test_a_lost_answer_to_a_commit_ends_the_producer_and_to_an_abort_does_not() -> None:
    core = in_transaction()
    core.begin_commit()
    core.failed(UnknownOutcome())
    assert core.state is TxnPhase.FATAL_ERROR
    core = in_transaction()
    core.begin_abort()
    core.failed(as_abortable(UnknownOutcome()))
    assert core.state is TxnPhase.ABORTABLE_ERROR
    core.begin_abort()


def test_initialization_can_be_tried_again_unless_the_error_is_final() -> None:
    core = TransactionCore("id")
    core.begin_initialization()
    core.failed(RetriableError(ErrorCode.coordinator_not_available))
    core.begin_initialization()
    core.failed(error_for(ErrorCode.invalid_transaction_timeout))
    assert core.state is TxnPhase.FATAL_ERROR


def test_a_commit_with_an_unknown_outcome_is_raised_as_it_is_and_ends_the_producer() -> None:
    core = in_transaction()
    core.begin_commit()
    lost = UnknownOutcome()
    assert core.commit_failed(lost) is lost
    assert (core.state, core.error) == (TxnPhase.FATAL_ERROR, lost)


def test_a_commit_that_was_refused_is_raised_as_what_the_transaction_keeps() -> None:
    core = in_transaction()
    core.begin_commit()
    raised = core.commit_failed(RetriableError(ErrorCode.coordinator_not_available))
    assert isinstance(raised, AbortableError)
    assert (core.state, core.error) == (TxnPhase.ABORTABLE_ERROR, raised)


def test_any_other_request_with_an_unknown_outcome_leaves_the_transaction_to_be_aborted() -> None:
    core = in_transaction()
    raised = core.request_failed(UnknownOutcome())
    assert isinstance(raised, AbortableError)
    assert (core.error, core.may_abort) == (raised, True)


def test_what_was_spoiled_while_it_was_flushed_is_not_committed() -> None:
    core = in_transaction()
    core.begin_commit()
    core.record_failed(RetriableError(ErrorCode.request_timed_out))
    with pytest.raises(AbortableError):
        core.check_flushed()
    core.failed(ProducerFenced(ErrorCode.producer_fenced))
    with pytest.raises(ProducerFenced):
        core.check_flushed()


def test_a_cancelled_commit_ends_the_producer_and_a_cancelled_abort_can_be_repeated() -> None:
    core = in_transaction()
    core.begin_commit()
    core.cancelled()
    assert core.state is TxnPhase.FATAL_ERROR
    assert isinstance(core.error, UnknownOutcome)
    core = in_transaction()
    core.begin_abort()
    core.cancelled()
    assert core.state is TxnPhase.ABORTABLE_ERROR
    core.begin_abort()


def test_a_cancelled_initialization_can_be_repeated() -> None:
    core = TransactionCore("id")
    core.begin_initialization()
    core.cancelled()
    assert core.state is TxnPhase.UNINITIALIZED


def test_cancelling_changes_nothing_once_the_transaction_is_spoiled() -> None:
    core = in_transaction()
    core.begin_commit()
    core.record_failed(RetriableError(ErrorCode.request_timed_out))
    error = core.error
    core.cancelled()
    assert (core.state, core.error) == (TxnPhase.ABORTABLE_ERROR, error)


@pytest.mark.parametrize("state", TxnPhase)
def test_an_abort_is_possible_of_an_open_or_a_spoiled_transaction(state: TxnPhase) -> None:
    core = TransactionCore("id")
    core.state = state
    assert core.may_abort is ("abort" in POSSIBLE[state])


# --- what a transaction needs ---------------------------------------------------------------------------------------


def test_below_tv_2_a_partition_is_added_before_it_is_written_to() -> None:
    core = in_transaction(TransactionVersion.TV_1)
    assert not core.may_write(T0)
    assert core.partitions_to_add() == [T0]
    core.added([T0])
    assert core.may_write(T0)
    assert core.partitions_to_add() == []
    assert core.must_add_group("g")
    core.group_added("g")
    assert not core.must_add_group("g")


def test_under_tv_2_partitions_and_groups_add_themselves() -> None:
    core = in_transaction()
    assert core.may_write(T0)
    assert not core.must_add_group("g")
    assert core.partitions_to_add() == []


@pytest.mark.parametrize("version", [TransactionVersion.TV_1, TransactionVersion.TV_2])
def test_an_empty_transaction_needs_no_end(version: TransactionVersion) -> None:
    core = in_transaction(version)
    assert not core.has_begun
    core.may_write(T0)
    assert core.has_begun


def test_a_new_transaction_knows_nothing_of_the_former_one() -> None:
    core = in_transaction(TransactionVersion.TV_1)
    core.may_write(T0)
    core.added([T0])
    core.group_added("g")
    core.begin_commit()
    core.ended(None)
    core.begin(TransactionVersion.TV_1)
    assert not core.has_begun
    assert not core.may_write(T0)


@pytest.mark.parametrize(
    ("finalized", "version"), [(0, TransactionVersion.TV_1), (1, TransactionVersion.TV_1), (2, TransactionVersion.TV_2)]
)
def test_a_transaction_has_the_version_that_the_cluster_has_finalized(
    finalized: int, version: TransactionVersion
) -> None:
    assert version_for(finalized) is version


def test_after_a_commit_below_tv_2_only_a_new_epoch_moves_to_tv_2() -> None:
    """KAFKA-18227."""
    core = in_transaction(TransactionVersion.TV_1)
    core.may_write(T0)
    core.begin_commit()
    core.ended(None)
    versions = []
    for next_identity in (None, SECOND, None):
        core.begin(TransactionVersion.TV_2)
        versions.append(core.version)
        core.begin_abort()
        core.ended(next_identity)
    assert versions == [TransactionVersion.TV_1, TransactionVersion.TV_1, TransactionVersion.TV_2]


def test_an_empty_transaction_below_tv_2_uses_no_epoch() -> None:
    core = in_transaction(TransactionVersion.TV_1)
    core.begin_commit()
    core.ended(None)
    core.begin(TransactionVersion.TV_2)
    assert core.version is TransactionVersion.TV_2


def test_the_produce_version_determines_the_transaction_version() -> None:
    lowest, highest = SPOKEN[ApiKey.PRODUCE]
    assert produce_versions(None) == (lowest, highest)
    assert produce_versions(TransactionVersion.TV_1) == (lowest, 11)
    assert produce_versions(TransactionVersion.TV_2) == (12, highest)


def test_only_below_tv_2_a_coordinator_may_not_know_what_is_to_be_aborted() -> None:
    unknown, other = error_for(ErrorCode.invalid_txn_state), error_for(ErrorCode.transaction_abortable)
    assert in_transaction(TransactionVersion.TV_1).is_unknown_abort(unknown)
    assert not in_transaction(TransactionVersion.TV_1).is_unknown_abort(other)
    assert not in_transaction(TransactionVersion.TV_2).is_unknown_abort(unknown)


def test_only_below_tv_2_an_abort_asks_for_a_new_epoch() -> None:
    assert in_transaction(TransactionVersion.TV_1).needs_new_epoch
    assert not in_transaction(TransactionVersion.TV_2).needs_new_epoch


# --- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.invalid_producer_epoch, ProducerFenced),
        (ErrorCode.producer_fenced, ProducerFenced),
        (ErrorCode.invalid_producer_id_mapping, FatalError),
        (ErrorCode.transactional_id_authorization_failed, ProducerNotAuthorized),
        (ErrorCode.cluster_authorization_failed, ProducerNotAuthorized),
        (ErrorCode.unsupported_version, FatalError),
        (ErrorCode.transaction_abortable, AbortableError),
        (ErrorCode.invalid_txn_state, AbortableError),
        (ErrorCode.illegal_generation, CommitFailed),
    ],
)
def test_what_a_coordinator_s_refusal_means(code: ErrorCode, kind: type[KafkaError]) -> None:
    assert type(coordinator_error(code, "")) is kind


@pytest.mark.parametrize("code", [ErrorCode.producer_fenced, ErrorCode.invalid_txn_state])
def test_a_commit_refused_after_a_lost_answer_is_unknown(code: ErrorCode) -> None:
    assert isinstance(end_txn_error(code, True, True, "id"), UnknownOutcome)
    assert not isinstance(end_txn_error(code, True, False, "id"), UnknownOutcome)
    assert not isinstance(end_txn_error(code, False, True, "id"), UnknownOutcome)


@each_case("code", [code for code in ErrorCode if code is not ErrorCode.none])
def test_a_failed_record_makes_the_transaction_abortable_unless_it_is_fatal(code: ErrorCode) -> None:
    assert isinstance(as_abortable(error_for(code)), AbortableError | FatalError)


# --- two-phase commit (KIP-939) -------------------------------------------------------------------------------------


def prepared() -> tuple[TransactionCore, PreparedTxnState]:
    core = TransactionCore("id", has_two_phase_commit=True)
    core.begin_initialization()
    core.initialized(FIRST)
    core.begin(TransactionVersion.TV_2)
    assert core.may_write(T0)
    core.begin_prepare()
    return core, core.prepare()


def recovered(kept: PreparedTxnState) -> TransactionCore:
    core = TransactionCore("id", has_two_phase_commit=True)
    core.begin_initialization()
    core.initialized(SECOND, kept)
    return core


def test_a_prepared_transaction_has_the_pair_of_its_records() -> None:
    core, state = prepared()
    assert state == PreparedTxnState(FIRST)
    assert (core.state, core.has_begun) == (TxnPhase.PREPARED, True)


def test_nothing_can_be_sent_once_preparing_has_begun() -> None:
    core = in_transaction()
    core.has_two_phase_commit = True
    core.begin_prepare()
    with pytest.raises(InvalidState, match="Wait until prepare_transaction"):
        core.check_send()
    core.prepare()
    with pytest.raises(InvalidState, match="Commit, abort or complete"):
        core.check_send()


def test_preparing_needs_two_phase_commit() -> None:
    core = in_transaction()
    with pytest.raises(InvalidState, match="without it a prepared transaction times out"):
        core.begin_prepare()
    assert core.state is TxnPhase.IN_TRANSACTION


def test_an_empty_transaction_has_an_empty_state_so_that_no_later_transaction_has_the_same() -> None:
    core = TransactionCore("id", has_two_phase_commit=True)
    core.begin_initialization()
    core.initialized(FIRST)
    core.begin(TransactionVersion.TV_2)
    core.begin_prepare()
    state = core.prepare()
    assert not state.has_transaction
    assert core.decision(state) is True
    core.begin_commit()
    assert not core.has_begun
    core.ended(None)
    core.begin(TransactionVersion.TV_2)
    core.may_write(T0)
    core.begin_prepare()
    assert core.prepare() == PreparedTxnState(FIRST)


@pytest.mark.parametrize(
    ("committed", "decision"),
    [(PreparedTxnState(FIRST), True), (PreparedTxnState(OTHER), False), (PreparedTxnState(), False)],
)
def test_only_the_transaction_that_the_database_has_committed_is_committed(
    committed: PreparedTxnState, decision: bool
) -> None:
    assert prepared()[0].decision(committed) is decision
    assert recovered(PreparedTxnState(FIRST)).decision(committed) is decision


@pytest.mark.parametrize("committed", ["4:0", "", None, FIRST])
def test_what_is_no_state_decides_nothing(committed: Any) -> None:
    """A text compares unequal to every state: the transaction that it names would be aborted."""
    for core in (prepared()[0], recovered(PreparedTxnState(FIRST)), recovered(PreparedTxnState())):
        before = core.state
        with pytest.raises(InvalidState, match=r"PreparedTxnState\.parse"):
            core.decision(committed)
        assert core.state is before


@pytest.mark.parametrize("epoch", [1, 2, 32_766])
def test_the_state_of_a_later_transaction_ends_nothing_but_the_producer(epoch: int) -> None:
    """A successor's; or one of another cluster, in which some later transaction will have it."""
    committed = PreparedTxnState(ProducerIdAndEpoch(FIRST.producer_id, ProducerEpoch(epoch)))
    for core in (prepared()[0], recovered(PreparedTxnState(FIRST)), recovered(PreparedTxnState())):
        with pytest.raises(FatalError, match="from another cluster"):
            core.decision(committed)
        assert core.state is TxnPhase.FATAL_ERROR


def test_a_transaction_that_can_be_prepared_is_of_version_2_whatever_a_broker_knows() -> None:
    """Below, EndTxn brings no epoch: the next transaction would have the state that the database has committed."""
    core = TransactionCore("id", has_two_phase_commit=True)
    core.begin_initialization()
    core.initialized(FIRST)
    core.begin(TransactionVersion.TV_1)
    assert core.version is TransactionVersion.TV_2
    assert not core.needs_new_epoch


@pytest.mark.parametrize("is_prepared", [True, False])
def test_a_record_that_comes_after_the_last_one_changes_nothing_about_the_transaction(is_prepared: bool) -> None:
    """Sent by another thread while EndTxn is under way: its sender learns of it, and nobody aborts for it."""
    core = prepared()[0] if is_prepared else in_transaction()
    core.begin_commit()
    core.check_flushed()
    core.record_failed(InvalidState(meaning="no transaction is open"))
    core.ended(SECOND)
    core.begin(TransactionVersion.TV_2)
    core.record_failed(InvalidState(meaning="lost"))
    assert core.state is TxnPhase.ABORTABLE_ERROR


def test_where_nothing_was_kept_completing_does_nothing_until_the_next_transaction_begins() -> None:
    core = recovered(PreparedTxnState())
    assert core.decision(PreparedTxnState(FIRST)) is None
    assert core.decision(PreparedTxnState(FIRST)) is None
    core.begin(TransactionVersion.TV_2)
    core.begin_commit()
    core.ended(None)
    with pytest.raises(InvalidState):
        core.decision(PreparedTxnState(FIRST))


def test_a_kept_transaction_ends_with_an_end_txn_of_version_2() -> None:
    core = recovered(PreparedTxnState(FIRST))
    assert (core.has_begun, core.version, core.needs_new_epoch) == (True, TransactionVersion.TV_2, False)
    assert core.identity == SECOND
    core.begin_commit()
    assert isinstance(core.commit_failed(RetriableError(ErrorCode.not_coordinator)), FatalError)


def test_a_cluster_without_two_phase_commit_ends_the_producer_with_a_hint() -> None:
    error = no_two_phase_commit("INIT_PRODUCER_ID: the broker 0-5")
    assert isinstance(error, FatalError)
    assert error.code is ErrorCode.unsupported_version
    assert "transaction.two.phase.commit.enable=true" in str(error)


def test_a_producer_that_kept_nothing_on_purpose_has_nothing_to_complete() -> None:
    with pytest.raises(InvalidState, match="Call begin_transaction"):
        ready().decision(PreparedTxnState(FIRST))


@pytest.mark.parametrize(
    "error",
    [
        RetriableError(ErrorCode.coordinator_not_available),
        UnknownOutcome(),
        AbortableError(ErrorCode.invalid_txn_state),
    ],
)
@pytest.mark.parametrize("committed", [True, False])
def test_a_prepared_transaction_is_never_aborted_because_its_end_failed(error: KafkaError, committed: bool) -> None:
    core, _ = prepared()
    (core.begin_commit if committed else core.begin_abort)()
    failure = core.commit_failed(error) if committed else core.request_failed(error)
    assert isinstance(failure, FatalError)
    assert "keep_prepared_txn=True" in str(failure)
    assert core.state is TxnPhase.FATAL_ERROR
    assert not core.may_abort


@pytest.mark.parametrize("committed", [True, False])
def test_a_cancelled_end_of_a_prepared_transaction_ends_the_producer(committed: bool) -> None:
    core, _ = prepared()
    (core.begin_commit if committed else core.begin_abort)()
    core.cancelled()
    assert core.state is TxnPhase.FATAL_ERROR


def test_a_prepared_transaction_that_was_fenced_answers_with_that() -> None:
    core, _ = prepared()
    core.begin_commit()
    fenced = ProducerFenced(ErrorCode.producer_fenced)
    assert core.commit_failed(fenced) is fenced


@pytest.mark.parametrize("how", ["failed", "cancelled"])
def test_a_transaction_that_could_not_be_prepared_can_only_be_aborted(how: str) -> None:
    core = in_transaction()
    core.has_two_phase_commit = True
    core.begin_prepare()
    if how == "failed":
        core.record_failed(UnknownOutcome())
    else:
        core.cancelled()
    assert core.may_abort
    with pytest.raises(AbortableError):
        core.check_flushed()
    core.begin_abort()
    core.ended(SECOND)
    assert core.state is TxnPhase.READY


def test_after_its_end_a_transaction_is_no_longer_prepared() -> None:
    core = recovered(PreparedTxnState(FIRST))
    core.begin_commit()
    core.ended(SECOND)
    core.begin(TransactionVersion.TV_2)
    core.begin_commit()
    assert isinstance(core.commit_failed(AbortableError()), AbortableError)
