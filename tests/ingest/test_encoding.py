"""Claims about the encoding of a source's records."""

from __future__ import annotations

import time

from einmal.client.config import ProducerSettings
from einmal.ingest import IngestBatch, IngestRecord
from einmal.ingest.encoding import BATCH_BYTES, RecordEncoder
from einmal.spark.targets.kafka.batches import TransactionBatches
from einmal.types import ProducerEpoch, ProducerId, ProducerIdAndEpoch

RECORDS = 20_000


def test_a_record_without_a_key_does_not_cost_a_hash_of_the_position() -> None:
    position = {f"file-{number}": "x" * 200 for number in range(400)}
    batches = TransactionBatches(ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(0)))
    encoder = RecordEncoder(ProducerSettings(bootstrap_servers="127.0.0.1:9092"), BATCH_BYTES, lambda _: 3)
    batch = IngestBatch((IngestRecord("logs", b"a line") for _ in range(RECORDS)), position)
    began = time.process_time()
    written = [partition for partition, _ in encoder.encode(batch, batches, 0)]
    # With a hash for each of them it takes minutes.
    assert time.process_time() - began < 10
    assert len(set(written)) == 1 and batches.count(written[0]) == RECORDS
