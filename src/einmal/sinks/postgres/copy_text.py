"""Arrow batches as COPY's text format, a column at a time: without a Python object per value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow
import pyarrow.compute as pc

from einmal.sinks.time_text import time_text

_NULL: Final = "\\N"


def copy_text(rows: Any) -> bytes:
    """The rows of an Arrow batch as COPY reads them: a tab between values, a line feed after each row."""
    columns = [text_of(column) for column in rows.columns]
    # The line feed is part of the last value: so the joined values are the whole text.
    columns[-1] = pc.binary_join_element_wise(columns[-1].fill_null(_NULL), "", "\n")
    joined = columns[0]
    if len(columns) > 1:
        joined = pc.binary_join_element_wise(*columns, "\t", null_handling="replace", null_replacement=_NULL)
    return data_of(joined)


def data_of(array: Any) -> bytes:
    _, offsets, data = array.buffers()
    if data is None:
        return b""
    bounds = memoryview(offsets).cast("i")
    return bytes(memoryview(data)[bounds[array.offset] : bounds[array.offset + len(array)]])


def text_of(column: Any) -> Any:
    """A column as strings, escaped; null stays null."""
    kind = column.type
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        return _escaped(_arrays(column))
    values = _values(column)
    return _escaped(values) if _has_any_text(kind) else values


def _has_any_text(kind: Any) -> bool:
    """Whether values may contain what has to be escaped; numbers and times do not."""
    types = pyarrow.types
    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)
    )


def _values(column: Any) -> Any:
    kind = column.type
    if pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind):
        return _hex(column.cast(pyarrow.binary()))
    if pyarrow.types.is_timestamp(kind) or pyarrow.types.is_date(kind):
        # The task's session has UTC.
        return time_text(column)
    if pyarrow.types.is_float32(kind):
        # All digits of its value: those that identify it among floats are another value as a double.
        column = column.cast(pyarrow.float64())
    return column.cast(pyarrow.string())


def _hex(column: Any) -> Any:
    """``\\x`` and hexadecimal digits: the digits of all values at once. Of a slice only its own, whose bounds have 32
    bits."""
    if not len(column):
        return pyarrow.array([], pyarrow.string())
    _, offsets, data = column.buffers()
    bounds = pyarrow.Array.from_buffers(pyarrow.int32(), len(column) + 1, [None, offsets], offset=column.offset)
    first, last = bounds[0].as_py(), bounds[-1].as_py()
    digits = bytes(memoryview(data or b"")[first:last]).hex().encode()
    doubled = pc.multiply_checked(pc.subtract(bounds, bounds[0]), pyarrow.scalar(2, pyarrow.int32()))
    plain = pyarrow.Array.from_buffers(
        pyarrow.string(), len(column), [None, doubled.buffers()[1], pyarrow.py_buffer(digits)]
    )
    joined = pc.binary_join_element_wise("\\x", plain, "")
    return pc.if_else(column.is_valid(), joined, pyarrow.scalar(None, pyarrow.string()))


def _arrays(column: Any) -> Any:
    """PostgreSQL's literal of an array: ``{"a",NULL,"b"}``."""
    column = column.cast(pyarrow.list_(column.type.value_type))
    flat = _values(column.flatten())
    for special in ("\\", '"'):
        flat = pc.replace_substring(flat, special, "\\" + special)
    flat = pc.binary_join_element_wise('"', flat, '"', "").fill_null("NULL")
    # ``flatten`` has dropped what null arrays may contain.
    lengths = pc.list_value_length(column).fill_null(0)
    bounds = pyarrow.concat_arrays([pyarrow.array([0], pyarrow.int32()), pc.cumulative_sum(lengths)])
    joined = pc.binary_join(pyarrow.ListArray.from_arrays(bounds, flat), ",")
    literal = pc.binary_join_element_wise("{", joined, "}", "")
    return pc.if_else(column.is_valid(), literal, pyarrow.scalar(None, pyarrow.string()))


_ESCAPES: Final[Sequence[tuple[str, str]]] = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))


def _escaped(column: Any) -> Any:
    data = data_of(column)
    for character, escape in _ESCAPES:
        # Most columns have none of these characters. A backslash comes first: the others' escapes have one.
        if character.encode() in data:
            column = pc.replace_substring(column, character, escape)
    return column
