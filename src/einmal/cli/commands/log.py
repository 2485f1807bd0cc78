"""``einmal log``: the files of a partition, read from disk without a broker."""

from __future__ import annotations

import sys
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import typer

from einmal.cli.aliases import WithAliases
from einmal.cli.clients import failures_reported
from einmal.cli.printing.documents import encoded
from einmal.cli.printing.formats import Format, Output
from einmal.cli.printing.output import OutputFailed, printable

log = typer.Typer(cls=WithAliases, help="Files of partitions: dump.", no_args_is_help=True)


@log.callback()
def _group() -> None:
    """Keep the name of the verb: otherwise a group of one command has the name alone."""


@log.command()
def dump(
    file: Annotated[
        Path, typer.Argument(help="A .log, .index, .timeindex, .txnindex or .snapshot file, of any Kafka broker.")
    ],
    output: Output = Format.TEXT,
) -> None:
    """Print the entries of a file of a partition: batches with their records and markers, or an index. Changes nothing.

    JSON has a line for each entry; bytes that are not UTF-8 are {"hex": ...}. A damaged batch ends the list, status 1.
    """
    from einmal.log.disk import OsDisk
    from einmal.log.dump import dump as entries
    from einmal.wire.errors import WireError

    is_damaged = False
    try:
        with failures_reported():
            for entry in entries(OsDisk(), PurePosixPath(file)):
                print(encoded(entry, output, default=_plain) if output.is_document else "\n".join(_lines(entry)))
                is_damaged = is_damaged or bool(entry.get("error"))
    except OutputFailed:
        raise
    except (OSError, ValueError, WireError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        print(f"error: {file} cannot be read: {reason}", file=sys.stderr)
        print("hint: pass a file of a partition's folder, such as 00000000000000000000.log", file=sys.stderr)
        raise typer.Exit(1) from error
    if is_damaged:
        raise typer.Exit(1)


def _plain(value: Any) -> Any:
    """Bytes for JSON: text where they are UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"hex": value.hex()}


def _lines(entry: dict[str, Any]) -> list[str]:
    records = entry.get("records", [])
    head = " ".join(
        f"{name}={_text(value)}" for name, value in entry.items() if name != "records" and value is not None
    )
    return [head, *("  " + " ".join(f"{name}={_text(value)}" for name, value in record.items()) for record in records)]


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    return printable(str(value))
