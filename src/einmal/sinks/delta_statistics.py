"""The statistics of a data file that Delta's log has, by which readers skip files: number of rows, and for the first
columns their bounds and numbers of NULLs (Delta transaction log protocol, "Per-file Statistics").

They come from the file's own footer, so nobody reads its rows again. What the footer lacks is left out, which only
means that no reader skips the file: bounds of bytes, of columns with a NaN, an infinity or a time that JSON has no text
for, numbers of NULLs of arrays and maps. What is rounded is rounded away from the values: text is cut, times have
milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from einmal.sinks.staged_files import columns_with_nan

COLUMNS_SETTING: Final = "delta.dataSkippingNumIndexedCols"
"""Setting of a table: how many columns have statistics, -1 for all. Fields of structs count, structs do not."""
COLUMNS_DEFAULT: Final = 32
_TEXT_MAX: Final = 32
"""Characters of a bound, as in other writers."""
_LAST_CHARACTER: Final = "\U0010ffff"
_EPOCH: Final = datetime(1970, 1, 1)

Names = tuple[str, ...]
"""Names of a column: those of the structs that it is in come first."""
Bound = Callable[[Any, bool], str | None]
"""A bound as JSON, of the footer's value; ``True``: the upper one. None: JSON has no text for it."""


def statistics(path: Path, count: int, columns: int = COLUMNS_DEFAULT) -> str:
    """Return the statistics of a Parquet file with ``count`` rows, as JSON. Raises OSError, pyarrow.ArrowException."""
    from pyarrow import parquet, types

    lower: dict[Names, str] = {}
    upper: dict[Names, str] = {}
    nulls: dict[Names, str] = {}
    with parquet.ParquetFile(path) as file:
        footer, unbounded = file.metadata, columns_with_nan(file.metadata)
        for number, (names, kind, leaf) in enumerate(_columns(file.schema_arrow, (), 0)):
            if 0 <= columns <= number:
                break
            if types.is_nested(kind):
                continue
            groups = [footer.row_group(index).column(leaf).statistics for index in range(footer.num_row_groups)]
            if not all(group is not None and group.has_null_count for group in groups):
                continue
            nulls[names] = str(sum(group.null_count for group in groups))
            with_values = [group for group in groups if group.num_values]
            if not with_values or not all(statistics.has_min_max for statistics in with_values) or names in unbounded:
                continue
            bound = _bound(kind)
            is_decimal = types.is_decimal(kind)
            least = min(statistics.min if is_decimal else statistics.min_raw for statistics in with_values)
            most = max(statistics.max if is_decimal else statistics.max_raw for statistics in with_values)
            for bounds, value, is_upper in ((lower, least, False), (upper, most, True)):
                if (text := bound(value, is_upper)) is not None:
                    bounds[names] = text
    members = {"minValues": lower, "maxValues": upper, "nullCount": nulls}
    return _object({"numRecords": str(count)} | {name: _nested(leaves) for name, leaves in members.items()})


def _columns(fields: Any, above: Names, leaf: int) -> Iterator[tuple[Names, Any, int]]:
    """Name, type and first number in the footer of each column that is no struct, depth first."""
    from pyarrow import types

    for field in fields:
        names = (*above, field.name)
        if types.is_struct(field.type):
            yield from _columns(field.type, names, leaf)
        else:
            yield names, field.type, leaf
        leaf += _width(field.type)


def _width(kind: Any) -> int:
    """Columns in the footer of a type."""
    from pyarrow import types

    if types.is_map(kind):
        return _width(kind.key_type) + _width(kind.item_type)
    return sum(_width(kind.field(at).type) for at in range(kind.num_fields)) if types.is_nested(kind) else 1


def _bound(kind: Any) -> Bound:
    from pyarrow import types

    if types.is_boolean(kind) or types.is_integer(kind):
        return lambda value, _: json.dumps(value)
    if types.is_floating(kind):
        return lambda value, _: json.dumps(value) if abs(value) < float("inf") else None
    if types.is_decimal(kind):
        # Not as a double, which has fewer digits.
        return lambda value, _: f"{value:f}"
    if types.is_string(kind):
        return lambda value, is_upper: json.dumps(_cut(value.decode(), is_upper=is_upper))
    if types.is_date32(kind):
        return lambda value, _: _time(value * 86_400_000, "", is_date=True)
    if types.is_timestamp(kind) and kind.unit == "us":
        zone = "" if kind.tz is None else "Z"
        return lambda value, is_upper: _time(-(-value // 1000) if is_upper else value // 1000, zone)
    return lambda _, __: None


def _cut(value: str, *, is_upper: bool) -> str:
    if not is_upper or len(value) <= _TEXT_MAX:
        return value[:_TEXT_MAX]
    rest = value[_TEXT_MAX:].lstrip(_LAST_CHARACTER)
    # A greater text would have to be after the last character of all.
    return value[: len(value) - len(rest)] + _LAST_CHARACTER if rest else value


def _time(milliseconds: int, zone: str, *, is_date: bool = False) -> str | None:
    try:
        time = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
    return json.dumps(time.date().isoformat() if is_date else time.isoformat(timespec="milliseconds") + zone)


def _nested(leaves: Mapping[Names, str]) -> str:
    """Values of columns, as an object of objects."""
    by_name: dict[str, dict[Names, str]] = {}
    for names, value in leaves.items():
        by_name.setdefault(names[0], {})[names[1:]] = value
    return _object({name: inner[()] if () in inner else _nested(inner) for name, inner in by_name.items()})


def _object(members: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in members.items()) + "}"
