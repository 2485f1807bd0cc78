"""A partition's folder that Apache Kafka wrote, alive or stopped, is opened as our own: formats and meaning agree."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest
from confluent_kafka import Producer

from einmal.log.config import LogConfig
from einmal.log.disk import OsDisk
from einmal.log.partition_log import PartitionLog
from einmal.types import ErrorCode, Offset, ProducerEpoch, ProducerId, ProducerIdAndEpoch
from einmal.wire.record_batch import decode_records, iter_headers
from tests.interop.apache_kafka import ApacheKafka
from tests.interop.conftest import NodeFactory
from tests.interop.topics import Broker, create_topic
from tests.log.making import append, batch, open_log

pytestmark = pytest.mark.interop

TOPIC = "written-by-apache"


def produce(node: ApacheKafka) -> None:
    """Ten transactions of three records with a codec each, every other one aborted; then one that stays open."""
    for number in range(11):
        producer = Producer(
            {
                "bootstrap.servers": node.bootstrap,
                "transactional.id": f"writer-{number % 2}",
                "compression.type": ("none", "gzip", "snappy", "lz4", "zstd")[number % 5],
            }
        )
        producer.init_transactions(120)
        producer.begin_transaction()
        for record in range(3):
            producer.produce(TOPIC, key=b"%d" % number, value=b"value %d " % record * 20, partition=0)
        producer.flush(120)
        if number < 10 and number % 2:
            producer.abort_transaction(120)
        elif number < 10:
            producer.commit_transaction(120)


def committed_keys(log: PartitionLog) -> list[bytes]:
    aborted = log.segments.aborted_transactions(Offset(0), log.last_stable_offset)
    active: set[int] = set()
    keys: list[bytes] = []
    offset = Offset(0)
    while offset < log.last_stable_offset:
        data = log.read(offset, 100_000, below=log.last_stable_offset)
        for position, header in iter_headers(data):
            offset = header.next_offset
            while aborted and aborted[0].first_offset <= header.last_offset:
                active.add(aborted.pop(0).producer_id)
            if header.is_control:
                active.discard(header.producer_id)
            elif header.producer_id not in active:
                keys += [record.key or b"" for record in decode_records(data, position, header)]
    return keys


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.05)


def copied(node: ApacheKafka, target: Path) -> PartitionLog:
    shutil.copytree(node.log_directory / f"{TOPIC}-0", target)
    return open_log(OsDisk(), target, LogConfig())


def test_a_folder_of_apache_kafka_is_opened_alive_and_after_a_clean_stop(
    own_node_of: NodeFactory, tmp_path: Path
) -> None:
    node = own_node_of("apache", 2)
    assert isinstance(node, ApacheKafka)
    create_topic(Broker(node.host, node.port), TOPIC, 1)
    produce(node)
    # The broker writes markers after it has answered.
    attempts = iter(range(1000))
    wait_for(lambda: copied(node, tmp_path / f"try-{next(attempts)}").log_end_offset >= 11 * 3 + 10)
    alive = copied(node, tmp_path / "alive" / "t-0")
    node.stop()
    stopped = copied(node, tmp_path / "stopped" / "t-0")
    expected = [b"%d" % number for number in range(0, 10, 2) for _ in range(3)]
    for log in (alive, stopped):
        assert committed_keys(log) == expected
        assert len(log.segments.aborted_transactions(Offset(0), log.log_end_offset)) == 5
        assert log.topic_id is not None
        [owner] = [each for each in log.producers.describe() if each.current_txn_start_offset >= 0]
        assert log.last_stable_offset == owner.current_txn_start_offset == log.log_end_offset - 3
        again = ProducerIdAndEpoch(ProducerId(owner.producer_id), ProducerEpoch(owner.producer_epoch))
        gap = append(log, batch(of=again, sequence=owner.last_sequence + 2, transactional=True))
        assert gap.error is ErrorCode.out_of_order_sequence_number
        following = append(log, batch(of=again, sequence=owner.last_sequence + 1, transactional=True))
        assert following.error is ErrorCode.none
        log.close(clean=True)
        folder = PurePosixPath(tmp_path / ("alive" if log is alive else "stopped") / "t-0")
        assert committed_keys(open_log(OsDisk(), folder, LogConfig())) == expected
