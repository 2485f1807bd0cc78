"""Many writers under one producer id and epoch, inside one transaction that a driver opens and ends.

What the pipeline's commit protocol rests on, asked of Apache Kafka and of our broker with the same requests. The
decision drawn from it: ``docs/decisions/0001-shared-producer-id-on-apache-kafka.md``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from einmal.types import ErrorCode, IsolationLevel
from tests.interop import raw
from tests.interop.conftest import Setting
from tests.interop.raw import make_batch
from tests.interop.shared_writers import Share, write_share, writer_processes
from tests.interop.topics import RETRIABLE, at_last
from tests.interop.transaction_driver import NOBODY, TV1, TV2, TransactionDriver, Written

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    with writer_processes(3) as pool:
        yield pool


def test_processes_share_one_producer_id_and_epoch_in_one_transaction(
    setting: Setting, processes: ProcessPoolExecutor
) -> None:
    expected: dict[int, list[str]] = {partition: [] for partition in range(6)}
    with setting.driver() as driver:
        identity = driver.init_at_last()
        # The owner of a partition changes with each transaction; the second one is aborted.
        for turn, commit in enumerate((True, False, True)):
            driver.open(*range(6))
            shares = []
            for process in range(3):
                partitions = [(2 * process + turn) % 6, (2 * process + turn + 1) % 6]
                values = {p: [f"{turn}/{p}/{i}" for i in range(20)] for p in partitions}
                shares.append(
                    Share(driver.broker, driver.transactional_id, driver.topic, driver.dialect, identity, values)
                )
                if commit:
                    for partition in partitions:
                        expected[partition] += values[partition]
            assert len(set(processes.map(write_share, shares))) == 3
            identity = driver.end_at_last(commit=commit)
        driver.settled()
        assert _consume(driver) == expected


def _consume(driver: TransactionDriver) -> dict[int, list[str]]:
    """All that librdkafka shows under read_committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": f"{driver.broker.host}:{driver.broker.port}",
            "group.id": f"reader-of-{driver.topic}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    values: dict[int, list[str]] = {partition: [] for partition in range(6)}
    try:
        consumer.assign([TopicPartition(driver.topic, partition, 0) for partition in values])
        at_end: set[int] = set()
        while len(at_end) < len(values):
            message = consumer.poll(120)
            assert message is not None, "nothing more, and no end"
            partition = message.partition()
            assert partition is not None
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                at_end.add(partition)
            else:
                value = message.value()
                assert value is not None
                values[partition].append(value.decode())
    finally:
        consumer.close()
    return values


def test_a_second_writer_with_the_same_sequence_is_acknowledged_without_being_written(
    driver: TransactionDriver,
) -> None:
    identity = driver.init_at_last()
    driver.open(0)
    with driver.writer() as first, driver.writer() as second:
        written = first.write_at_last(identity, 0, 0, ["of the first"])
        assert second.write(identity, 0, 0, ["of the second"]) == written
    driver.end_at_last(commit=True)
    assert driver.committed(0) == ["of the first"]


def test_a_writer_continues_where_another_one_stopped(driver: TransactionDriver) -> None:
    identity = driver.init_at_last()
    driver.open(0)
    with driver.writer() as first, driver.writer() as second:
        first.write_at_last(identity, 0, 0, ["a", "b", "c"])
        (producer,) = driver.producers(0)
        assert (producer.producer_epoch, producer.last_sequence) == (identity.producer_epoch, 2)
        assert second.write(identity, 0, producer.last_sequence + 1, ["d"]).error == ErrorCode.none
    driver.end_at_last(commit=True)
    assert driver.committed(0) == ["a", "b", "c", "d"]


def test_an_epoch_begins_at_sequence_zero(driver: TransactionDriver) -> None:
    driver.init_at_last()
    driver.open(0)
    with driver.writer() as writer:
        writer.write_at_last(driver.identity, 0, 0, ["old epoch"])
        identity = driver.end_at_last(commit=True)
        driver.open(0)
        assert writer.write_at_last(identity, 0, 1, ["no"]).error == ErrorCode.out_of_order_sequence_number
        assert writer.write_at_last(identity, 0, 0, ["new epoch"]).error == ErrorCode.none
        assert writer.write(identity, 0, 2, ["a gap"]).error == ErrorCode.out_of_order_sequence_number
    driver.end_at_last(commit=True)
    assert driver.committed(0) == ["old epoch", "new epoch"]


def test_first_batches_to_many_partitions_at_once_get_in_by_repeating_them(setting: Setting) -> None:
    count = 24
    with setting.driver(partitions=count) as driver:
        for turn in range(2):
            # The second turn begins while the markers of the first are being written.
            identity = driver.identity if turn else driver.init_at_last()
            driver.open(*range(count))
            results: dict[int, Written] = {}
            writers = [
                threading.Thread(target=_write_one, args=(driver, partition, results)) for partition in range(count)
            ]
            for writer in writers:
                writer.start()
            for writer in writers:
                writer.join()
            assert {written.error for written in results.values()} == {ErrorCode.none}
            driver.end_at_last(commit=True, identity=identity)
        for partition in range(count):
            assert driver.committed(partition) == [f"{partition}"] * 2


def _write_one(driver: TransactionDriver, partition: int, results: dict[int, Written]) -> None:
    with driver.writer() as writer:
        results[partition] = writer.write_at_last(driver.identity, partition, 0, [f"{partition}"])


def test_one_request_right_after_end_txn_may_carry_first_batches_of_many_partitions(
    driver: TransactionDriver,
) -> None:
    driver.init_at_last()
    with driver.writer() as writer:
        for _ in range(3):
            driver.open(*range(6))
            batches = {partition: make_batch(driver.identity, 0, ["x"]) for partition in range(6)}
            results = writer.send_all_at_last(batches)
            assert {written.error for written in results.values()} == {ErrorCode.none}
            driver.end_at_last(commit=True)
    for partition in range(6):
        assert driver.committed(partition) == ["x"] * 3


def test_the_driver_may_add_partitions_before_the_writers_write(driver: TransactionDriver) -> None:
    identity = driver.init_at_last()
    assert driver.add(0, 1) == ErrorCode.none
    assert driver.add(0, 1) == ErrorCode.none, "a repeat"
    with driver.writer() as writer:
        assert writer.write_at_last(identity, 0, 0, ["x"]).error == ErrorCode.none
    assert driver.state() == ("Ongoing", identity, [0, 1])
    driver.end_at_last(commit=True)
    assert (driver.committed(0), driver.committed(1)) == (["x"], [])


def test_the_last_stable_offset_stays_below_any_open_transaction(setting: Setting) -> None:
    with (
        setting.driver() as other,
        TransactionDriver(setting.broker, "reads its own record", other.topic, setting.dialect) as driver,
    ):
        for each in (other, driver):
            each.init_at_last()
            each.open(0)
            with each.writer() as writer:
                assert writer.write_at_last(each.identity, 0, 0, ["x"]).error == ErrorCode.none
        driver.end_at_last(commit=True)
        driver.settled()
        # Committed, and yet not to be read: a reader that stops at the last stable offset would think it lost.
        assert driver.end_offset(0, IsolationLevel.READ_COMMITTED) == 0
        high_watermark = driver.end_offset(0, IsolationLevel.READ_UNCOMMITTED)
        assert high_watermark == 3
        other.end_at_last(commit=False)
        stable = at_last(
            lambda: driver.end_offset(0, IsolationLevel.READ_COMMITTED), lambda offset: offset >= high_watermark
        )
        assert stable == 4
        assert driver.committed(0) == ["x"]


def test_offsets_of_no_group_member_are_committed_or_dropped_with_the_transaction(
    driver: TransactionDriver,
) -> None:
    group = f"group-of-{driver.topic}"
    driver.init_at_last()
    for offset, commit, seen in ((7, False, -1), (8, True, 8)):
        driver.open_offsets(group)
        for _ in range(2):
            assert driver.commit_offsets_at_last(group, {0: offset}) == ErrorCode.none
        assert driver.fetch_offsets(group, 0)[0] == ErrorCode.unstable_offset_commit
        assert driver.fetch_offsets(group, 0, require_stable=False) == (ErrorCode.none, -1)
        driver.end_at_last(commit=commit)
        at_last(lambda: driver.fetch_offsets(group, 0)[0], lambda error: error != ErrorCode.unstable_offset_commit)
        assert driver.fetch_offsets(group, 0) == (ErrorCode.none, seen)


def test_offsets_of_no_group_member_are_taken_while_the_group_has_members(driver: TransactionDriver) -> None:
    group = f"group-of-{driver.topic}"
    with driver.broker.connect() as member:
        _join(member, group)
        driver.init_at_last()
        driver.open_offsets(group)
        assert driver.commit_offsets_at_last(group, {0: 5}) == ErrorCode.none
        driver.end_at_last(commit=True)
        found = at_last(
            lambda: driver.fetch_offsets(group, 0), lambda found: found[0] != ErrorCode.unstable_offset_commit
        )
        assert found == (ErrorCode.none, 5)


def _join(member: raw.Connection, group: str) -> None:
    fields = {
        "group_id": group,
        "session_timeout": 30_000,
        "rebalance_timeout": 30_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    # The first answer only brings the member id to join with.
    member_id = member.call(raw.JOIN_GROUP, 5, **fields, member_id="").member_id
    joined = member.call(raw.JOIN_GROUP, 5, **fields, member_id=member_id)
    assert joined.error_code == ErrorCode.none
    synced = member.call(
        raw.SYNC_GROUP,
        3,
        group_id=group,
        generation_id=joined.generation_id,
        member_id=member_id,
        assignments=[{"member_id": member_id, "assignment": b""}],
    )
    assert synced.error_code == ErrorCode.none


def test_offsets_of_topics_the_cluster_does_not_know_are_refused(driver: TransactionDriver) -> None:
    group = f"group-of-{driver.topic}"
    driver.init_at_last()
    driver.open_offsets(group)
    assert driver.commit_offsets_at_last(group, {0: 5}) == ErrorCode.none
    assert driver.commit_offsets(group, {0: 5}, topic="elsewhere") == ErrorCode.unknown_topic_or_partition
    assert driver.commit_offsets(group, {77: 5}) == ErrorCode.unknown_topic_or_partition


def test_batches_that_do_not_belong_to_the_transaction_are_refused(driver: TransactionDriver) -> None:
    identity = driver.init_at_last()
    driver.open(0)
    with driver.writer() as writer:
        writer.write_at_last(identity, 0, 0, ["x"])
        plain = make_batch(identity, 1, ["not transactional"], transactional=False)
        assert writer.send(0, plain).error == ErrorCode.invalid_txn_state
    for name, error in (
        (None, ErrorCode.transactional_id_authorization_failed),
        ("another", ErrorCode.invalid_producer_id_mapping),
    ):
        with driver.writer(name) as writer:
            assert writer.write_at_last(identity, 1, 0, ["x"]).error == error
    driver.end_at_last(commit=True)
    assert (driver.committed(0), driver.committed(1)) == (["x"], [])


def test_an_unregistered_partition_is_refused_by_produce_11_and_added_by_produce_12(driver: TransactionDriver) -> None:
    identity = driver.init_at_last()
    driver.open(0)
    with driver.writer() as writer:
        for version, error in ((10, ErrorCode.invalid_txn_state), (11, ErrorCode.transaction_abortable)):
            assert writer.write(identity, 1, 0, ["x"], version=version).error == error
        assert driver.written(1) == []
        # Not the broker's transaction version decides, but the request's.
        batch = make_batch(identity, 0, ["x"])
        added = at_last(lambda: writer.send(1, batch, version=12), lambda written: written.error not in RETRIABLE)
        assert added.error == ErrorCode.none
    assert 1 in driver.state()[2]


def test_a_transaction_and_its_writers_outlive_kill_9_of_the_broker(own_setting: Setting) -> None:
    with own_setting.driver() as driver:
        identity = driver.init_at_last()
        driver.open(0, 1)
        with driver.writer() as writer:
            before = writer.write_at_last(identity, 0, 0, ["a"])
        own_setting.restart_after_kill()
        driver.reconnect()
        with driver.writer() as writer:
            assert writer.write_at_last(identity, 0, 0, ["a"]) == before, "a retry over the restart"
            assert writer.write_at_last(identity, 0, 1, ["b"]).error == ErrorCode.none
            assert writer.write_at_last(identity, 1, 0, ["c"]).error == ErrorCode.none
        driver.end_at_last(commit=True)
        assert (driver.committed(0), driver.committed(1)) == (["a", "b"], ["c"])


def test_end_txn_returns_the_next_producer_epoch_only_under_tv2(driver: TransactionDriver) -> None:
    identity = driver.init_at_last()
    driver.open(0)
    with driver.writer() as writer:
        writer.write_at_last(identity, 0, 0, ["x"])
    ended = driver.end(commit=True)
    assert ended.error == ErrorCode.none
    assert ended.identity == (identity._replace(producer_epoch=1) if driver.dialect is TV2 else NOBODY)
    assert driver.settled()[1].producer_epoch == (0 if driver.dialect is TV1 else 1)
