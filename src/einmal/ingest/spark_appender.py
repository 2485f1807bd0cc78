"""A batch's records by the tasks of a Spark application: for sources that are large, and can be read in pieces.

Tasks read the pieces, and write under the identity of the ingester's transaction, as those of a pipeline do, by the
same job and the same rules: one task at a time writes a partition, and only one attempt of each task may write
(``sinks.kafka.claim_service``). If that attempt dies, the transaction is aborted, and the next run reads the batch
again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.commit_protocol.claims import Output
from einmal.ingest.source import IngestBatch, RecordPart, RecordSource, SourceFailed, SourceRefused
from einmal.sinks.commit_point import SinkError
from einmal.sinks.kafka.commit_point import KafkaCommitPoint
from einmal.spark.errors import reason_of
from einmal.spark.output.part_frame import PartJob, PartRow
from einmal.types import ProducerIdAndEpoch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PARTS_PER_CORE: Final = 2
"""So many that the tasks that are done first find another one."""
_REFUSED: Final = frozenset({"RowRefused", "RecordTooLarge", "SourceRefused"})
"""Errors that a task raises whenever it runs."""
_HINT_REFUSED: Final = "raise the limit, or correct the row, that the error names; other rows wait for it"


class SparkAppender:
    """See ``Appender``."""

    def __init__(
        self, spark: SparkSession, source: RecordSource, cluster: KafkaCluster, client: Mapping[str, str]
    ) -> None:
        """``source``: is asked to split its batches. ``client``: settings under Kafka's names. Raises SourceRefused,
        PipelineRefused."""
        self._job = PartJob(spark)
        source.split(_PARTS_PER_CORE * self._job.width)
        self._resources = self._job.resources(cluster, client)
        self._number = 0

    def append(
        self, batch: IngestBatch, commit_point: KafkaCommitPoint, identity: ProducerIdAndEpoch, now_ms: int
    ) -> tuple[Output, ...]:
        """The time of writing is the tasks' driver's."""
        self._number += 1
        if not batch.parts:
            # Only the position is new.
            return ()
        try:
            frame = self._job.frame([partial(_rows, piece) for piece in batch.parts])
            return commit_point.stage_by_tasks(
                identity,
                self._resources.service,
                lambda claims, write_as: self._resources.job.run(frame, claims, self._number, write_as),
            )
        except SinkError:
            raise
        except Exception as error:
            reason = reason_of(error)
            if reason.partition(":")[0] in _REFUSED:
                raise SourceRefused(reason, _HINT_REFUSED) from error
            if not self._job.is_alive():
                raise SourceRefused(f"Spark has ended: {reason}", "start the ingester again") from error
            raise SourceFailed(reason) from error

    def close(self) -> None:
        self._resources.service.close()


def _rows(piece: RecordPart) -> Iterator[PartRow]:
    for record in piece.records():
        yield PartRow(record.topic, record.value, record.key, record.headers, record.partition, record.timestamp)
