"""The seam between an ingester's machine and its records: who writes a batch inside the transaction.

The machine, its transactions and the source's position stay in the ingester's process. ``LocalAppender`` reads and
writes the records there, too; ``spark_appender`` lets the tasks of a Spark application do it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Protocol

from einmal.client.config import ProducerSettings
from einmal.client.errors import NotAuthorized
from einmal.ingest.encoding import BATCH_BYTES, RecordEncoder
from einmal.ingest.source import IngestBatch, SourceNotice
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

    def __init__(
        self,
        settings: ProducerSettings,
        client: Mapping[str, str],
        cluster: KafkaCluster,
        notify: Callable[[SourceNotice], None],
    ) -> None:
        @cache
        def needs_key(topic: str) -> bool:
            try:
                return "compact" in (cluster.topic_setting(topic, "cleanup.policy") or "")
            except NotAuthorized:
                # Nobody may ask: the broker answers when it is written.
                return False

        batch_bytes = int(client.get("batch.size", BATCH_BYTES))
        self._encoder = RecordEncoder(settings, batch_bytes, cluster.partition_count, needs_key, notify)

    def append(
        self, batch: IngestBatch, target: KafkaTarget, identity: ProducerIdAndEpoch, now_ms: int
    ) -> tuple[Output, ...]:
        batches = TransactionBatches(identity)
        written = target.append(identity, self._encoder.encode(batch, batches, now_ms))
        return tuple(Output(*place, *found[:2], count=batches.count(place)) for place, found in written.items())
