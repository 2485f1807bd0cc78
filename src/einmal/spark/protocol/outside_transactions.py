"""A batch that is written in no transaction: what at-least-once and at-most-once have in common."""

from __future__ import annotations

from einmal.commit_protocol.claims import Denied, Output
from einmal.pipeline import events
from einmal.sinks.kafka.outside_transactions import write_plainly
from einmal.spark.protocol.run import CurrentBatch, Setting
from einmal.spark.sinks.kafka.sink import KafkaFrameSink


def report_start(setting: Setting, batch_id: int) -> None:
    """Notify the listeners of the offsets that the batch covers, as far as the checkpoint has them."""
    end = setting.checkpoint.offsets(batch_id)
    before = setting.checkpoint.offsets(batch_id - 1) if batch_id > 0 else None
    setting.notify(
        events.BatchStarted(batch_id, None if before is None else before.end, None if end is None else end.end)
    )


def write_batch(setting: Setting, batch: CurrentBatch, *, is_at_most_once: bool) -> tuple[Output, ...] | Denied:
    """Write plain records. Raises what Spark raises."""

    def reported(output: Output) -> None:
        setting.notify(events.PartitionWritten(batch.batch_id, output.topic, output.partition, output.count))

    sink = setting.sink
    assert isinstance(sink, KafkaFrameSink), "other sinks have transactions only"
    resources = sink.resources(setting.spark)
    return write_plainly(
        sink.cluster,
        resources.service,
        lambda claims, write_as: resources.job.run(batch.frame, claims, batch.batch_id, write_as),
        is_at_most_once=is_at_most_once,
        reported=reported,
    )
