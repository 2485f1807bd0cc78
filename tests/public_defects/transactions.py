"""Defects of transaction coordinators, epochs and markers."""

from __future__ import annotations

from typing import Final

from einmal.types import ErrorCode
from tests.interop import raw
from tests.interop.raw import Identity
from tests.interop.topics import RETRIABLE, at_last
from tests.interop.transaction_driver import OVERDUE_MS, TransactionDriver
from tests.interop.transactional_clients import ConfluentWriter
from tests.public_defects.scenario import Target

_EPOCH_MAX: Final = 32_766


def _write(driver: TransactionDriver, value: str, *, sequence: int = 0, partition: int = 0) -> None:
    driver.open(partition)
    with driver.writer() as writer:
        written = writer.write_at_last(driver.identity, partition, sequence, [value])
    assert written.error == ErrorCode.none, written


def _end(driver: TransactionDriver, *, commit: bool) -> ErrorCode:
    """EndTxn, as a client does it that does not ask for a new epoch under TV1; then wait for the markers."""
    answer = at_last(lambda: driver.end(commit=commit), lambda it: it.error not in RETRIABLE)
    driver.settled()
    return answer.error


def _next_sequence(driver: TransactionDriver, before: Identity) -> int:
    return 1 if driver.identity == before else 0


def late_end_txn(target: Target) -> str | None:
    with target.driver() as driver:
        before = driver.init_at_last()
        _write(driver, "first")
        _end(driver, commit=True)
        _write(driver, "half of the next", sequence=_next_sequence(driver, before))
        driver.end(commit=True, identity=before)
        driver.settled()
        _end(driver, commit=False)
        return None if driver.committed(0) == ["first"] else "half of the next one is committed, and its abort refused"


def late_produce(target: Target) -> str | None:
    with target.driver() as driver:
        before = driver.init_at_last()
        _write(driver, "of the first")
        _end(driver, commit=False)
        driver.open(0)
        with driver.writer() as late:
            late.write(before, 0, 1, ["late"])
        _write(driver, "of the next", sequence=_next_sequence(driver, before) * 2)
        _end(driver, commit=True)
        found = driver.committed(0)
        return None if found == ["of the next"] else "a record of the aborted one is committed with the next"


def late_marker(target: Target) -> str | None:
    with target.driver() as driver:
        before = driver.init_at_last()
        _write(driver, "first")
        _end(driver, commit=True)
        _write(driver, "half of the next", sequence=_next_sequence(driver, before))
        (producer,) = driver.producers(0)
        marker = {
            "producer_id": driver.identity.producer_id,
            "producer_epoch": driver.identity.producer_epoch,
            "transaction_result": True,
            "topics": [{"name": driver.topic, "partition_indexes": [0]}],
            "coordinator_epoch": max(0, producer.coordinator_epoch),
            "transaction_version": 1 + (target.dialect.end_txn >= 5),
        }
        driver.connection.call(raw.WRITE_TXN_MARKERS, 2, markers=[marker])
        _end(driver, commit=False)
        return None if driver.committed(0) == ["first"] else "half of the next one is committed"


def repeated_marker(target: Target) -> str | None:
    with target.driver() as driver:
        expected = []
        for turn in range(3):
            driver.init_at_last()
            _write(driver, f"{turn}")
            expected.append(f"{turn}")
            assert driver.end(commit=True).error == ErrorCode.none
            target.restart_under(driver)
            driver.settled()
        return None if driver.committed(0) == expected else "committed records stay invisible"


def end_of_the_epochs(target: Target) -> str | None:
    with target.driver(timeout_ms=OVERDUE_MS) as driver:
        driver.init_at_last()
        driver.move_epoch_to(_EPOCH_MAX)
        before = driver.identity
        _write(driver, "overdue")
        at_last(lambda: driver.state()[0], lambda state: state == "CompleteAbort")
        driver.end(commit=False, identity=before)
        after = driver.init_at_last()
        _write(driver, "next")
        _end(driver, commit=True)
        if after.producer_id == before.producer_id:
            return "the producer id stays"
        return None if driver.committed(0) == ["next"] else "the next transaction is not committed"


def commit_after_abort(target: Target) -> str | None:
    with target.driver() as driver:
        _before = driver.init_at_last()
        _write(driver, "x")
        with TransactionDriver(target.broker, driver.transactional_id, driver.topic, target.dialect) as successor:
            successor.init()
            successor.settled()
        error = driver.end(commit=True).error
        return None if error == ErrorCode.producer_fenced else error.name.upper()


def empty_abort(target: Target) -> str | None:
    with target.driver() as driver:
        before = driver.init_at_last()
        _write(driver, "first")
        at_last(lambda: driver.end(commit=True).error, lambda error: error not in RETRIABLE)
        error = at_last(lambda: driver.end(commit=False).error, lambda error: error not in RETRIABLE)
        if target.dialect.end_txn >= 5 and error != ErrorCode.none:
            return error.name.upper()
        _write(driver, "next", sequence=_next_sequence(driver, before))
        _end(driver, commit=True)
        return None if driver.committed(0) == ["first", "next"] else "the next transaction is not committed"


def commit_of_nothing(target: Target) -> str | None:
    with target.driver() as driver:
        bootstrap = f"{target.broker.host}:{target.broker.port}"
        with ConfluentWriter(bootstrap, driver.transactional_id) as writer:
            for values in ((), ("x",), ()):
                writer.begin()
                if values:
                    writer.send(driver.topic, 0, *values)
                writer.commit()
        return None if driver.committed(0) == ["x"] else "the record is not committed"


def deleted_topic(target: Target) -> str | None:
    with target.driver() as driver, target.driver() as deleted:
        driver.init_at_last()
        _write(driver, "x")
        with TransactionDriver(target.broker, driver.transactional_id, deleted.topic, target.dialect) as other:
            other.identity = driver.identity
            _write(other, "of the deleted topic")
        topics = [{"name": deleted.topic, "topic_id": None}]
        driver.connection.call(raw.DELETE_TOPICS, 6, topics=topics, timeout=60_000)
        error = _end(driver, commit=True)
        assert error == ErrorCode.none, error
        return None if driver.committed(0) == ["x"] else "the record of the other topic is not committed"


def listed(target: Target) -> str | None:
    with target.driver() as driver:
        driver.init_at_last()
        _write(driver, "x")
        answer = driver.connection.call(
            raw.LIST_TRANSACTIONS, 1, state_filters=["Ongoing"], producer_id_filters=[], duration_filter=-1
        )
        if driver.transactional_id not in [each.transactional_id for each in answer.transaction_states]:
            return "ListTransactions lacks the open transaction"
        _end(driver, commit=True)
        producers = [each.producer_id for each in driver.producers(0)]
        return None if driver.identity.producer_id in producers else "DescribeProducers lacks the idle producer"


def upgraded(target: Target) -> str | None:
    """With einmal's client: the epoch of its first transaction under TV2 is not that of its last one under TV1."""
    from einmal.client import Producer

    with target.driver() as driver:
        target.set_transaction_version(1)
        bootstrap = f"{target.broker.host}:{target.broker.port}"
        with Producer({"bootstrap.servers": bootstrap, "transactional.id": driver.transactional_id}) as producer:
            producer.init_transactions()
            ends = []
            for turn in range(6):
                producer.begin_transaction()
                producer.send(driver.topic, value=b"%d" % turn, partition=0)
                producer.flush()
                epoch = driver.state()[1].producer_epoch
                producer.abort_transaction() if turn == 4 else producer.commit_transaction()
                ends.append((epoch, driver.settled()[1].producer_epoch))
                if turn == 1:
                    target.set_transaction_version(2)
                    target.restart_under(driver)
        first = next((turn for turn, (epoch, after) in enumerate(ends) if turn != 4 and after > epoch), None)
        if first is None:
            return "the producer never moves to TV2"
        return None if ends[first][0] != ends[first - 1][0] else "the first epoch under TV2 was used under TV1"


def downgraded(target: Target) -> str | None:
    """With einmal's client."""
    from einmal.client import Producer

    with target.driver() as driver:
        target.set_transaction_version(2)
        bootstrap = f"{target.broker.host}:{target.broker.port}"
        with Producer({"bootstrap.servers": bootstrap, "transactional.id": driver.transactional_id}) as producer:
            producer.init_transactions()
            for turn in range(4):
                producer.begin_transaction()
                producer.send(driver.topic, value=b"%d" % turn, partition=0)
                producer.flush()
                if turn == 1:
                    target.set_transaction_version(1)
                producer.commit_transaction()
                if turn == 2:
                    target.restart_under(driver)
        target.set_transaction_version(2)
        return None if driver.committed(0) == ["0", "1", "2", "3"] else "records are missing"
