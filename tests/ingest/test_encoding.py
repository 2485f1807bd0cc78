"""Claims about the encoding of a source's records."""

from __future__ import annotations

import time

import pytest

from einmal.client.config import ProducerSettings
from einmal.ingest import IngestBatch, IngestRecord
from einmal.ingest.encoding import BATCH_BYTES, RecordEncoder
from einmal.ingest.source import SourceNotice, SourceRefused
from einmal.sinks.kafka.batches import TransactionBatches
from einmal.types import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tests.suite.patience import patient

RECORDS = 20_000


def test_a_record_without_a_key_does_not_cost_a_hash_of_the_position() -> None:
    position = {f"file-{number}": "x" * 200 for number in range(400)}
    batches = TransactionBatches(ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(0)))
    encoder = RecordEncoder(ProducerSettings(bootstrap_servers="127.0.0.1:9092"), BATCH_BYTES, lambda _: 3)
    batch = IngestBatch((IngestRecord("logs", b"a line") for _ in range(RECORDS)), position)
    began = time.thread_time()
    written = [partition for partition, _ in encoder.encode(batch, batches, 0)]
    # With a hash for each of them it takes minutes.
    assert time.thread_time() - began < patient(10)
    assert len(set(written)) == 1 and batches.count(written[0]) == RECORDS


def test_a_compacted_topic_is_refused_records_without_a_key_but_for_those_that_can_be_left_out() -> None:
    notices: list[SourceNotice] = []
    batches = TransactionBatches(ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(0)))
    encoder = RecordEncoder(
        ProducerSettings(bootstrap_servers="127.0.0.1:9092"),
        BATCH_BYTES,
        lambda _: 1,
        needs_key=lambda topic: topic == "compacted",
        notify=notices.append,
    )

    def encoded(*records: IngestRecord) -> int:
        for _ in encoder.encode(IngestBatch(records, {}), batches, 0):
            pass
        return batches.count(TopicPartition("compacted", 0)) + batches.count(TopicPartition("plain", 0))

    truncate = IngestRecord("compacted", b"{}", skipped_as="the TRUNCATE of public.t")
    assert encoded(truncate, IngestRecord("compacted", b"v", b"k"), truncate._replace(topic="plain")) == 2
    (notice,) = notices
    assert "the TRUNCATE of public.t is not written to compacted" in notice.text
    with pytest.raises(SourceRefused, match="has no key, and the topic is compacted"):
        encoded(IngestRecord("compacted", b"v"))
