"""Common parts of the runs of all guarantees: their setting, the batch in progress, and the methods that a query
calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from einmal.commit_protocol.run_state import Held
from einmal.options.sink import QueryOptions
from einmal.pipeline import events
from einmal.sinks.batch_rows import BatchRows
from einmal.sinks.sink import RowSink
from einmal.spark.protocol.checkpoint import Checkpoint
from einmal.spark.protocol.execution import Execution
from einmal.spark.sinks.part import Part
from einmal.spark.sinks.rejected_letters import RejectedLetters


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Setting of a run; the same for every run of a query. ``parts``: in the order in which they are committed;
    ``letters``: of the rows that they reject, where that is tolerated."""

    spark: SparkSession
    options: QueryOptions
    frame: DataFrame
    stateful: bool
    parts: tuple[Part, ...]
    checkpoint: Checkpoint
    notify: events.Listener
    letters: RejectedLetters | None = None

    @property
    def sink(self) -> RowSink:
        """Sink of a query with one part."""
        (part,) = self.parts
        return part.sink

    def close(self) -> None:
        for part in self.parts:
            part.sink.close()
        if self.letters is not None:
            self.letters.sink.close()


@dataclass(frozen=True, slots=True)
class CurrentBatch:
    """The batch that is being written. ``execution``: Spark's query that runs it; None for a batch write."""

    batch_id: int
    frame: DataFrame
    execution: Execution | None = None


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """The rows of the batch that are for one sink. ``execution``: see ``CurrentBatch``."""

    batch_id: int
    rows: BatchRows
    execution: Execution | None = None


Kept = tuple[Held | None, ...]
"""Identities that a run leaves to the next one in the same process: for each part, the one under which it was written;
that of the dead letters comes last."""


class Run(Protocol):
    """One run of a query: from a start to the query's end, or to the error that a restart follows."""

    @property
    def held(self) -> Kept:
        """The identities that the next run in this process keeps."""

    @property
    def is_undecided(self) -> bool:
        """Whether only a new run can find out the outcome of this one."""

    def start(self) -> None:
        """To be called before Spark plans anything. Raises PipelineError."""

    def batch(self, batch: CurrentBatch) -> None:
        """Write one micro-batch. Raises PipelineError, and what Spark raises."""

    def check(self) -> None:
        """Between two batches: raises PipelineFenced where another instance has acquired the name since,
        PipelineRefused where a sink has lost batches."""

    def close(self) -> None:
        """Release what the run holds; nothing is aborted."""
