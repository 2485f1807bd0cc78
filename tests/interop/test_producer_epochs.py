"""How the epoch of a transactional id moves: through commit, abort, InitProducerId and the timeout."""

from __future__ import annotations

import pytest

from einmal.types import ErrorCode
from tests.interop.conftest import Setting
from tests.interop.raw import Identity
from tests.interop.topics import at_last
from tests.interop.transaction_driver import NOBODY, OVERDUE_MS, TV1, TV2, TransactionDriver

pytestmark = pytest.mark.interop

_TIMEOUT_MAX_MS = 900_000


def _write_and_end(driver: TransactionDriver, *, commit: bool) -> None:
    driver.open(0)
    with driver.writer() as writer:
        assert writer.write_at_last(driver.identity, 0, 0, ["x"]).error == ErrorCode.none
    assert driver.end(commit=commit).error == ErrorCode.none
    driver.settled()


def test_every_end_of_a_transaction_moves_the_epoch_under_tv2_and_none_under_tv1(driver: TransactionDriver) -> None:
    identity = driver.init_at_last()
    for turn, commit in enumerate((True, False, True)):
        driver.open(turn)
        with driver.writer() as writer:
            assert writer.write_at_last(driver.identity, turn, 0, ["x"]).error == ErrorCode.none
        assert driver.end(commit=commit).error == ErrorCode.none
        epoch = turn + 1 if driver.dialect is TV2 else 0
        assert driver.settled()[1] == identity._replace(producer_epoch=epoch)


def test_an_empty_abort_moves_the_epoch_only_under_tv2(driver: TransactionDriver) -> None:
    identity = driver.init_at_last()
    if driver.dialect is TV2:
        # Before the first transaction, after an abort, after a commit.
        assert driver.end(commit=False) == (ErrorCode.none, identity._replace(producer_epoch=1))
        driver.settled()
        assert driver.end(commit=False) == (ErrorCode.none, identity._replace(producer_epoch=2))
        driver.settled()
        _write_and_end(driver, commit=True)
        assert driver.end(commit=False) == (ErrorCode.none, identity._replace(producer_epoch=4))
    else:
        assert driver.end(commit=False) == (ErrorCode.invalid_txn_state, NOBODY)
        _write_and_end(driver, commit=False)
        assert driver.end(commit=False) == (ErrorCode.none, NOBODY)
        assert driver.state()[1] == identity


def test_an_empty_commit_is_refused_unless_it_looks_like_a_repeated_one(driver: TransactionDriver) -> None:
    driver.init_at_last()
    assert driver.end(commit=True).error == ErrorCode.invalid_txn_state
    _write_and_end(driver, commit=False)
    assert driver.end(commit=True).error == ErrorCode.invalid_txn_state
    if driver.dialect is TV1:
        driver.init_at_last(driver.identity)
    _write_and_end(driver, commit=True)
    # Under TV1 the same epoch, after a commit: that looks like a repeat.
    answer = driver.end(commit=True)
    assert answer.error == (ErrorCode.none if driver.dialect is TV1 else ErrorCode.invalid_txn_state)


def test_init_producer_id_moves_the_epoch_by_one_when_nothing_is_open(driver: TransactionDriver) -> None:
    identity = driver.init_at_last()
    assert driver.init(identity) == (ErrorCode.none, identity._replace(producer_epoch=1))
    assert driver.init() == (ErrorCode.none, identity._replace(producer_epoch=2))
    assert driver.init(driver.identity) == (ErrorCode.none, identity._replace(producer_epoch=3))


def test_init_producer_id_knows_only_the_current_and_the_previous_epoch(driver: TransactionDriver) -> None:
    identity = driver.init_at_last()
    for _ in range(2):
        driver.init_at_last(driver.identity)
    current = driver.identity
    for stranger in (
        identity,
        current._replace(producer_epoch=current.producer_epoch + 1),
        current._replace(producer_id=current.producer_id + 1_000_000),
    ):
        assert driver.init(stranger) == (ErrorCode.producer_fenced, NOBODY)
    assert driver.state()[1] == current


def test_an_unknown_identity_is_refused_by_every_request_but_init_producer_id(driver: TransactionDriver) -> None:
    # As after the expiry of an idle transactional id.
    expired = Identity(123_456, 7)
    unknown = ErrorCode.invalid_producer_id_mapping
    assert driver.end(commit=True, identity=expired).error == unknown
    assert driver.add(0, identity=expired) == unknown
    assert driver.commit_offsets("group", {0: 1}, identity=expired) == unknown
    with driver.writer() as writer:
        assert writer.write_at_last(expired, 0, 0, ["x"]).error == unknown
    new = driver.init_at_last(expired)
    assert new.producer_epoch == 0
    assert new.producer_id != expired.producer_id


def test_init_producer_id_over_an_open_transaction_aborts_it_and_moves_the_epoch(setting: Setting) -> None:
    with setting.driver() as driver, driver.writer() as writer:
        identity = driver.init_at_last()
        driver.open(0)
        writer.write_at_last(identity, 0, 0, ["x"])
        assert driver.init(identity).error == ErrorCode.concurrent_transactions
        fenced = identity._replace(producer_epoch=1)
        assert driver.settled() == ("CompleteAbort", fenced, [])
        assert writer.write(identity, 0, 1, ["late"]).error == ErrorCode.invalid_producer_epoch
        # A broker of transaction version 1 does not know its own doing again; so end the transaction first, always.
        expected = (ErrorCode.producer_fenced, NOBODY) if setting.broker_is_tv1 else (ErrorCode.none, fenced)
        assert driver.init(identity) == expected
        assert driver.committed(0) == []


def test_init_producer_id_without_id_over_an_open_transaction_moves_the_epoch_by_two(
    driver: TransactionDriver,
) -> None:
    identity = driver.init_at_last()
    driver.open(0)
    with driver.writer() as writer:
        writer.write_at_last(identity, 0, 0, ["x"])
    assert driver.init().error == ErrorCode.concurrent_transactions
    assert driver.settled()[1] == identity._replace(producer_epoch=1)
    assert driver.init() == (ErrorCode.none, identity._replace(producer_epoch=2))
    assert driver.committed(0) == []


def test_an_abort_gives_a_clean_epoch_on_every_broker(driver: TransactionDriver) -> None:
    """What the pipeline does instead: EndTxn until it is answered, then under TV1 InitProducerId with id and epoch."""
    identity = driver.init_at_last()
    for turn in range(3):
        driver.open(0)
        with driver.writer() as writer:
            assert writer.write_at_last(driver.identity, 0, 0, [f"{turn}"]).error == ErrorCode.none
        assert driver.end_at_last(commit=turn == 2) == identity._replace(producer_epoch=turn + 1)
    assert driver.committed(0) == ["2"]


def test_the_timeout_moves_the_epoch_by_one(setting: Setting) -> None:
    with setting.driver(timeout_ms=OVERDUE_MS) as driver:
        identity = driver.init_at_last()
        driver.open(0)
        with driver.writer() as writer:
            writer.write_at_last(identity, 0, 0, ["x"])
        at_last(lambda: driver.state()[0], lambda state: state == "CompleteAbort")
        fenced = identity._replace(producer_epoch=1)
        assert driver.state()[1] == fenced
        if setting.broker_is_tv1:
            assert driver.init(identity).error == ErrorCode.producer_fenced
            assert driver.init() == (ErrorCode.none, identity._replace(producer_epoch=2))
        elif driver.dialect is TV2:
            assert driver.end(commit=False) == (ErrorCode.none, fenced)
        else:
            assert driver.init(identity) == (ErrorCode.none, fenced)


@pytest.mark.representatives(2)
@pytest.mark.parametrize("timeout_ms", [0, _TIMEOUT_MAX_MS + 1])
def test_a_timeout_out_of_bounds_is_refused(driver: TransactionDriver, timeout_ms: int) -> None:
    driver.timeout_ms = timeout_ms
    assert driver.init() == (ErrorCode.invalid_transaction_timeout, NOBODY)
    driver.timeout_ms = _TIMEOUT_MAX_MS
    # The refusal needs no coordinator: it may still be loading.
    assert driver.init_at_last() != NOBODY
