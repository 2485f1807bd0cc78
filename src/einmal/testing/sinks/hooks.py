"""Hooks by which the battery knows a sink: how it is opened, and how rows and staging are seen and damaged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from einmal.sinks.arrow_rows import ArrowRows
from einmal.sinks.batch_rows import BatchRows
from einmal.sinks.row_schema import RowField, RowSchema, RowType
from einmal.sinks.sink import RowSink

SCHEMA: Final = RowSchema(fields=(RowField("id", RowType("long")), RowField("name", RowType("string"))))
"""Schema of the rows that the battery writes."""
Row = tuple[int, str]


class SinkHooks(ABC):
    """``location``: a directory of one test, whose path belongs to it alone. Everything that a hook makes for one
    location is separate from that of another; a database server may use a schema with a name made from the path."""

    wrong_column: ClassVar[RowField | None] = RowField("surplus", RowType("string"))
    """``RowSink.problems`` refuses rows that have it, too, once rows were written; None: it never does."""
    can_lose_commits: ClassVar[bool] = True
    """Whether the record of a restored copy, or of a replica that lagged, can be older than what a run has seen."""
    can_be_read_beside_a_transaction: ClassVar[bool] = True
    """Whether ``rows`` and ``look`` answer while another driver's transaction is open."""

    @abstractmethod
    def sink(self, location: Path) -> RowSink:
        """A new sink, with waiting times of a second or less. All of one location have the same rows."""

    def batch_rows(self, tables: Sequence[Any]) -> BatchRows:
        """Rows of Arrow tables, each written by a task of its own. By default the tasks run in this thread."""
        return ArrowRows(tables)

    @abstractmethod
    def rows(self, location: Path) -> list[Row]:
        """All rows that a reader sees now, each as often as it is there; none before the first commit."""

    @abstractmethod
    def staged(self, location: Path) -> list[str]:
        """Return what is staged: names of files, directories, tables. Empty where nothing is."""

    @abstractmethod
    def lose_staged(self, location: Path) -> None:
        """Take away at least one staged row, as a crash of its machine could."""

    @abstractmethod
    def copy_staged(self, location: Path) -> None:
        """Stage all rows a second time, as another attempt of the same tasks would."""

    @abstractmethod
    def damage_record(self, location: Path, name: str) -> None:
        """Replace the commit record of a pipeline, which has one, by bytes that no record has."""
