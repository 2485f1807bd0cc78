from itertools import product

import pytest

from einmal.transactions.states import STATES_BY_NAME, VALID_PREVIOUS, TransactionState
from einmal.transactions.transaction import Transaction
from einmal.types import Instant, ProducerEpoch, ProducerId
from tests.suite.cases import each_case

S = TransactionState

MOVES = {
    (S.EMPTY, S.EMPTY),
    (S.COMPLETE_COMMIT, S.EMPTY),
    (S.COMPLETE_ABORT, S.EMPTY),
    (S.EMPTY, S.ONGOING),
    (S.ONGOING, S.ONGOING),
    (S.COMPLETE_COMMIT, S.ONGOING),
    (S.COMPLETE_ABORT, S.ONGOING),
    (S.ONGOING, S.PREPARE_COMMIT),
    (S.ONGOING, S.PREPARE_ABORT),
    (S.EMPTY, S.PREPARE_ABORT),
    (S.COMPLETE_COMMIT, S.PREPARE_ABORT),
    (S.COMPLETE_ABORT, S.PREPARE_ABORT),
    (S.PREPARE_COMMIT, S.COMPLETE_COMMIT),
    (S.PREPARE_ABORT, S.COMPLETE_ABORT),
}


@each_case(("before", "after"), product(S, S))
def test_only_these_moves_exist(before: TransactionState, after: TransactionState) -> None:
    assert (before in VALID_PREVIOUS[after]) == ((before, after) in MOVES)


def test_names_and_ids_are_those_of_apache_kafka() -> None:
    assert {state.kafka_name: state.value for state in S} == {
        "Empty": 0,
        "Ongoing": 1,
        "PrepareCommit": 2,
        "PrepareAbort": 3,
        "CompleteCommit": 4,
        "CompleteAbort": 5,
    }
    assert STATES_BY_NAME["PrepareAbort"] is S.PREPARE_ABORT


def test_a_move_that_is_not_in_the_table_is_a_bug() -> None:
    transaction = Transaction(
        transactional_id="x",
        producer_id=ProducerId(1),
        producer_epoch=ProducerEpoch(0),
        timeout_ms=1,
        state=S.EMPTY,
        last_update_ms=0,
    )
    with pytest.raises(AssertionError, match="EMPTY to COMPLETE_ABORT"):
        transaction.completing(Instant(0, 0))
