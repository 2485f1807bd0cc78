"""Sinks whose rows come from Spark: a commit point that stages a DataFrame, and how a query opens it.

A sink of your own implements ``Destination`` and ``Target``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from einmal.options.values import Options
from einmal.pipeline import events
from einmal.pipeline.claims import Output
from einmal.sinks.commit_point import CommitPoint, Identity
from einmal.sinks.sink import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class Target(CommitPoint):
    """A commit point that takes its rows from Spark's tasks."""

    @abstractmethod
    def stage(self, identity: Identity, batch_id: int, frame: DataFrame) -> tuple[Output, ...]:
        """Write the rows of a batch durably to where no reader sees them; the number of rows by table and task.

        Raises TargetFailed, TargetFenced, and what Spark raises.
        """


def _nobody_listens(_event: events.Event) -> None:
    return


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Who writes to a target. ``name``: of the pipeline, its transactional.id. ``spark``: None where only the record is
    read or changed. ``sources``: formats and options of the query's sources, in the order of its positions.
    ``is_new``: nobody can have used the name before."""

    name: str
    spark: SparkSession | None = None
    notify: events.Listener = _nobody_listens
    sources: Sequence[tuple[str, Mapping[str, str]]] = ()
    is_new: bool = False


class Destination(Sink):
    """A sink that can be opened for a run with Spark."""

    def problems(self, name: str, schema: StructType | None) -> list[tuple[str, str]]:
        """What must be changed before rows of this schema can be written under this name: what is wrong, and a hint.

        Asked before anything is acquired; creates what is missing and may be created. ``schema``: None where it is
        known only with the first batch. Raises TargetError.
        """
        return []

    @abstractmethod
    def target(self, opening: Opening) -> Target:
        """For one run under a name."""


NewDestination = Callable[[Options], Destination]
