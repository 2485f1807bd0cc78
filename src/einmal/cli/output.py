"""Rows of results on stdout: an aligned table for people, one JSON document for programs.

The columns are the same: ``topic-id`` in a table's head is ``topic_id`` in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from einmal.cli.formats import Format

Row = Mapping[str, Any]


def print_rows(rows: Sequence[Row], columns: Sequence[str], output: Format) -> None:
    """``columns``: keys of the rows, in order."""
    if output is Format.JSON:
        print(json.dumps([{name: row[name] for name in columns} for row in rows]))
        return
    heads = [name.upper().replace("_", "-") for name in columns]
    cells = [heads, *([_text(row[name]) for name in columns] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(columns))]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def print_sections(sections: Mapping[str, tuple[Sequence[Row], Sequence[str]]], output: Format) -> None:
    """Several tables, each under its name; in JSON one object of lists."""
    if output is Format.JSON:
        document = {
            name: [{column: row[column] for column in columns} for row in rows]
            for name, (rows, columns) in sections.items()
        }
        print(json.dumps(document))
        return
    for number, (name, (rows, columns)) in enumerate(sections.items()):
        print(f"{'' if number == 0 else chr(10)}{name.upper()}")
        print_rows(rows, columns, output)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(_text(each) for each in value) or "-"
    return str(value) if value != "" else "-"
