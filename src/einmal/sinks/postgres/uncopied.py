"""Rows that no COPY could take, whatever the staging table's types: each is staged as a refusal, its record alone.

These are the values of Spark that no type of PostgreSQL has: the character NUL, text that is not UTF-8, and times
before year 1, in arrays, too. (ISO 8601 writes the latter with a minus sign; PostgreSQL reads no such year.)
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow
import pyarrow.compute as pc

from einmal.sinks.postgres.copy_text import copy_text, text_of
from einmal.sinks.postgres.staging import REFUSAL
from einmal.sinks.rejections import RECORD

_DAYS_MIN: Final = -719_162
_DAYS_MAX: Final = 2_145_042_905
"""0001-01-01, and 5874897-12-31: the last date of PostgreSQL."""
_MICROSECONDS_MIN: Final = _DAYS_MIN * 86_400_000_000
_CHARACTER: Final = "character_not_in_repertoire: "
_TIME: Final = "datetime_field_overflow: "


def tolerant_text(rows: Any) -> bytes:
    """As ``copy_text``, with the column of refusals behind the others."""
    data = copy_text(_with_refusals(rows, [None] * rows.num_rows))
    if _is_text(data) and not any(map(_has_unknown_time, rows.columns)):
        return data
    refusals: list[str | None] = [None] * rows.num_rows
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        for number, why in _refused(name, column):
            refusals[number] = refusals[number] or why
    return copy_text(_with_refusals(rows, refusals))


def _with_refusals(rows: Any, refusals: list[str | None]) -> Any:
    column = pyarrow.array(refusals, pyarrow.string())
    kept = column.is_null()
    columns = [
        values if name.startswith(RECORD) or column.null_count == len(column) else _only(values, kept)
        for name, values in zip(rows.schema.names, rows.columns, strict=True)
    ]
    return pyarrow.RecordBatch.from_arrays([*columns, column], names=[*rows.schema.names, REFUSAL])


def _only(values: Any, kept: Any) -> Any:
    """The values of rows that are kept, NULL in the others."""
    numbers = pc.if_else(kept, pyarrow.array(range(len(values)), pyarrow.int64()), None)
    return values.take(numbers)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return b"\x00" not in data


def _has_unknown_time(column: Any) -> bool:
    numbers, least, most = _times(column.flatten() if _is_array(column) else column)
    if numbers is None:
        return False
    extremes = pc.min_max(numbers).as_py()
    return extremes["min"] is not None and (extremes["min"] < least or extremes["max"] > most)


def _times(column: Any) -> tuple[Any, int, int]:
    """A column of times as numbers, and the bounds of PostgreSQL; None for another column."""
    if pyarrow.types.is_date32(column.type):
        return column.cast(pyarrow.int32()), _DAYS_MIN, _DAYS_MAX
    if pyarrow.types.is_timestamp(column.type):
        return column.cast(pyarrow.int64()), _MICROSECONDS_MIN, 2**63 - 1
    return None, 0, 0


def _is_array(column: Any) -> bool:
    return bool(pyarrow.types.is_list(column.type) or pyarrow.types.is_large_list(column.type))


def _refused(name: str, column: Any) -> list[tuple[int, str]]:
    numbers, least, most = _times(column.flatten() if _is_array(column) else column)
    if numbers is not None:
        beyond = pc.indices_nonzero(pc.or_(pc.less(numbers, least), pc.greater(numbers, most)))
        rows = pc.list_parent_indices(column).take(beyond).unique() if _is_array(column) else beyond
        why = f'{_TIME}column "{name}" has a time that PostgreSQL does not have'
        return [(number, why) for number in rows.to_pylist()]
    refusals = []
    for number, value in enumerate(text_of(column)):
        try:
            text = value.as_py() or ""
        except UnicodeDecodeError:
            refusals.append((number, f'{_CHARACTER}column "{name}" has text that is not UTF-8'))
            continue
        if "\x00" in text:
            refusals.append((number, f'{_CHARACTER}column "{name}" has the character NUL (0x00)'))
    return refusals
