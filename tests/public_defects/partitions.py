"""Defects of a partition's log: the last stable offset, duplicates, deleted records."""

from __future__ import annotations

import time
from typing import Final

from einmal.types import ErrorCode, IsolationLevel
from einmal.wire.compression import Compression
from einmal.wire.record_batch import NewRecord, encode_batch
from tests.interop import raw
from tests.interop.raw import Identity, make_batch
from tests.interop.topics import RETRIABLE, at_last
from tests.interop.transaction_driver import TransactionDriver
from tests.public_defects.scenario import Target

_MAX_TIMESTAMP: Final = -3
"""Asks ListOffsets for the record with the highest timestamp."""

_CACHED: Final = 5
"""Batches of a producer that a leader remembers."""


def _idempotent(driver: TransactionDriver) -> Identity:
    """A producer id without a transactional id. A broker may have to fetch a block of them first."""
    answer = at_last(
        lambda: driver.connection.call(
            raw.INIT_PRODUCER_ID,
            5,
            transactional_id=None,
            transaction_timeout=60_000,
            producer_id=-1,
            producer_epoch=-1,
        ),
        lambda answer: answer.error_code not in RETRIABLE,
    )
    assert answer.error_code == ErrorCode.none, answer
    return Identity(answer.producer_id, answer.producer_epoch)


def _delete_records(driver: TransactionDriver, offset: int) -> None:
    topics = [{"name": driver.topic, "partitions": [{"partition_index": 0, "offset": offset}]}]
    answer = driver.connection.call(raw.DELETE_RECORDS, 2, topics=topics, timeout=60_000)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.none, answer


def _stable(driver: TransactionDriver) -> int:
    return driver.end_offset(0, IsolationLevel.READ_COMMITTED)


def _end(driver: TransactionDriver) -> int:
    return driver.end_offset(0, IsolationLevel.READ_UNCOMMITTED)


def registered_without_data(target: Target) -> str | None:
    with target.driver(partitions=2) as driver:
        driver.init_at_last()
        driver.open(0, 1)
        with driver.writer() as writer:
            writer.write_at_last(driver.identity, 1, 0, ["x"])
        target.restart_under(driver)
        driver.end_at_last(commit=True)
        driver.settled()
        with driver.writer(None) as plain:
            plain.send(0, make_batch(_idempotent(driver), 0, ["plain"], transactional=False))
        return None if _stable(driver) == _end(driver) and driver.committed(0) == ["plain"] else "the LSO is stuck"


def deleted_prefix(target: Target) -> str | None:
    with target.driver() as driver:
        identity = _idempotent(driver)
        batches = [make_batch(identity, each, [f"{each}"], transactional=False) for each in range(4)]
        with driver.writer(None) as writer:
            for each in batches:
                writer.send(0, each)
            _delete_records(driver, 3)
        target.restart_under(driver)
        with driver.writer(None) as writer:
            again = at_last(lambda: writer.send(0, batches[3]), lambda written: written.error not in RETRIABLE)
        if _end(driver) != 4:
            return "the duplicate is appended"
        return None if again == (ErrorCode.none, 3) else again.error.name.upper()


def five_batches(target: Target) -> str | None:
    with target.driver() as driver:
        identity = _idempotent(driver)
        batches = [make_batch(identity, each, [f"{each}"], transactional=False) for each in range(_CACHED)]
        with driver.writer(None) as writer, driver.writer(None) as another:
            first = [writer.send(0, each) for each in batches]
            again = [another.send(0, each) for each in batches]
        if _end(driver) != _CACHED:
            return "duplicates are appended"
        return None if again == first else "duplicates get other offsets"


def five_batches_after_a_restart(target: Target) -> str | None:
    with target.driver() as driver:
        identity = _idempotent(driver)
        batches = [make_batch(identity, each, [f"{each}"], transactional=False) for each in range(_CACHED)]
        with driver.writer(None) as writer:
            for each in batches:
                writer.send(0, each)
        target.restart_under(driver)
        with driver.writer(None) as writer:
            for each in batches:
                at_last(lambda batch=each: writer.send(0, batch), lambda it: it.error not in RETRIABLE)  # type: ignore[misc]
        return None if _end(driver) == _CACHED else "duplicates are appended"


def open_over_a_restart(target: Target) -> str | None:
    with target.driver() as driver:
        driver.init_at_last()
        driver.open(0)
        with driver.writer() as writer, driver.writer(None) as plain:
            writer.write_at_last(driver.identity, 0, 0, ["of the open one"])
            plain.send(0, make_batch(_idempotent(driver), 0, ["plain"], transactional=False))
        before = _stable(driver)
        target.restart_under(driver)
        after = _stable(driver)
        driver.end_at_last(commit=False)
        if (before, after) != (0, 0):
            return f"LSO {before}, after the restart {after}"
        return None if driver.committed(0) == ["plain"] else "a record of the aborted one is read"


def interleaved(target: Target) -> str | None:
    with target.driver() as driver:
        others = [
            TransactionDriver(target.broker, f"{driver.transactional_id}-{each}", driver.topic, target.dialect)
            for each in range(2)
        ]
        for each in (driver, *others):
            each.init_at_last()
            each.open(0)
        for turn in range(3):
            for number, each in enumerate((driver, *others)):
                with each.writer() as writer:
                    writer.write_at_last(each.identity, 0, turn, [f"{number}-{turn}"])
        others[0].end_at_last(commit=True)
        others[0].settled()
        if _stable(driver) != 0:
            return "the LSO is beyond an open transaction"
        driver.end_at_last(commit=False)
        others[1].end_at_last(commit=False)
        others[1].settled()
        found = driver.committed(0)
        for each in others:
            each.connection.close()
        if _stable(driver) != _end(driver):
            return "the LSO is stuck"
        return None if found == [f"1-{turn}" for turn in range(3)] else f"read_committed reads {found}"


def deleted_under_a_transaction(target: Target) -> str | None:
    with target.driver() as driver:
        driver.init_at_last()
        driver.open(0)
        with driver.writer() as writer:
            for sequence in range(3):
                writer.write_at_last(driver.identity, 0, sequence, [f"{sequence}"])
        _delete_records(driver, 2)
        during = _stable(driver)
        driver.end_at_last(commit=True)
        driver.settled()
        if during < 2:
            return f"the LSO, {during}, is before the log"
        return None if _stable(driver) == _end(driver) == 4 else "the LSO is stuck"


def highest_timestamp(target: Target) -> str | None:
    now = time.time_ns() // 1_000_000
    records = [NewRecord(None, b"x" * 100, now + later) for later in (0, 2_000, 1_000)]
    batch = encode_batch(
        records, producer_id=-1, producer_epoch=-1, base_sequence=-1, transactional=False, compression=Compression.GZIP
    )
    with target.driver() as driver:
        with driver.writer(None) as writer:
            assert writer.send(0, batch).error == ErrorCode.none
        partitions = [{"partition_index": 0, "timestamp": _MAX_TIMESTAMP}]
        answer = driver.connection.call(
            raw.LIST_OFFSETS,
            7,
            replica_id=-1,
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            topics=[{"name": driver.topic, "partitions": partitions}],
        )
        found = answer.topics[0].partitions[0].offset
        return None if found == 1 else f"offset {found}"
