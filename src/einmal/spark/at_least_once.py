"""One run of an at-least-once query: acknowledged by all replicas, in no transaction, with no commit record.

What Spark's own Kafka sink promises: a batch or a task that is run again is written again. Here to be compared with.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from einmal.pipeline.claims import Denied, Output
from einmal.pipeline.committer import Held
from einmal.spark import events
from einmal.spark.claim_service import TopicTable, Transaction
from einmal.spark.exactly_once import Setting
from einmal.spark.execution import Execution
from einmal.types import TransactionVersion


class AtLeastOnce:
    held = None
    """There is no identity to keep over a restart."""

    def __init__(self, setting: Setting, _held: Held | None = None) -> None:
        self._setting = setting
        self.is_undecided = False

    def start(self) -> None:
        """There is nothing to look up."""

    def batch(self, frame: DataFrame, batch_id: int, _execution: Execution | None) -> None:
        """Write one micro-batch. Raises what Spark raises."""
        setting = self._setting
        end = setting.checkpoint.offsets(batch_id)
        before = setting.checkpoint.offsets(batch_id - 1) if batch_id > 0 else None
        setting.tell(
            events.BatchStarted(batch_id, None if before is None else before.end, None if end is None else end.end)
        )

        def reported(output: Output) -> None:
            setting.tell(events.PartitionWritten(batch_id, output.topic, output.partition, output.count))

        transaction = Transaction(
            TopicTable(setting.cluster.partition_count), add=lambda _: None, reported=reported, exclusive=False
        )
        setting.service.begin(transaction)
        try:
            collected = setting.job.run(
                frame,
                transaction,
                batch_id=batch_id,
                transactional_id=None,
                identity=None,
                transaction_version=TransactionVersion.TV_1,
            )
        finally:
            setting.service.end()
        outputs = transaction.close(collected)
        assert not isinstance(outputs, Denied)
        setting.tell(events.BatchWritten(batch_id, sum(output.count for output in outputs)))

    def close(self) -> None:
        """Nothing is held."""
