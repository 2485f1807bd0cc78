"""The seam between an ingester's machine and its records: who writes a batch inside the transaction.

The machine, its transactions and the source's position stay in the ingester's process. ``LocalAppender`` reads and
writes the records there, too; ``spark_appender`` lets the tasks of a Spark application do it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from einmal.client.config import ProducerSettings
from einmal.ingest.encoding import BATCH_BYTES, RecordEncoder
from einmal.ingest.source import IngestBatch
from einmal.pipeline.claims import Output
from einmal.spark.cluster import KafkaCluster
from einmal.spark.targets.kafka.batches import TransactionBatches
from einmal.spark.targets.kafka.target import KafkaTarget
from einmal.types import ProducerIdAndEpoch


class Appender(Protocol):
    """What was written, by partition. Raises TargetError, SourceFailed, SourceRefused, and what iterating the records
    raises."""

    def append(
        self, batch: IngestBatch, target: KafkaTarget, identity: ProducerIdAndEpoch, now_ms: int
    ) -> tuple[Output, ...]: ...


class LocalAppender:
    """See ``Appender``."""

    def __init__(self, settings: ProducerSettings, client: Mapping[str, str], cluster: KafkaCluster) -> None:
        self._encoder = RecordEncoder(settings, int(client.get("batch.size", BATCH_BYTES)), cluster.partition_count)

    def append(
        self, batch: IngestBatch, target: KafkaTarget, identity: ProducerIdAndEpoch, now_ms: int
    ) -> tuple[Output, ...]:
        batches = TransactionBatches(identity)
        written = target.append(identity, self._encoder.encode(batch, batches, now_ms))
        return tuple(Output(*place, *found[:2], count=batches.count(place)) for place, found in written.items())
