"""Claims about writes whose acknowledgement never comes: the transaction is aborted, and the batch written again."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pyarrow
import pytest

from einmal.client import Admin, NewTopic, PartitionWriter, TopicPartition
from einmal.client.errors import UnknownOutcome
from einmal.sinks.arrow_rows import ArrowRows
from einmal.sinks.commit_point import SinkFailed
from einmal.sinks.kafka.sink import KafkaRowSink
from einmal.sinks.sink import Opening
from einmal.testing.sinks.driving import record_of
from einmal.wire.record_batch import NewRecord, encode_batch
from tests.interop.einmal_broker import EinmalBroker

pytestmark = pytest.mark.system


@pytest.mark.parametrize("way", ["stage", "append"])
def test_a_write_without_an_answer_fails_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    def unanswered(_writer: PartitionWriter) -> NoReturn:
        raise UnknownOutcome()

    broker = EinmalBroker(tmp_path)
    broker.start()
    try:
        client = {"bootstrap.servers": broker.bootstrap}
        with Admin(client) as admin:
            admin.create_topics([NewTopic("words", num_partitions=1)])
        sink = KafkaRowSink(client, "words")
        assert sink.problems("words", None) == []
        point = sink.commit_point(Opening(name="words"))
        identity = point.acquire(None)
        rows = ArrowRows([pyarrow.table({"value": ["a", "b"]})])
        with monkeypatch.context() as patched:
            patched.setattr(PartitionWriter, "flush", unanswered)
            with pytest.raises(SinkFailed):
                if way == "stage":
                    point.stage(identity, 0, rows)
                else:
                    batch = encode_batch(
                        [NewRecord(None, b"a", 0)],
                        producer_id=identity.producer_id,
                        producer_epoch=identity.producer_epoch,
                        base_sequence=0,
                        transactional=True,
                    )
                    point.append(identity, [(TopicPartition("words", 0), bytes(batch))])
        identity = point.abort(identity) or point.acquire(None)
        record = record_of("words", 0, point.stage(identity, 0, rows))
        point.record(identity, record)
        point.commit(identity)
        assert point.look() == record
        point.close()
        sink.close()
    finally:
        broker.stop()
