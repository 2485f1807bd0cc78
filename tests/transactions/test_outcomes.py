"""Every (state, relation of the asking producer) against every API: the whole table, cell by cell.

The rows come from Apache Kafka 4.4; where we differ on purpose, the row is marked.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from einmal.transactions.states import TransactionState
from einmal.types import EPOCH_MAX, ErrorCode, ProducerIdAndEpoch, TransactionVersion
from tests.suite.cases import each_case
from tests.transactions.machine import P0, P1, TV_0, TV_2, Machine, producer, with_epoch

S = TransactionState
OK = ErrorCode.none
FENCED = ErrorCode.producer_fenced
MAPPING = ErrorCode.invalid_producer_id_mapping
CONCURRENT = ErrorCode.concurrent_transactions
STATE = ErrorCode.invalid_txn_state
ABORTABLE = ErrorCode.transaction_abortable

RELATIONS = ("current", "one behind", "older", "newer", "stranger")


def reach(state: TransactionState, version: TransactionVersion) -> Machine:
    """A machine whose transaction is in ``state``, its stored epoch far from both ends."""
    machine = Machine(version=version)
    who = with_epoch(machine, 100)
    if state is S.EMPTY:
        return machine
    assert machine.add(who, P0, version=version) is OK
    if state is S.ONGOING:
        return machine
    error, _ = machine.end(who, state in (S.PREPARE_COMMIT, S.COMPLETE_COMMIT), version=version)
    assert error is OK
    if not state.is_prepared:
        machine.write_markers()
    assert machine.stored().state is state
    return machine


def asking(machine: Machine, relation: str) -> ProducerIdAndEpoch:
    who = machine.stored().producer
    return {
        "current": who,
        "one behind": producer(who.producer_id, who.producer_epoch - 1),
        "older": producer(who.producer_id, who.producer_epoch - 2),
        "newer": producer(who.producer_id, who.producer_epoch + 1),
        "stranger": producer(77, who.producer_epoch),
    }[relation]


Table = dict[TransactionState, tuple[ErrorCode, ErrorCode, ErrorCode, ErrorCode, ErrorCode]]

ALL_CONCURRENT = (CONCURRENT,) * 5

# Columns as in RELATIONS.
ADD_PARTITIONS: Table = {
    S.EMPTY: (OK, FENCED, FENCED, FENCED, MAPPING),
    S.ONGOING: (OK, FENCED, FENCED, FENCED, MAPPING),
    S.PREPARE_COMMIT: ALL_CONCURRENT,
    S.PREPARE_ABORT: ALL_CONCURRENT,
    S.COMPLETE_COMMIT: (OK, FENCED, FENCED, FENCED, MAPPING),
    S.COMPLETE_ABORT: (OK, FENCED, FENCED, FENCED, MAPPING),
}
# Of a partition that was never added.
VERIFY: Table = {
    S.EMPTY: (ABORTABLE, FENCED, FENCED, FENCED, MAPPING),
    S.ONGOING: (ABORTABLE, FENCED, FENCED, FENCED, MAPPING),
    S.PREPARE_COMMIT: (CONCURRENT, FENCED, FENCED, FENCED, MAPPING),
    S.PREPARE_ABORT: (CONCURRENT, FENCED, FENCED, FENCED, MAPPING),
    S.COMPLETE_COMMIT: (ABORTABLE, FENCED, FENCED, FENCED, MAPPING),
    S.COMPLETE_ABORT: (ABORTABLE, FENCED, FENCED, FENCED, MAPPING),
}
INIT_WITH_PRODUCER_TV_2: Table = {
    S.EMPTY: (OK, FENCED, FENCED, FENCED, FENCED),
    # Apache Kafka compares the producer id only, and lets anyone with it abort the open transaction.
    S.ONGOING: (CONCURRENT, FENCED, FENCED, FENCED, FENCED),
    S.PREPARE_COMMIT: ALL_CONCURRENT,
    S.PREPARE_ABORT: ALL_CONCURRENT,
    # One behind: the answer to the EndTxn was lost.
    S.COMPLETE_COMMIT: (OK, OK, FENCED, FENCED, FENCED),
    S.COMPLETE_ABORT: (OK, OK, FENCED, FENCED, FENCED),
}
INIT_WITH_PRODUCER_TV_0: Table = {
    **INIT_WITH_PRODUCER_TV_2,
    S.COMPLETE_COMMIT: (OK, FENCED, FENCED, FENCED, FENCED),
    S.COMPLETE_ABORT: (OK, FENCED, FENCED, FENCED, FENCED),
}
COMMIT_TV_2: Table = {
    S.EMPTY: (STATE, FENCED, FENCED, FENCED, MAPPING),
    S.ONGOING: (OK, FENCED, FENCED, FENCED, MAPPING),
    S.PREPARE_COMMIT: ALL_CONCURRENT,
    S.PREPARE_ABORT: ALL_CONCURRENT,
    S.COMPLETE_COMMIT: (STATE, OK, FENCED, FENCED, MAPPING),
    S.COMPLETE_ABORT: (STATE, STATE, FENCED, FENCED, MAPPING),
}
ABORT_TV_2: Table = {
    S.EMPTY: (OK, FENCED, FENCED, FENCED, MAPPING),
    S.ONGOING: (OK, FENCED, FENCED, FENCED, MAPPING),
    S.PREPARE_COMMIT: ALL_CONCURRENT,
    S.PREPARE_ABORT: ALL_CONCURRENT,
    S.COMPLETE_COMMIT: (OK, STATE, FENCED, FENCED, MAPPING),
    S.COMPLETE_ABORT: (OK, OK, FENCED, FENCED, MAPPING),
}
COMMIT_TV_0: Table = {
    S.EMPTY: (STATE, FENCED, FENCED, FENCED, MAPPING),
    S.ONGOING: (OK, FENCED, FENCED, FENCED, MAPPING),
    S.PREPARE_COMMIT: (CONCURRENT, FENCED, FENCED, FENCED, MAPPING),
    S.PREPARE_ABORT: (CONCURRENT, FENCED, FENCED, FENCED, MAPPING),
    S.COMPLETE_COMMIT: (OK, FENCED, FENCED, FENCED, MAPPING),
    S.COMPLETE_ABORT: (STATE, FENCED, FENCED, FENCED, MAPPING),
}
ABORT_TV_0: Table = {
    S.EMPTY: (STATE, FENCED, FENCED, FENCED, MAPPING),
    S.ONGOING: (OK, FENCED, FENCED, FENCED, MAPPING),
    S.PREPARE_COMMIT: (CONCURRENT, FENCED, FENCED, FENCED, MAPPING),
    S.PREPARE_ABORT: (CONCURRENT, FENCED, FENCED, FENCED, MAPPING),
    S.COMPLETE_COMMIT: (STATE, FENCED, FENCED, FENCED, MAPPING),
    S.COMPLETE_ABORT: (OK, FENCED, FENCED, FENCED, MAPPING),
}

Ask = Callable[[Machine, ProducerIdAndEpoch], ErrorCode]

APIS: dict[str, tuple[TransactionVersion, Table, Ask]] = {
    "AddPartitionsToTxn by a client": (TV_0, ADD_PARTITIONS, lambda m, who: m.add(who, P1, version=TV_0)),
    "AddPartitionsToTxn by a leader": (TV_2, ADD_PARTITIONS, lambda m, who: m.add(who, P1, version=TV_2)),
    "AddPartitionsToTxn, verify only, TV_0": (TV_0, VERIFY, lambda m, who: m.verify(who, P1)[0]),
    "AddPartitionsToTxn, verify only, TV_2": (TV_2, VERIFY, lambda m, who: m.verify(who, P1)[0]),
    "InitProducerId with producer, TV_0": (TV_0, INIT_WITH_PRODUCER_TV_0, lambda m, who: m.init(who)[0]),
    "InitProducerId with producer, TV_2": (TV_2, INIT_WITH_PRODUCER_TV_2, lambda m, who: m.init(who)[0]),
    "EndTxn commit, TV_0": (TV_0, COMMIT_TV_0, lambda m, who: m.end(who, True, version=TV_0)[0]),
    "EndTxn abort, TV_0": (TV_0, ABORT_TV_0, lambda m, who: m.end(who, False, version=TV_0)[0]),
    "EndTxn commit, TV_2": (TV_2, COMMIT_TV_2, lambda m, who: m.end(who, True, version=TV_2)[0]),
    "EndTxn abort, TV_2": (TV_2, ABORT_TV_2, lambda m, who: m.end(who, False, version=TV_2)[0]),
}

CELLS = [(api, state, relation) for api in APIS for state in S for relation in RELATIONS]


@each_case(("api", "state", "relation"), CELLS)
def test_each_cell_answers_as_in_the_table(api: str, state: TransactionState, relation: str) -> None:
    version, table, ask = APIS[api]
    machine = reach(state, version)
    records = len(machine.log)
    error = ask(machine, asking(machine, relation))
    assert error is table[state][RELATIONS.index(relation)]
    if error not in (OK, CONCURRENT):
        assert len(machine.log) == records, "a refusal leaves no trace"


INIT_ALONE = {
    S.EMPTY: OK,
    S.ONGOING: CONCURRENT,
    S.PREPARE_COMMIT: CONCURRENT,
    S.PREPARE_ABORT: CONCURRENT,
    S.COMPLETE_COMMIT: OK,
    S.COMPLETE_ABORT: OK,
}


@pytest.mark.parametrize("version", [TV_0, TV_2])
@pytest.mark.parametrize("state", S)
def test_init_producer_id_of_a_new_instance_answers_as_in_the_table(
    state: TransactionState, version: TransactionVersion
) -> None:
    machine = reach(state, version)
    before = machine.stored()
    error, who = machine.init()
    assert error is INIT_ALONE[state]
    if error is OK:
        assert who == producer(before.producer_id, before.producer_epoch + 1)
    moves = state in (S.EMPTY, S.ONGOING, S.COMPLETE_COMMIT, S.COMPLETE_ABORT)
    assert machine.stored().producer_epoch == before.producer_epoch + moves


@pytest.mark.parametrize("api", APIS)
def test_an_unknown_transactional_id_maps_to_no_producer(api: str) -> None:
    version, _, ask = APIS[api]
    machine = Machine(version=version)
    if not api.startswith("InitProducerId"):
        assert ask(machine, producer(1, 0)) is MAPPING
    else:
        assert ask(machine, producer(1, 0)) is OK, "a new id; KIP-360 after expiry begins again"


@pytest.mark.parametrize("api", APIS)
def test_the_fencing_epoch_is_nobodys(api: str) -> None:
    """A forged 32,767 is refused even where it is the stored epoch."""
    version, _, ask = APIS[api]
    machine = Machine(version=TV_0)
    who = with_epoch(machine, EPOCH_MAX)
    machine.add(who, P0, version=TV_0)
    machine.init()
    machine.write_markers()
    assert machine.stored().producer_epoch == EPOCH_MAX + 1
    assert ask(machine, machine.stored().producer) is FENCED
