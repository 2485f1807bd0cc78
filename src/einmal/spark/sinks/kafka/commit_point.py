"""Topics whose rows come from Spark: its tasks write under the identity of the driver (``spark/output``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from einmal.commit_protocol.claims import Output
from einmal.pipeline import events
from einmal.sinks.batch_rows import BatchRows
from einmal.sinks.commit_point import Identity
from einmal.sinks.kafka.commit_point import KafkaOpening, KafkaRowCommitPoint
from einmal.spark.sinks.frame_rows import FrameRows

if TYPE_CHECKING:
    from einmal.spark.output.resources import SinkResources


class KafkaFrameCommitPoint(KafkaRowCommitPoint):
    """See ``RowCommitPoint``."""

    def __init__(
        self, opening: KafkaOpening, topic: str | None, notify: events.Listener, resources: SinkResources | None
    ) -> None:
        """``resources``: None without rows to write."""
        super().__init__(opening, topic, notify)
        self._resources = resources

    def stage(self, identity: Identity, batch_id: int, rows: BatchRows) -> tuple[Output, ...]:
        assert isinstance(rows, FrameRows), "Spark's tasks take a DataFrame"
        frame, resources = rows.frame, self._resources
        assert resources is not None, "opened without Spark"
        return self._stage_batch(
            identity,
            batch_id,
            resources.service,
            lambda claims, write_as: resources.job.run(frame, claims, batch_id, write_as),
        )
