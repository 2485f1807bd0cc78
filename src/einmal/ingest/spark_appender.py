"""A batch's records by the tasks of a Spark application: for sources that are large, and can be read in pieces.

Tasks read the pieces, and write under the identity of the ingester's transaction, as those of a pipeline do, by the
same job and the same rules: one task at a time writes a partition, and only one attempt of each task may write
(``spark.output.claim_service``). If that attempt dies, the transaction is aborted, and the next run reads the batch
again.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from einmal.ingest.source import IngestBatch, RecordPart, SourceFailed, SourceRefused
from einmal.pipeline.claims import Output
from einmal.spark.errors import reason_of
from einmal.spark.targets.kafka.target import KafkaTarget
from einmal.spark.targets.target import TargetError
from einmal.types import ProducerIdAndEpoch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from einmal.spark.output.part_frame import PartJob, PartRow

_REFUSED: Final = frozenset({"RowRefused", "RecordTooLarge", "SourceRefused"})
"""What a task raises whenever it runs."""
_HINT_REFUSED: Final = "raise the limit, or correct the row, that the error names; other rows wait for it"


class SparkAppender:
    """See ``Appender``."""

    def __init__(self, job: PartJob) -> None:
        self._job = job
        self._number = 0

    def append(
        self, batch: IngestBatch, target: KafkaTarget, identity: ProducerIdAndEpoch, now_ms: int
    ) -> tuple[Output, ...]:
        """The time of writing is the tasks' driver's."""
        self._number += 1
        if not batch.parts:
            # Only the position is new.
            return ()
        try:
            frame = self._job.frame([partial(_rows, part) for part in batch.parts])
            return target.stage(identity, self._number, frame)
        except TargetError:
            raise
        except Exception as error:
            reason = reason_of(error)
            if reason.partition(":")[0] in _REFUSED:
                raise SourceRefused(reason, _HINT_REFUSED) from error
            if not self._job.is_alive():
                raise SourceRefused(f"Spark has ended: {reason}", "start the ingester again") from error
            raise SourceFailed(reason) from error


def _rows(part: RecordPart) -> Iterator[PartRow]:
    from einmal.spark.output.part_frame import PartRow

    for each in part.records():
        yield PartRow(each.topic, each.value, each.key, each.headers, each.partition, each.timestamp)
