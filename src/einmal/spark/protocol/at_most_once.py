"""One run of an at-most-once query: a batch that was begun is never written again, whatever became of it.

The run notes in the checkpoint that the batch is begun, before the batch's first record. Nothing is sent twice either:
no task writes a partition that another attempt has begun, and a record batch that the broker may have is not sent
again. Records that a failure kept from being written are lost; the query ends then, and its next start resumes behind
the batch.
"""

from __future__ import annotations

from einmal.commit_protocol.claims import Denied, Output
from einmal.pipeline import events
from einmal.pipeline.errors import BatchLost
from einmal.spark.errors import reason_of
from einmal.spark.protocol.outside_transactions import report_start, write_batch
from einmal.spark.protocol.run import CurrentBatch, Kept, Setting


class AtMostOnce:
    held: Kept = ()
    """There is no identity to keep over a restart."""
    is_undecided = False

    def __init__(self, setting: Setting, _held: Kept = ()) -> None:
        self._setting = setting

    def start(self) -> None:
        """There is nothing to look up."""

    def batch(self, batch: CurrentBatch) -> None:
        """Write one micro-batch, unless it was begun before. Raises BatchLost."""
        setting, batch_id = self._setting, batch.batch_id
        report_start(setting, batch_id)
        if not setting.checkpoint.begin_batch(batch_id):
            setting.notify(events.BatchSkipped(batch_id))
            # A query with state takes the batch in; nothing is written.
            batch.frame.write.format("noop").mode("append").save()
            return
        outputs = self._write(batch)
        setting.notify(events.BatchWritten(batch_id, sum(output.count for output in outputs)))

    def _write(self, batch: CurrentBatch) -> tuple[Output, ...]:
        try:
            outputs = write_batch(self._setting, batch, is_at_most_once=True)
        except Exception as error:
            raise BatchLost.of(batch.batch_id, reason_of(error)) from error
        if isinstance(outputs, Denied):
            raise BatchLost.of(batch.batch_id, outputs.reason)
        return outputs

    def check(self) -> None:
        """There is no name that another instance could acquire."""

    def close(self) -> None:
        """Nothing is held."""
