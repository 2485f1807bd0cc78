"""``einmal ingest``: writes the records of a source to topics until it is stopped. Notices on stderr.

Exit status, beside the usual: 3 refused (a restart does not help). Ctrl-C or SIGTERM ends it between two steps, a
second one at once; the next start aborts what it has left open.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from einmal.cli.clients import failures_reported
from einmal.cli.commands.spark_option import spark_session
from einmal.cli.declarations import read_declaration
from einmal.cli.interrupts import stop_on_signals
from einmal.cli.printing.documents import encoded
from einmal.cli.printing.formats import Format
from einmal.cli.printing.output import ServiceOutput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from einmal.commit_protocol.commit_record import CommitRecord
    from einmal.ingest.declaration import IngestDeclaration
    from einmal.ingest.source import SourceNotice

REFUSED: Final = 3


def ingest(
    name: Annotated[str, typer.Argument(help="Ingester: a table [ingest.NAME] of the file.")],
    file: Annotated[Path, typer.Option("--file", "-f", help="File with the declaration.")] = Path("pipeline.toml"),
    available_now: Annotated[
        bool, typer.Option("--available-now", help="End when a look at the source finds nothing new.")
    ] = False,
    spark: Annotated[
        str | None,
        typer.Option(
            "--spark", metavar="MASTER", help="Read and write by tasks on this Spark master; type = table only."
        ),
    ] = None,
    output: Annotated[Format, typer.Option("--format", help="json: one line per transaction on stdout.")] = Format.TEXT,
) -> None:
    """Write files, a table or a database's changes to topics exactly once, with the position beside the records."""
    from einmal.ingest import Ingest, IngestStopped
    from einmal.ingest.machine import recorded_window

    declaration = _declared(file, name)
    lines = ServiceOutput()

    def committed(record: CommitRecord) -> None:
        if output.is_document:
            fields = {"ingest": name, "batch_id": record.batch_id, "records": record.records}
            window = recorded_window(record)
            counts = {} if window is None else {"deduplication": {"batch": window["batch"], "total": window["total"]}}
            lines.print(encoded(fields | counts, output))
        else:
            lines.print(f"{name}: batch {record.batch_id}, {record.records} records")

    def notify(notice: SourceNotice) -> None:
        if output.is_document:
            fields = {"ingest": name, "notice": notice.kind, "subject": notice.subject, "text": notice.text}
            typer.echo(encoded(fields, output), err=True)
        else:
            typer.echo(f"warning: {notice.text}".encode(errors="backslashreplace"), err=True)

    with ExitStack() as stack:
        stack.enter_context(failures_reported())
        session = None if spark is None else stack.enter_context(_session(name, declaration, spark))
        source = declaration.source()
        process = Ingest(
            source,
            declaration.client,
            name=name,
            deduplicate=declaration.deduplicate,
            notify=notify,
            committed=committed,
        )
        stop_on_signals(process.stop.set)
        try:
            process.run(available_now=available_now, spark=session)
        except IngestStopped as error:
            typer.echo(f"error: {error}".encode(errors="backslashreplace"), err=True)
            raise typer.Exit(REFUSED) from error
        finally:
            source.close()


@contextmanager
def _session(name: str, declaration: IngestDeclaration, master: str) -> Iterator[SparkSession]:
    """Refuses what needs no session to be refused."""
    if declaration.kind != "table" or declaration.deduplicate is not None:
        reason = (
            f"{name} removes duplicates, by keys that one process knows"
            if declaration.deduplicate is not None
            else f"{name} has type = {declaration.kind!r}, which is read in order, by one process"
        )
        typer.echo(f"error: {reason}\nhint: ingest it without --spark", err=True)
        raise typer.Exit(REFUSED)
    with spark_session(f"einmal ingest {name}", name, master) as spark:
        yield spark


def _declared(file: Path, name: str) -> IngestDeclaration:
    from einmal.ingest.declaration import declared

    return read_declaration(file, partial(declared, only=name))[name]
