"""The seam between an ingester's machine and its records: who writes a batch inside the transaction.

The machine, its transactions and the source's position stay in the ingester's process. ``LocalAppender`` reads and
writes the records there, too; ``spark_appender`` lets the tasks of a Spark application do it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from einmal.client.config import ProducerSettings
from einmal.client.errors import KafkaError, NotAuthorized
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.commit_protocol.claims import Output
from einmal.ingest.encoding import BATCH_BYTES, RecordEncoder
from einmal.ingest.source import IngestBatch, SourceFailed, SourceNotice
from einmal.sinks.commit_point import SinkError
from einmal.sinks.kafka.batches import TransactionBatches
from einmal.sinks.kafka.commit_point import KafkaCommitPoint
from einmal.types import ErrorCode, ProducerIdAndEpoch


class Appender(Protocol):
    """Writer of a batch; ``append`` returns what was written, by partition. Raises SinkError, SourceFailed,
    SourceRefused, and what iterating the records raises."""

    def append(
        self, batch: IngestBatch, commit_point: KafkaCommitPoint, identity: ProducerIdAndEpoch, now_ms: int
    ) -> tuple[Output, ...]: ...

    def close(self) -> None: ...


class LocalAppender:
    """See ``Appender``."""

    def __init__(
        self,
        settings: ProducerSettings,
        client: Mapping[str, str],
        cluster: KafkaCluster,
        notify: Callable[[SourceNotice], None],
    ) -> None:
        batch_bytes = int(client.get("batch.size", BATCH_BYTES))
        self._cluster = cluster
        self._encoder = RecordEncoder(settings, batch_bytes, cluster.partition_count, self._needs_key, notify)
        self._unknown: set[str] = set()
        """Topics of records without a key, whose settings this client may not read; since the last success."""
        self._is_refused = False
        """The broker has refused such records."""

    def append(
        self, batch: IngestBatch, commit_point: KafkaCommitPoint, identity: ProducerIdAndEpoch, now_ms: int
    ) -> tuple[Output, ...]:
        batches = TransactionBatches(identity)
        try:
            written = commit_point.append(identity, self._encoder.encode(batch, batches, now_ms))
        except SinkError as error:
            cause = error.__cause__
            is_invalid = isinstance(cause, KafkaError) and cause.code is ErrorCode.invalid_record
            if is_invalid and self._unknown and not self._is_refused:
                self._is_refused = True
                topics = ", ".join(sorted(self._unknown))
                raise SourceFailed(
                    f"{topics}: {error}", "taken for compacted, because DESCRIBE_CONFIGS is not permitted there"
                ) from error
            raise
        self._unknown.clear()
        self._is_refused = False
        return tuple(
            Output(*partition, *written_range[:2], count=batches.count(partition))
            for partition, written_range in written.items()
        )

    def close(self) -> None:
        return

    def _needs_key(self, topic: str) -> bool:
        try:
            return "compact" in (self._cluster.topic_setting(topic, "cleanup.policy") or "")
        except NotAuthorized:
            # The broker answers when it is written.
            self._unknown.add(topic)
            return self._is_refused
