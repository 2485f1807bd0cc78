"""Clients that are kept while nothing is sent: the broker may have been another process meanwhile."""

from __future__ import annotations

from pathlib import Path

from einmal.client import Admin, NewTopic, OffsetRange, PartitionWriter, RangeReader, TransactionDriver
from einmal.types import TopicPartition
from einmal.wire.record_batch import NewRecord, encode_batch
from tests.interop.einmal_broker import EinmalBroker

PLACE = TopicPartition("kept", 0)
ROUNDS = 3


def test_a_writer_and_a_reader_continue_when_the_broker_was_restarted(tmp_path: Path) -> None:
    broker = EinmalBroker(tmp_path / "broker")
    broker.start()
    try:
        client = {"bootstrap.servers": broker.bootstrap}
        with Admin(client) as admin:
            admin.create_topics([NewTopic(PLACE.topic, 1)])
        with (
            TransactionDriver(client, transactional_id="kept") as driver,
            PartitionWriter(client) as writer,
            RangeReader(client) as reader,
        ):
            identity = driver.init_producer_id()
            for number in range(ROUNDS):
                version = driver.transaction_version
                driver.add_partitions(identity, [PLACE])
                writer.begin(identity, "kept", version)
                batch = encode_batch(
                    [NewRecord(None, b"%d" % number, 1_000)],
                    producer_id=identity.producer_id,
                    producer_epoch=identity.producer_epoch,
                    base_sequence=0,
                    transactional=True,
                )
                writer.append(PLACE, batch)
                first = writer.flush()[PLACE].first_offset
                identity = driver.end_txn(identity, committed=True) or driver.init_producer_id(identity)
                (read,) = reader.read({PLACE: OffsetRange(first, first + 1)})
                assert [each.value for each in read.records()] == [b"%d" % number]
                broker.kill()
                broker.start()
    finally:
        broker.stop()
