"""The rows of one batch, as a sink stages them: in parts, each written by a task.

A sink gives a function that writes one part somewhere durable and reports what it wrote. Who has the rows runs it:
Spark in tasks, on any machine and perhaps more than once for a part; ``ArrowRows`` here, one part after the other. The
reports are those of the attempts that count; whatever another attempt has written is not the batch's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from einmal.sinks.row_schema import RowSchema


class TaskAttempt(NamedTuple):
    """``part``: its number. ``attempt``: another one each time that a task of the application runs."""

    part: int
    attempt: int


class PartReport(NamedTuple):
    """Report of what an attempt has written: rows, bytes (0 where there is no file), CRC-32C."""

    part: int
    attempt: int
    rows: int
    size: int
    crc: int


WritePart = Callable[[TaskAttempt, Iterator[Any]], PartReport | None]
"""Writes the record batches (pyarrow) of one part; None where there are no rows. Can be pickled."""


class RowRefused(ValueError):
    """A row that cannot be a record: the batch cannot be written with it, and is not written without it."""


class Selected(NamedTuple):
    """A column that is made of another one: all of it, one field of a struct, or either as JSON."""

    name: str
    column: str
    field: str | None = None
    as_json: bool = False


class BatchRows(ABC):
    @property
    @abstractmethod
    def schema(self) -> RowSchema:
        """The columns."""

    @abstractmethod
    def without(self, column: str) -> BatchRows:
        """The same rows without a column, if they have it."""

    @abstractmethod
    def select(self, columns: Sequence[Selected]) -> BatchRows:
        """Rows of these columns, in this order."""

    @abstractmethod
    def write(self, write: WritePart) -> list[PartReport]:
        """The reports in the order of the parts. Raises what ``write`` and the runtime raise."""
