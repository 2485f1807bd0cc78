"""Requests that arrive after their time: of a killed writer, of a fenced driver, of an abandoned connection.

The pipeline is safe against all of them as long as each transaction has an epoch of its own. What happens without
that (TV1 only) is kept here as well: it is the reason for the rule.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from einmal.types import ErrorCode, IsolationLevel
from tests.interop.conftest import Setting
from tests.interop.raw import Identity
from tests.interop.topics import RETRIABLE, at_last
from tests.interop.transaction_driver import NOBODY, TV1, TV2, TransactionDriver, Writer

pytestmark = pytest.mark.interop

WRITTEN, CLAIMED, UNCLAIMED = 0, 1, 2
"""Partitions of the transaction whose writer is late: one it wrote to, one it only claimed, one it had not claimed."""


@pytest.fixture
def late(driver: TransactionDriver) -> Iterator[Writer]:
    """A writer that has written one batch, in an open transaction."""
    driver.init_at_last()
    driver.open(WRITTEN, CLAIMED)
    with driver.writer() as writer:
        assert writer.write_at_last(driver.identity, WRITTEN, 0, ["of the aborted one"]).error == ErrorCode.none
        yield writer


def _write_late(late: Writer, old: Identity) -> list[ErrorCode]:
    """A new batch and a repeated one, and first batches of the partitions that were never written to."""
    return [
        late.write(old, WRITTEN, 1, ["late"]).error,
        late.write(old, WRITTEN, 0, ["of the aborted one"]).error,
        late.write(old, CLAIMED, 0, ["late"]).error,
        late.write(old, UNCLAIMED, 0, ["late"]).error,
    ]


def test_a_late_batch_is_refused_after_the_abort(driver: TransactionDriver, late: Writer) -> None:
    old = driver.identity
    assert driver.end(commit=False).error == ErrorCode.none
    driver.settled()
    refusal = ErrorCode.transaction_abortable if driver.dialect is TV1 else ErrorCode.invalid_producer_epoch
    assert _write_late(late, old) == [refusal] * 4
    if driver.dialect is TV1:
        assert late.write(old, WRITTEN, 1, ["late"], version=10).error == ErrorCode.invalid_txn_state
    assert driver.written(WRITTEN) == ["of the aborted one"]
    assert driver.settled()[0] == "CompleteAbort", "a late batch opens nothing"


def test_a_late_batch_is_refused_before_the_next_transaction(driver: TransactionDriver, late: Writer) -> None:
    old = driver.identity
    driver.end_at_last(commit=False)
    driver.settled()
    assert _write_late(late, old) == [ErrorCode.invalid_producer_epoch] * 4


def test_a_late_batch_is_refused_in_the_next_transaction(driver: TransactionDriver, late: Writer) -> None:
    old = driver.identity
    new = driver.end_at_last(commit=False)
    driver.open(WRITTEN, CLAIMED, UNCLAIMED, 3)
    with driver.writer() as writer:
        assert writer.write_at_last(new, 3, 0, ["next"]).error == ErrorCode.none
        assert _write_late(late, old) == [ErrorCode.invalid_producer_epoch] * 4
        for partition in (WRITTEN, CLAIMED, UNCLAIMED):
            assert writer.write_at_last(new, partition, 0, ["next"]).error == ErrorCode.none
        assert _write_late(late, old) == [ErrorCode.invalid_producer_epoch] * 4
    driver.end_at_last(commit=True)
    assert [driver.committed(partition) for partition in range(4)] == [["next"]] * 4


def test_late_requests_of_the_driver_leave_the_next_transaction_alone(driver: TransactionDriver, late: Writer) -> None:
    old = driver.identity
    new = driver.end_at_last(commit=False)
    driver.open(WRITTEN)
    with driver.writer() as writer:
        assert writer.write_at_last(new, WRITTEN, 0, ["next"]).error == ErrorCode.none
    group = f"group-of-{driver.topic}"
    assert driver.add(3, identity=old) == ErrorCode.producer_fenced
    assert driver.end(commit=False, identity=old).error == ErrorCode.producer_fenced
    assert driver.end(commit=True, identity=old).error == ErrorCode.producer_fenced
    assert driver.commit_offsets(group, {0: 1}, identity=old) == ErrorCode.invalid_producer_epoch
    assert driver.state() == ("Ongoing", new, [WRITTEN])
    driver.end_at_last(commit=True)
    assert driver.committed(WRITTEN) == ["next"]


@pytest.mark.representatives(5)
@pytest.mark.parametrize("epochs_behind", [1, 3])
def test_a_late_init_producer_id_never_brings_an_identity_or_a_wrong_result(
    setting: Setting, epochs_behind: int
) -> None:
    # Apache Kafka looks only at the producer id while a transaction is open, and aborts it, whoever the late request is
    # from. Nothing wrong is shown, but the batch is lost work: an InitProducerId must never be left behind on a
    # connection that was given up. Our broker refuses it.
    with setting.driver() as driver, driver.writer() as writer:
        driver.init_at_last()
        for _ in range(3):
            driver.init_at_last(driver.identity)
        current = driver.identity
        old = current._replace(producer_epoch=current.producer_epoch - epochs_behind)
        driver.open(0)
        writer.write_at_last(current, 0, 0, ["x"])
        late = driver.init(old)
        if setting.is_apache:
            assert late == (ErrorCode.concurrent_transactions, NOBODY)
            assert driver.settled() == (
                "CompleteAbort",
                current._replace(producer_epoch=current.producer_epoch + 1),
                [],
            )
            refusal = ErrorCode.invalid_txn_state if driver.dialect is TV2 else ErrorCode.producer_fenced
            assert driver.end(commit=True, identity=current).error == refusal
            assert writer.write(current, 0, 1, ["y"]).error == ErrorCode.invalid_producer_epoch
        else:
            assert late == (ErrorCode.producer_fenced, NOBODY)
            driver.end_at_last(commit=True)
        assert driver.committed(0) == ([] if setting.is_apache else ["x"])


def test_a_batch_sent_after_end_txn_is_committed_if_it_is_acknowledged(driver: TransactionDriver) -> None:
    # Until the marker is in the partition, the leader does not know that the transaction has ended. Hence: the driver
    # ends it only when no writer has a request under way.
    driver.init_at_last()
    expected = []
    for turn in range(10):
        driver.open(0)
        identity = driver.identity
        with driver.writer() as writer:
            assert writer.write_at_last(identity, 0, 0, [f"{turn}"]).error == ErrorCode.none
            at_last(lambda: driver.end(commit=True).error, lambda error: error not in RETRIABLE)
            late = writer.write(identity, 0, 1, [f"{turn}, late"])
        expected += [f"{turn}"] + ([f"{turn}, late"] if late.error == ErrorCode.none else [])
        driver.settled()
        if driver.dialect is TV1:
            driver.init_at_last(identity)
    assert driver.committed(0) == expected


def test_a_driver_is_fenced_by_the_next_one(setting: Setting) -> None:
    with setting.driver() as driver, driver.writer() as writer:
        old = driver.init_at_last()
        driver.open(0)
        writer.write_at_last(old, 0, 0, ["of the zombie"])
        with TransactionDriver(setting.broker, driver.transactional_id, driver.topic, setting.dialect) as successor:
            new = successor.init_at_last()
            assert (new.producer_id, new.producer_epoch) == (old.producer_id, old.producer_epoch + 2)
            assert driver.init(old).error == ErrorCode.producer_fenced
            assert driver.add(0) == ErrorCode.producer_fenced
            assert driver.end(commit=True).error == ErrorCode.producer_fenced
            assert driver.end(commit=False).error == ErrorCode.producer_fenced
            assert driver.commit_offsets("group", {0: 1}) == ErrorCode.invalid_producer_epoch
            assert writer.write(old, 0, 1, ["late"]).error == ErrorCode.invalid_producer_epoch
            assert writer.write(old, 1, 0, ["late"]).error == ErrorCode.invalid_producer_epoch
            assert successor.state()[:2] == ("Empty", new)
            assert successor.committed(0) == []


def test_a_driver_that_takes_over_wins_though_the_old_one_asks_in_between(setting: Setting) -> None:
    with setting.driver() as driver, driver.writer() as writer:
        old = driver.init_at_last()
        driver.open(0)
        writer.write_at_last(old, 0, 0, ["of the zombie"])
        with TransactionDriver(setting.broker, driver.transactional_id, driver.topic, setting.dialect) as successor:
            assert successor.init().error == ErrorCode.concurrent_transactions
            driver.settled()
            # A broker of transaction version 2 takes this for the repeated request of an owner that fenced itself.
            assert driver.init(old).error == (ErrorCode.producer_fenced if setting.broker_is_tv1 else ErrorCode.none)
            successor.init_at_last()
            assert driver.init(driver.identity).error == ErrorCode.producer_fenced


# --- without an epoch of its own for each transaction: what TV1 allows -------------------------------------------


@pytest.fixture
def careless(setting_of_tv1: Setting) -> Iterator[TransactionDriver]:
    """A driver whose first transaction is aborted, and whose second one will have the same epoch."""
    with setting_of_tv1.driver() as driver, driver.writer() as writer:
        driver.init_at_last()
        driver.open(0, 1)
        for partition in (0, 1):
            writer.write_at_last(driver.identity, partition, 0, ["aborted"])
        assert driver.end(commit=False).error == ErrorCode.none
        driver.settled()
        yield driver


def test_with_the_same_epoch_a_late_batch_gets_into_the_next_transaction(careless: TransactionDriver) -> None:
    careless.open(0)
    with careless.writer() as late:
        assert late.write(careless.identity, 0, 1, ["late"]).error == ErrorCode.none
    careless.end_at_last(commit=True)
    assert careless.committed(0) == ["late"]


def test_with_the_same_epoch_sequences_from_zero_are_acknowledged_without_being_written(
    careless: TransactionDriver,
) -> None:
    careless.open(0)
    with careless.writer() as writer:
        assert writer.write(careless.identity, 0, 0, ["lost"]) == (ErrorCode.none, 0)
    careless.end_at_last(commit=True)
    assert careless.committed(0) == []


def test_with_the_same_epoch_a_late_end_txn_ends_the_next_transaction(careless: TransactionDriver) -> None:
    careless.open(0)
    with careless.writer() as writer:
        assert writer.write(careless.identity, 0, 1, ["half a batch"]).error == ErrorCode.none
    assert careless.end(commit=True).error == ErrorCode.none
    assert careless.committed(0) == ["half a batch"]


def test_with_the_same_epoch_a_late_add_partitions_opens_a_dangling_transaction(
    careless: TransactionDriver,
) -> None:
    assert careless.add(0) == ErrorCode.none
    assert careless.state() == ("Ongoing", careless.identity, [0])
    with careless.writer() as late:
        assert late.write(careless.identity, 0, 1, ["late"]).error == ErrorCode.none
    assert careless.end_offset(0, IsolationLevel.READ_COMMITTED) == 2
    assert careless.end_offset(0, IsolationLevel.READ_UNCOMMITTED) == 3
