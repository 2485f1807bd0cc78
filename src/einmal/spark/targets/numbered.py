"""Frames whose columns are named by numbers: ``mapInArrow`` reads the names of columns as SQL does.

It would look for a field of ``a.b``, for all columns of ``*``, and find no column of a name with a backtick.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def numbered(frame: DataFrame) -> DataFrame:
    """The columns ``c0``, ``c1`` and so on."""
    return frame.toDF(*(f"c{number}" for number in range(len(frame.schema.names))))


def named(batches: Iterator[Any], names: Sequence[str]) -> Iterator[Any]:
    """The record batches of a numbered frame, in a task, with these names."""
    return (batch.rename_columns(list(names)) for batch in batches)
