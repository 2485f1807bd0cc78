"""The same request twice, because the first answer was lost: what the repeat gets."""

from __future__ import annotations

import pytest

from einmal.types import ErrorCode
from tests.interop.conftest import Setting
from tests.interop.topics import RETRIABLE, at_last
from tests.interop.transaction_driver import OVERDUE_MS, TV1, TV2, TransactionDriver, Written

pytestmark = pytest.mark.interop


def test_a_repeated_batch_gets_its_first_offset_while_the_transaction_is_open(driver: TransactionDriver) -> None:
    identity = driver.init_at_last()
    driver.open(0)
    with driver.writer() as writer, driver.writer() as another_connection:
        first = [writer.write_at_last(identity, 0, sequence, [f"{sequence}"]) for sequence in range(6)]
        again = [another_connection.write(identity, 0, sequence, [f"{sequence}"]) for sequence in range(6)]
    # The broker remembers five batches.
    assert again[1:] == first[1:]
    assert again[0].error == ErrorCode.out_of_order_sequence_number
    driver.end_at_last(commit=True)
    assert driver.committed(0) == [f"{sequence}" for sequence in range(6)]


@pytest.mark.parametrize("commit", [True, False])
def test_a_repeated_batch_is_refused_after_the_marker(driver: TransactionDriver, commit: bool) -> None:
    # So a writer that hears nothing before the marker never learns what became of its batch.
    identity = driver.init_at_last()
    driver.open(0)
    with driver.writer() as writer:
        writer.write_at_last(identity, 0, 0, ["x"])
        driver.end(commit=commit)
        driver.settled()
        refusal = ErrorCode.transaction_abortable if driver.dialect is TV1 else ErrorCode.invalid_producer_epoch
        assert writer.write(identity, 0, 0, ["x"]) == Written(refusal, -1)
    assert driver.written(0) == ["x"]


@pytest.mark.parametrize("commit", [True, False])
def test_a_repeated_end_txn_gets_the_first_answer_and_its_opposite_is_refused(
    driver: TransactionDriver, commit: bool
) -> None:
    identity = driver.init_at_last()
    driver.open(0)
    with driver.writer() as writer:
        writer.write_at_last(identity, 0, 0, ["x"])
    first = driver.end(commit=commit)
    assert first.error == ErrorCode.none
    again = at_last(
        lambda: driver.end(commit=commit, identity=identity),
        lambda answer: answer.error != ErrorCode.concurrent_transactions,
    )
    assert again == first
    assert driver.end(commit=not commit, identity=identity).error == ErrorCode.invalid_txn_state
    assert driver.committed(0) == (["x"] if commit else [])


def test_a_repeated_end_txn_gets_the_first_answer_over_a_restart_of_the_broker(own_setting: Setting) -> None:
    with own_setting.driver() as driver:
        identity = driver.init_at_last()
        driver.open(0)
        with driver.writer() as writer:
            writer.write_at_last(identity, 0, 0, ["x"])
        first = driver.end(commit=True)
        driver.settled()
        own_setting.restart_after_kill()
        driver.reconnect()
        again = at_last(
            lambda: driver.end(commit=True, identity=identity), lambda answer: answer.error not in RETRIABLE
        )
        assert again == first
        assert driver.committed(0) == ["x"]


def test_an_acknowledged_commit_is_read_though_the_broker_is_killed_before_the_marker(
    own_setting_of_einmal: Setting,
) -> None:
    # Not asked of Apache Kafka 4.4: it takes the partition for deleted while it has no leader, and now and then drops
    # the marker; the transaction is complete for the coordinator then, and open for ever in the partition.
    with own_setting_of_einmal.driver() as driver:
        for turn in range(3):
            driver.init_at_last()
            driver.open(0)
            with driver.writer() as writer:
                writer.write_at_last(driver.identity, 0, 0, [f"{turn}"])
            assert driver.end(commit=True).error == ErrorCode.none
            own_setting_of_einmal.restart_after_kill()
            driver.reconnect()
            assert driver.committed(0) == [f"{each}" for each in range(turn + 1)]


def test_a_repeated_init_producer_id_with_id_and_epoch_gets_the_first_answer(driver: TransactionDriver) -> None:
    old = driver.init_at_last()
    first = driver.init(old)
    assert first == (ErrorCode.none, old._replace(producer_epoch=1))
    assert driver.init(old) == first
    assert driver.state()[1] == first.identity


def test_a_repeated_init_producer_id_over_a_restart_gets_the_first_answer_here_and_is_fenced_there(
    own_setting: Setting,
) -> None:
    # Apache Kafka does not keep the epoch before the current one, ours does. The way out is InitProducerId without id.
    with own_setting.driver() as driver:
        old = driver.init_at_last()
        new = driver.init_at_last(old)
        own_setting.restart_after_kill()
        driver.reconnect()
        again = at_last(lambda: driver.init(old), lambda answer: answer.error not in RETRIABLE)
        if own_setting.is_apache:
            assert again.error == ErrorCode.producer_fenced
        else:
            assert again == (ErrorCode.none, new)
        assert driver.init_at_last() == new._replace(producer_epoch=new.producer_epoch + 1)


def test_a_repeated_init_producer_id_without_id_moves_the_epoch_again(driver: TransactionDriver) -> None:
    identity = driver.init_at_last()
    assert driver.init() == (ErrorCode.none, identity._replace(producer_epoch=1))
    assert driver.init() == (ErrorCode.none, identity._replace(producer_epoch=2))


def test_a_commit_that_was_overtaken_by_the_timeout_is_refused(setting: Setting) -> None:
    # Under TV2 the broker takes it for a repeat of the EndTxn that ended the transaction, with the opposite result.
    with setting.driver(timeout_ms=OVERDUE_MS) as driver:
        identity = driver.init_at_last()
        driver.open(0, 1)
        with driver.writer() as writer:
            writer.write_at_last(identity, 0, 0, ["x"])
            at_last(lambda: driver.state()[0], lambda state: state == "CompleteAbort")
            for partition in range(3):
                assert writer.write(identity, partition, 1, ["late"]).error == ErrorCode.invalid_producer_epoch
        assert driver.commit_offsets("group", {0: 1}) == ErrorCode.invalid_producer_epoch
        refusal = ErrorCode.invalid_txn_state if driver.dialect is TV2 else ErrorCode.producer_fenced
        assert driver.end(commit=True).error == refusal
        assert driver.committed(0) == []
