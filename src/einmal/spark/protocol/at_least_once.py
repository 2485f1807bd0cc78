"""One run of an at-least-once query: acknowledged by all replicas, in no transaction, with no commit record.

The guarantee of Spark's own Kafka sink: a batch or a task that is run again is written again. Here for comparison.
"""

from __future__ import annotations

from einmal.commit_protocol.claims import Denied
from einmal.pipeline import events
from einmal.spark.protocol.outside_transactions import report_start, write_batch
from einmal.spark.protocol.run import CurrentBatch, Kept, Setting


class AtLeastOnce:
    held: Kept = ()
    """There is no identity to keep over a restart."""
    is_undecided = False

    def __init__(self, setting: Setting, _held: Kept = ()) -> None:
        self._setting = setting

    def start(self) -> None:
        """There is nothing to look up."""

    def batch(self, batch: CurrentBatch) -> None:
        """Write one micro-batch. Raises what Spark raises."""
        report_start(self._setting, batch.batch_id)
        outputs = write_batch(self._setting, batch, is_at_most_once=False)
        assert not isinstance(outputs, Denied)
        self._setting.notify(events.BatchWritten(batch.batch_id, sum(output.count for output in outputs)))

    def check(self) -> None:
        """There is no name that another instance could acquire."""

    def close(self) -> None:
        """Nothing is held."""
