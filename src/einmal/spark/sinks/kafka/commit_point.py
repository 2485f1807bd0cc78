"""Topics whose rows come from Spark: its tasks write under the identity of the driver (``spark/output``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from einmal.pipeline import events
from einmal.pipeline.claims import Output
from einmal.sinks.batch_rows import BatchRows
from einmal.sinks.commit_point import Identity
from einmal.sinks.kafka.commit_point import KafkaOpening, KafkaRowCommitPoint
from einmal.sinks.kafka.open_transaction import OpenTransaction, WriteAs
from einmal.spark.sinks.frame_rows import FrameRows
from einmal.types import TopicPartition

if TYPE_CHECKING:
    from einmal.spark.output.resources import SinkResources


class KafkaFrameCommitPoint(KafkaRowCommitPoint):
    """See ``RowCommitPoint``."""

    def __init__(self, opening: KafkaOpening, resources: SinkResources | None, notify: events.Listener) -> None:
        """``resources``: None without rows to write."""
        super().__init__(opening)
        self._resources = resources
        self._notify = notify

    def stage(self, identity: Identity, batch_id: int, rows: BatchRows) -> tuple[Output, ...]:
        assert isinstance(rows, FrameRows), "topics take a DataFrame"
        frame, resources = rows.frame, self._resources
        assert resources is not None, "opened without Spark"

        def claimed(partition: TopicPartition) -> None:
            self._notify(events.PartitionClaimed(batch_id, partition.topic, partition.partition))

        def reported(output: Output) -> None:
            self._notify(events.PartitionWritten(batch_id, output.topic, output.partition, output.count))

        def run(claims: OpenTransaction, write_as: WriteAs) -> list[Output]:
            return resources.job.run(frame, claims, batch_id, write_as)

        return self.stage_by_tasks(identity, resources.service, run, claimed=claimed, reported=reported)
