"""Rows of results on stdout: an aligned table for people, one JSON document for programs.

The columns are the same: ``topic-id`` in a table's head is ``topic_id`` in JSON.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TextIO

from einmal.cli.printing.documents import encoded
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


class OutputFailed(OSError):
    """The output of a command cannot be written: the disk is full, not: nobody reads it any more (BrokenPipeError)."""


@contextmanager
def output_failures() -> Iterator[None]:
    """Names the failures of writing in this block as what they are. Raises OutputFailed, BrokenPipeError."""
    try:
        yield
    except (BrokenPipeError, OutputFailed):
        raise
    except OSError as error:
        raise OutputFailed(error.errno, error.strerror) from error


def discard_output() -> None:
    """Let the rest of the output go nowhere: otherwise the interpreter complains at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
        """Raises OutputFailed, BrokenPipeError."""
        with output_failures():
            return super().write(_COMMANDS.sub(_escaped, text))

    def flush(self) -> None:
        """Raises OutputFailed, BrokenPipeError."""
        with output_failures():
            super().flush()


class ServiceOutput:
    """Lines on stdout of a command whose work does not end where nobody can read them any more.

    ``failure``: why they cannot be written, where that is not that their reader has ended.
    """

    def __init__(self) -> None:
        self.failure: OutputFailed | None = None
        self._is_open = True

    def print(self, line: str, *, flush: bool = True) -> None:
        if not self._is_open:
            return
        try:
            print(line, flush=flush)
        except (BrokenPipeError, OutputFailed) as error:
            self.close(error)

    def flush(self) -> None:
        if self._is_open:
            try:
                sys.stdout.flush()
            except (BrokenPipeError, OutputFailed) as error:
                self.close(error)

    def close(self, error: OSError) -> None:
        """Print no more lines, and one warning."""
        self._is_open = False
        self.failure = error if isinstance(error, OutputFailed) else None
        discard_output()
        reason = "nobody reads stdout any more" if self.failure is None else f"stdout: {error.strerror}"
        print(f"warning: {reason}; the work continues, and prints nothing there", file=sys.stderr)


def print_rows(rows: Sequence[Row], columns: Sequence[str], output: Format) -> None:
    """``columns``: keys of the rows, in order."""
    if output.is_document:
        print(encoded([{name: row[name] for name in columns} for row in rows], output))
    else:
        print("\n".join(table(rows, columns)))


def table(rows: Sequence[Row], columns: Sequence[str]) -> list[str]:
    """The lines of an aligned table, its head first."""
    heads = [name.upper().replace("_", "-") for name in columns]
    cells = [heads, *([_text(row[name]) for name in columns] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(columns))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]


Section = tuple[Sequence[Row] | None, Sequence[str]]
"""Rows and their columns; None instead of rows that are not known."""


def print_sections(sections: Mapping[str, Section], output: Format) -> None:
    """Several tables, each under its name; in JSON one object of lists."""
    if output.is_document:
        document = {
            name: None if rows is None else [{column: row[column] for column in columns} for row in rows]
            for name, (rows, columns) in sections.items()
        }
        print(encoded(document, output))
        return
    for number, (name, (rows, columns)) in enumerate(sections.items()):
        print(f"{'' if number == 0 else chr(10)}{name.upper()}")
        if rows is None:
            print("not known")
        else:
            print_rows(rows, columns, output)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(_text(member) for member in value) or "-"
    return printable(str(value)) if value != "" else "-"
