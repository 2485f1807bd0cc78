"""One run of an at-most-once query: a batch that was begun is never written again, whatever became of it.

That it is begun is written into the checkpoint before its first record. Nothing is sent twice either: no task writes a
partition that another attempt has begun, and a record batch that the broker may have is not sent again. What a failure
has kept from being written is lost; the query ends then, and its next start goes on behind the batch.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from einmal.pipeline.claims import Denied, Output
from einmal.pipeline.committer import Held
from einmal.spark import events
from einmal.spark.claim_service import TopicTable, Transaction
from einmal.spark.errors import BatchLost, reason_of
from einmal.spark.exactly_once import Setting
from einmal.spark.execution import Execution
from einmal.types import TransactionVersion


class AtMostOnce:
    held = None
    """There is no identity to keep over a restart."""

    def __init__(self, setting: Setting, _held: Held | None = None) -> None:
        self._setting = setting
        self.is_undecided = False

    def start(self) -> None:
        """There is nothing to look up."""

    def batch(self, frame: DataFrame, batch_id: int, _execution: Execution | None) -> None:
        """Write one micro-batch, unless it was begun before. Raises BatchLost."""
        setting = self._setting
        end = setting.checkpoint.offsets(batch_id)
        before = setting.checkpoint.offsets(batch_id - 1) if batch_id > 0 else None
        setting.tell(
            events.BatchStarted(batch_id, None if before is None else before.end, None if end is None else end.end)
        )
        if not setting.checkpoint.begin_batch(batch_id):
            setting.tell(events.BatchSkipped(batch_id))
            # A query with state takes the batch in; nothing is written.
            frame.write.format("noop").mode("append").save()
            return
        outputs = self._write(frame, batch_id)
        setting.tell(events.BatchWritten(batch_id, sum(output.count for output in outputs)))

    def _write(self, frame: DataFrame, batch_id: int) -> tuple[Output, ...]:
        setting = self._setting

        def reported(output: Output) -> None:
            setting.tell(events.PartitionWritten(batch_id, output.topic, output.partition, output.count))

        transaction = Transaction(TopicTable(setting.cluster.partition_count), add=lambda _: None, reported=reported)
        setting.service.begin(transaction)
        try:
            collected = setting.job.run(
                frame,
                transaction,
                batch_id=batch_id,
                transactional_id=None,
                identity=None,
                transaction_version=TransactionVersion.TV_1,
                sends_once=True,
            )
            outputs = transaction.close(collected)
        except Exception as error:
            raise _failed(batch_id, reason_of(error)) from error
        finally:
            setting.service.end()
        if isinstance(outputs, Denied):
            raise _failed(batch_id, outputs.reason)
        return outputs

    def close(self) -> None:
        """Nothing is held."""


def _failed(batch_id: int, reason: str) -> BatchLost:
    return BatchLost(
        f"batch {batch_id} was begun and not finished: {reason}",
        "what it has not written is lost, as processing.guarantee=at_most_once says; the next start goes on behind it",
    )
