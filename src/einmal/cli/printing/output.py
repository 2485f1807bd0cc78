"""Rows of results on stdout: an aligned table for people, one JSON document for programs.

The columns are the same: ``topic-id`` in a table's head is ``topic_id`` in JSON.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TextIO

from einmal.cli.printing.formats import Format

Row = Mapping[str, Any]

_CONTROL: Final = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
"""Characters that command a terminal, break a line or reverse its order, but a tab and a line feed."""
_COMMANDS: Final = re.compile(f"[{_CONTROL}]")
_NO_CELL: Final = re.compile(f"[{_CONTROL}\t\n]")


def printable(text: str) -> str:
    """A foreign text on one line, such as a name: characters that would do something to a terminal as escapes."""
    return _NO_CELL.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    number = ord(match[0])
    # As JSON has them where JSON lets them pass.
    return f"\\x{number:02x}" if number < 0x7F else f"\\u{number:04x}"


def undisguised(stream: TextIO) -> TextIO:
    """The stream below ``TerminalText``, for a library that draws on a terminal."""
    return stream.original if isinstance(stream, TerminalText) else stream


class TerminalText(io.TextIOWrapper):
    """A standard stream whose text does nothing to a terminal but fill its lines, wherever the text comes from.

    Bytes of records go to its ``buffer``. What cannot be encoded becomes an escape.
    """

    def __init__(self, original: io.TextIOWrapper) -> None:
        super().__init__(
            original.buffer,
            original.encoding,
            "backslashreplace",
            line_buffering=original.line_buffering,
            # With PYTHONUNBUFFERED it is this that lets each text through at once.
            write_through=original.write_through,
        )
        self.original = original
        """The reference keeps the file open, too."""

    def write(self, text: str, /) -> int:
        return super().write(_COMMANDS.sub(_escaped, text))


def print_rows(rows: Sequence[Row], columns: Sequence[str], output: Format) -> None:
    """``columns``: keys of the rows, in order."""
    if output is Format.JSON:
        print(json.dumps([{name: row[name] for name in columns} for row in rows]))
    else:
        print("\n".join(table(rows, columns)))


def table(rows: Sequence[Row], columns: Sequence[str]) -> list[str]:
    """The lines of an aligned table, its head first."""
    heads = [name.upper().replace("_", "-") for name in columns]
    cells = [heads, *([_text(row[name]) for name in columns] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(columns))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]


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
        return ",".join(_text(member) for member in value) or "-"
    return printable(str(value)) if value != "" else "-"
