"""The columns of a row in Spark's DDL, such as ``id BIGINT NOT NULL, price DECIMAL(10,2)``. Pure.

A flat list of scalar types: what a table of a database has, and no more. It is read without Spark, so that a file can
be checked before anything starts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from einmal.schemas.errors import SchemaError

TYPES: Final = (
    "boolean",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "decimal",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
)
_ALIASES: Final = {"short": "smallint", "integer": "int", "long": "bigint", "real": "float", "numeric": "decimal",
                   "dec": "decimal", "timestamp_ltz": "timestamp"}  # fmt: skip
_COLUMN: Final = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>[^\W\d]\w*))\s+(?P<type>[A-Za-z_]+)"
    r"(?:\s*\(\s*(?P<precision>\d{1,3})\s*(?:,\s*(?P<scale>\d{1,3})\s*)?\))?(?P<required>\s+NOT\s+NULL)?\s*(?:,|$)",
    re.IGNORECASE,
)
_COLUMNS_MAX: Final = 1_600
"""Maximum number of columns of a table of PostgreSQL."""
_PRECISION_MAX: Final = 38


@dataclass(frozen=True, slots=True)
class DdlColumn:
    """``type``: one of ``TYPES``. ``precision``, ``scale``: of a decimal. ``is_required``: NOT NULL."""

    name: str
    type: str
    precision: int
    scale: int
    is_required: bool


def parsed_columns(text: str) -> list[DdlColumn]:
    """In order. Raises SchemaError."""
    columns: list[DdlColumn] = []
    position, text = 0, text.strip()
    # Behind a last comma there has to be one more column.
    while position < len(text) or not columns or text.endswith(","):
        column = _COLUMN.match(text, position)
        if column is None:
            near = text[position : position + 40]
            raise SchemaError(f"no column of Spark's DDL at {near!r}", "id BIGINT NOT NULL, price DECIMAL(10,2), ...")
        if len(columns) == _COLUMNS_MAX:
            raise SchemaError(f"more than {_COLUMNS_MAX:,} columns")
        columns.append(_column(column))
        position = column.end()
    names = [column.name.lower() for column in columns]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise SchemaError(f"two columns are named {repeated!r}, but for case")
    return columns


def _column(match: re.Match[str]) -> DdlColumn:
    name = match["plain"] or match["quoted"].replace("``", "`")
    kind = match["type"].lower()
    kind = _ALIASES.get(kind, kind)
    if kind not in TYPES:
        raise SchemaError(f"column {name!r} has type {match['type']!r}", f"one of {', '.join(TYPES)}".upper())
    if match["precision"] is not None and kind != "decimal":
        raise SchemaError(f"column {name!r}: {kind} has no length", "lengths are checked by the table that is written")
    # Spark's defaults.
    precision, scale = int(match["precision"] or 10), int(match["scale"] or 0)
    if kind == "decimal" and not (0 < precision <= _PRECISION_MAX and scale <= precision):
        raise SchemaError(f"column {name!r}: decimal({precision},{scale}) is no decimal of Spark's")
    return DdlColumn(name, kind, precision, scale, match["required"] is not None)
