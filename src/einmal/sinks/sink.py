"""Sinks that a pipeline writes to, as they are named and configured; ``commit_point`` has what one run does with
one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from einmal.options.values import Options
from einmal.pipeline import events
from einmal.pipeline.reasons import Reason
from einmal.schemas.settings import ErrorSettings
from einmal.sinks.commit_point import CommitPoint, Committed, RowCommitPoint
from einmal.sinks.row_schema import RowSchema


def _nobody_listens(_event: events.Event) -> None:
    return


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Who writes to a sink. ``name``: of the pipeline, its transactional.id. ``runtime``: what runs the tasks that
    write, for a sink that needs it before the first rows come (Spark's session). ``sources``: formats and options of
    the query's sources, in the order of its positions; None: they are not known. ``is_new``: nobody can have used the
    name before."""

    name: str
    runtime: object = None
    notify: events.Listener = _nobody_listens
    sources: Sequence[tuple[str, Mapping[str, str]]] | None = ()
    is_new: bool = False


class Sink(ABC):
    """A type of sink with its options: ``type = "..."`` in a pipeline.toml, ``format("...")`` in a program.

    Made from options without connecting to anything; one for each query, batch write or command.
    """

    OPTIONS: ClassVar[tuple[str, ...]] = ()
    """The names of its own options, beside those of every pipeline; ``SECRETS`` are never shown."""
    SECRETS: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def __init__(self, options: Options) -> None:
        """Raises OptionError."""

    @property
    @abstractmethod
    def table(self) -> str:
        """Name of the sink for a reader: a table's name, a directory."""

    @property
    def errors(self) -> ErrorSettings:
        """Treatment of rows that it rejects. Where they are tolerated, its commit points have ``rejected``."""
        return ErrorSettings()

    @abstractmethod
    def identity(self) -> str | None:
        """Which cluster or database this is, whatever its address: a checkpoint belongs to one. None: it has no
        identity. Raises SinkError."""

    def promises(self) -> tuple[Reason, ...]:
        """Why its commits are exactly once, and under which conditions, for ``einmal explain``. Asks nobody. None by
        default: ``explain`` describes topics from their cluster."""
        return ()

    @abstractmethod
    def commit_point(self, opening: Opening) -> CommitPoint:
        """For one run under a name."""

    @abstractmethod
    def committed(self) -> Mapping[str, Committed]:
        """The records of all pipelines that have committed there, by name. Raises SinkError."""

    def close(self) -> None:
        """Release what all its commit points share."""
        return


class RowSink(Sink):
    """A sink that takes rows."""

    def problems(self, name: str, schema: RowSchema | None) -> list[tuple[str, str]]:
        """Return what must be changed before rows of this schema can be written under this name: what is wrong, and a
        hint.

        Asked before anything is acquired; creates what is missing and may be created. ``schema``: None where it is
        known only with the first batch. Raises SinkError.
        """
        return []

    @abstractmethod
    def commit_point(self, opening: Opening) -> RowCommitPoint:
        """For one run under a name."""
