"""``einmal demo``: progress on stderr, the result on stdout."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from einmal.cli.declarations import why_unreadable
from einmal.cli.printing.documents import encoded
from einmal.cli.printing.formats import Format
from einmal.cli.printing.messages import is_quiet
from einmal.cli.printing.output import undisguised
from einmal.extras import install_command

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from einmal.demo.report import Report
    from einmal.demo.timeline import Moment


def demo(
    inputs: Annotated[
        list[Path] | None,
        typer.Option("--input", help="Text to count: files or directories. Default: real text found on this machine."),
    ] = None,
    output: Annotated[Path, typer.Option(help="Directory of the report and all working files.")] = Path("build/demo"),
    output_format: Annotated[Format, typer.Option("--format", help="Format of the result.")] = Format.TEXT,
) -> None:
    """Send real text through three brokers and a Spark pipeline, kill them on the way, and compare the result.

    Exit status: 0 only if the verdict is "exactly-once"; 1 if it is not; 2 if the demo could not run.
    """
    _check_spark()
    from rich.console import Console

    from einmal.client.errors import KafkaError
    from einmal.demo import report as reports
    from einmal.demo.driver import DriverFailed
    from einmal.demo.run import Demo
    from einmal.demo.text import NoInput, read_lines
    from einmal.demo.versions import spark_versions
    from einmal.evidence.environment import run_environment
    from einmal.local.processes import BrokerFailed

    talk = Console(file=undisguised(sys.stderr), quiet=is_quiet())
    try:
        source, lines = read_lines(inputs or [])
    except (NoInput, OSError) as error:
        problem = str(error)
        if isinstance(error, OSError):
            problem = f"{error.filename} cannot be read: {why_unreadable(error)}"
        raise _failed(problem, "pass files or folders of text with --input, or nothing") from error
    try:
        with _Progress(talk) as stage:
            environment = run_environment(sys.argv[1:], spark_versions())
            report, timeline = Demo(output, source, lines, stage, environment).run()
    except (OSError, BrokerFailed, DriverFailed, KafkaError) as error:
        raise _failed(str(error), f"the logs of its processes are in {output}") from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    as_json, page = reports.write(output, report, timeline)
    if output_format.is_document:
        typer.echo(encoded(report.fields(), output_format))
    else:
        _print_result(report, timeline.drawn())
    talk.print(f"report: {page} and {as_json}", highlight=False)
    raise typer.Exit(0 if report.verdict == reports.EXACTLY_ONCE else 1)


def _check_spark() -> None:
    """Before anything is started. Raises typer.Exit."""
    missing = [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]
    if missing:
        raise _failed(f"the demo needs Spark: {' and '.join(missing)} cannot be found", install_command("spark"))
    from einmal.spark.environment.java import JavaMissing, use_java

    try:
        use_java()
    except JavaMissing as error:
        what, _, hint = str(error).partition(". hint: ")
        raise _failed(what, hint) from error


def _failed(what: str, hint: str) -> typer.Exit:
    print(f"error: {what}\nhint: {hint}", file=sys.stderr)
    return typer.Exit(2)


class _Progress:
    """The demo's stages as progress bars; plain lines where stderr is no terminal."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = console
        self._progress = Progress(
            TextColumn("{task.description:<58}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}
        self._said = ""

    def __enter__(self) -> _Progress:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, name: str, text: str, total: int | None) -> None:
        self._tasks[name] = self._progress.add_task(text, total=total)
        self._say(text)

    def advance(self, name: str, done: int, text: str | None = None) -> None:
        task = self._tasks[name]
        self._progress.update(task, completed=done, description=text)
        if text:
            self._say(text)

    def _say(self, text: str) -> None:
        if not self._console.is_terminal and text != self._said:
            self._said = text
            self._console.print(text, highlight=False)


def _print_result(report: Report, moments: list[Moment]) -> None:
    from rich.console import Console
    from rich.table import Table

    from einmal.demo.report import EXACTLY_ONCE, rows

    console = Console(file=undisguised(sys.stdout))
    for moment in moments:
        console.print(f"{moment.seconds:6.1f} s  {moment.kind:<11} {moment.text}", highlight=False, soft_wrap=True)
    table = Table("", "expected", "seen", "lost", "repeated")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows(report):
        table.add_row(*row)
    console.print(table)
    colour = "green" if report.verdict == EXACTLY_ONCE else "red"
    console.print(
        f"verdict: [{colour}]{report.verdict}[/{colour}]  ({report.seconds:.0f} s, {len(report.killed)} kills)"
    )
