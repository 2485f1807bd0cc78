"""Text in rows of Arrow that is not UTF-8: Spark's cast from bytes does not check it, and many readers stop at it."""

from __future__ import annotations

from typing import Any, Final

HINT: Final = (
    "keep it as bytes, or replace it: try_validate_utf8(...) makes it NULL, make_valid_utf8(...) replaces characters"
)


class NotText(ValueError):
    """A row has text that is not UTF-8: another attempt would fail, too."""


def check_text(rows: Any) -> None:
    """Raises NotText, without the text."""
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if not _is_valid(column):
            raise NotText(f'column "{name}" has text that is not UTF-8\nhint: {HINT}')


def rows_without_text(rows: Any) -> dict[int, str]:
    """The numbers of rows with text that is not UTF-8, and the column that has it."""
    import pyarrow

    columns: dict[int, str] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if not _is_valid(column):
            # ``take`` copies: the values of a slice of a nested array are those of all rows.
            bad = (at for at in range(len(column)) if not _is_valid(column.take(pyarrow.array([at], pyarrow.int64()))))
            columns = dict.fromkeys(bad, name) | columns
    return columns


def _is_valid(column: Any) -> bool:
    import pyarrow

    if not _has_text(column.type):
        return True
    try:
        column.validate(full=True)
    except pyarrow.ArrowInvalid:
        return False
    return True


def _has_text(kind: Any) -> bool:
    from pyarrow import types

    if types.is_nested(kind):
        return any(_has_text(kind.field(at).type) for at in range(kind.num_fields))
    return bool(types.is_string(kind) or types.is_large_string(kind))
