"""Claims about a client's transaction: which calls are possible when, and what an error leaves possible."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from einmal.client.errors import (
    AbortableError,
    CommitFailed,
    FatalError,
    InvalidState,
    KafkaError,
    ProducerFenced,
    RetriableError,
    TransactionAborted,
    UnknownOutcome,
    error_for,
)
from einmal.client.transaction_core import (
    VALID_MOVES,
    State,
    TransactionCore,
    as_abortable,
    coordinator_error,
    end_txn_error,
)
from einmal.types import ErrorCode, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition, TransactionVersion

T0 = TopicPartition("t", 0)
FIRST = ProducerIdAndEpoch(ProducerId(4), ProducerEpoch(0))
SECOND = ProducerIdAndEpoch(ProducerId(4), ProducerEpoch(1))


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
    reached = {State.UNINITIALIZED}
    while following := {to for at in reached for to in VALID_MOVES[at]} - reached:
        reached |= following
    assert reached == set(State)
    assert [state for state in State if not VALID_MOVES[state]] == [State.FATAL_ERROR]


@pytest.mark.parametrize(("at", "to"), list(itertools.product(State, State)))
def test_only_valid_moves_are_made(at: State, to: State) -> None:
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
    "commit": lambda core: core.begin_commit(),
    "abort": lambda core: core.begin_abort(),
}
POSSIBLE = {
    State.UNINITIALIZED: {"init"},
    State.INITIALIZING: set(),
    State.READY: {"begin"},
    State.IN_TRANSACTION: {"send", "commit", "abort"},
    State.COMMITTING: set(),
    State.ABORTING: set(),
    State.ABORTABLE_ERROR: {"abort"},
    State.FATAL_ERROR: set(),
}


@pytest.mark.parametrize(("state", "call"), list(itertools.product(State, CALLS)))
def test_each_call_is_possible_in_its_states_only(state: State, call: str) -> None:
    core = TransactionCore("id")
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
    assert (core.state, core.error) == (State.FATAL_ERROR, fatal)


def test_a_record_that_fails_while_aborting_does_not_spoil_the_abort() -> None:
    core = in_transaction()
    core.begin_abort()
    core.record_failed(TransactionAborted())
    assert core.state is State.ABORTING
    core.ended(SECOND)
    assert core.state is State.READY


def test_a_lost_answer_to_a_commit_ends_the_producer_and_to_an_abort_does_not() -> None:
    core = in_transaction()
    core.begin_commit()
    core.failed(UnknownOutcome())
    assert core.state is State.FATAL_ERROR
    core = in_transaction()
    core.begin_abort()
    core.failed(as_abortable(UnknownOutcome()))
    assert core.state is State.ABORTABLE_ERROR
    core.begin_abort()


def test_initialization_can_be_tried_again_unless_the_error_is_final() -> None:
    core = TransactionCore("id")
    core.begin_initialization()
    core.failed(RetriableError(ErrorCode.coordinator_not_available))
    core.begin_initialization()
    core.failed(error_for(ErrorCode.invalid_transaction_timeout))
    assert core.state is State.FATAL_ERROR


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
        (ErrorCode.transactional_id_authorization_failed, FatalError),
        (ErrorCode.cluster_authorization_failed, FatalError),
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


@pytest.mark.parametrize("code", [code for code in ErrorCode if code is not ErrorCode.none])
def test_a_failed_record_makes_the_transaction_abortable_unless_it_is_fatal(code: ErrorCode) -> None:
    assert isinstance(as_abortable(error_for(code)), AbortableError | FatalError)
