"""A batch that is written in no transaction: what at-least-once and at-most-once have in common."""

from __future__ import annotations

from einmal.commit_protocol.claims import Denied, Output
from einmal.pipeline import events
from einmal.sinks.kafka.open_transaction import OpenTransaction, TopicTable, WriteAs
from einmal.spark.protocol.run import CurrentBatch, Setting
from einmal.spark.sinks.kafka.sink import KafkaFrameSink


def report_start(setting: Setting, batch_id: int) -> None:
    """Notify the listeners of the offsets that the batch covers, as far as the checkpoint has them."""
    end = setting.checkpoint.offsets(batch_id)
    before = setting.checkpoint.offsets(batch_id - 1) if batch_id > 0 else None
    setting.notify(
        events.BatchStarted(batch_id, None if before is None else before.end, None if end is None else end.end)
    )


def write_plainly(
    setting: Setting, batch: CurrentBatch, *, exclusive: bool, sends_once: bool = False
) -> tuple[Output, ...] | Denied:
    """Write plain records. ``exclusive``: a partition has one writer; ``sends_once``: see ``WriteAs``.

    Raises what Spark raises.
    """

    def reported(output: Output) -> None:
        setting.notify(events.PartitionWritten(batch.batch_id, output.topic, output.partition, output.count))

    sink = setting.sink
    assert isinstance(sink, KafkaFrameSink), "other sinks have transactions only"
    resources = sink.resources(setting.spark)
    claims = OpenTransaction(
        TopicTable(sink.cluster.partition_count), add=lambda _: None, reported=reported, exclusive=exclusive
    )
    resources.service.begin(claims)
    try:
        collected = resources.job.run(batch.frame, claims, batch.batch_id, WriteAs(sends_once=sends_once))
        return claims.close(collected)
    finally:
        resources.service.end()
