"""The command ``einmal``: its subcommands, their options, and nothing else.

A command's module is imported when the command is looked up, and imports what it needs when it runs: ``einmal start``
must not wait for the modules of other commands, nor ``einmal --help`` for a broker's.
Exit status: 0 done, 1 failed (with ``error:`` and ``hint:`` on stderr), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import io
import os
import sys
from collections import UserDict
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

import einmal
from einmal.cli.common_options import with_common_options
from einmal.cli.printing.formats import Format, LogFormat
from einmal.cli.printing.output import OutputFailed, TerminalText, discard_output
from einmal.compiled import execution
from einmal.extras import missing

if TYPE_CHECKING:
    # Typer has its own copy of click.
    from typer._click.core import Command, Context

    # For whoever follows imports, such as import-linter and tools/changed_tests.py: ``_Later`` does the same.
    from einmal.cli.commands.acl import acl as acl
    from einmal.cli.commands.bench import bench as bench
    from einmal.cli.commands.chaos import chaos as chaos
    from einmal.cli.commands.cluster import cluster as cluster
    from einmal.cli.commands.demo import demo as demo
    from einmal.cli.commands.dlq import dlq as dlq
    from einmal.cli.commands.explain import explain as explain
    from einmal.cli.commands.group import group as group
    from einmal.cli.commands.ingest import ingest as ingest
    from einmal.cli.commands.log import log as log
    from einmal.cli.commands.mirror import mirror as mirror
    from einmal.cli.commands.pipeline import pipeline as pipeline
    from einmal.cli.commands.profile import profile as profile
    from einmal.cli.commands.quota import quota as quota
    from einmal.cli.commands.run import run as run
    from einmal.cli.commands.simulate import simulate as simulate
    from einmal.cli.commands.top import top as top
    from einmal.cli.commands.topic import topic as topic
    from einmal.cli.commands.trace import trace as trace
    from einmal.cli.commands.txn import txn as txn
    from einmal.cli.commands.user import user as user
    from einmal.cli.commands.verify import verify as verify

_LATER: Final = (
    "run",
    "ingest",
    "explain",
    "trace",
    "demo",
    "bench",
    "simulate",
    "verify",
    "chaos",
    "top",
    "mirror",
    "pipeline",
    "dlq",
    "topic",
    "group",
    "cluster",
    "log",
    "profile",
    "quota",
    "txn",
    "acl",
    "user",
)
"""Commands and groups of commands, in the order of ``--help``. Each is in a module of its name, under its name."""


class _Later(TyperCommand):
    """A command or a group whose module is not imported yet."""

    def imported(self) -> Command:
        """Import what this one stands for."""
        name = str(self.name)
        command = getattr(import_module(f"einmal.cli.commands.{name}"), name)
        parent = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
        if isinstance(command, typer.Typer):
            parent.add_typer(command, name=name)
        else:
            parent.command(name)(command)
        return with_common_options(get_group(parent).commands[name])


class _Commands(UserDict[str, "Command"]):
    """Commands by name, each imported when it is looked up."""

    def __getitem__(self, key: str) -> Command:
        command = self.data[key]
        if isinstance(command, _Later):
            command = self.data[key] = command.imported()
        return command


class _Program(TyperGroup):
    """The commands in this module, and those of ``_LATER``."""

    def __init__(self, *, commands: Mapping[str, Command], **attributes: Any) -> None:
        later: dict[str, Command] = {name: _Later(name) for name in _LATER}
        now = {name: with_common_options(command) for name, command in commands.items()}
        super().__init__(commands={**now, **later}, **attributes)
        self.commands = _Commands(self.commands)

    def list_commands(self, ctx: Context) -> list[str]:
        """Name the commands, and import none."""
        return list(self.commands)


app = typer.Typer(
    name="einmal",
    cls=_Program,
    help="A Kafka-compatible log with exactly-once transactions, and an exactly-once pipeline on Apache Spark.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"einmal {einmal.__version__} ({execution()})")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def start(
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port to listen on; 0 selects a free one. Default: 9092.")
    ] = None,
    any_port: Annotated[bool, typer.Option("--any-port", help="Listen on a free port, as with --port 0.")] = False,
    host: Annotated[str | None, typer.Option(help="Address to listen on. Default: 127.0.0.1.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Directory of all data. Default: the user's data directory.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("-X", metavar="KEY=VALUE", help="Broker setting, under Kafka's name; above those of $KAFKA_*."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="server.properties file, or the same keys in TOML (*.toml).")
    ] = None,
    brokers: Annotated[
        int, typer.Option("-n", "--brokers", min=1, max=9, help="Number of broker processes. Ports are 1,000 apart.")
    ] = 1,
    stop_with_stdin: Annotated[bool, typer.Option("--stop-with-stdin", hidden=True)] = False,
    output: Annotated[Format, typer.Option("--format", help="Format of the broker's address.")] = Format.TEXT,
    log_format: Annotated[
        LogFormat | None, typer.Option(help="Format of log lines on stderr. Default: text on a terminal, else json.")
    ] = None,
) -> None:
    """Start a broker, or a cluster, in the foreground. Ctrl-C stops it cleanly, a second Ctrl-C at once."""
    from einmal.cli.start import run as command

    if any_port and port:
        raise typer.BadParameter("--any-port is --port 0: give one of them")
    raise typer.Exit(
        command.run(
            port=0 if any_port else port,
            host=host,
            data_dir=data_dir,
            assignments=settings or [],
            config_file=config,
            output=output,
            brokers=brokers,
            stops_with_stdin=stop_with_stdin,
            log_format=log_format,
        )
    )


def _open_closed_streams() -> None:
    """Make the null device of each standard stream that was closed by whoever has started the program.

    Its number would be that of the next socket or file, into which messages would then be written.
    """
    streams = (("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_WRONLY), ("stderr", "w", os.O_WRONLY))
    for number, (name, mode, flags) in enumerate(streams):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is taken; a child process has it, too.
            opened = os.open(os.devnull, flags)
            os.set_inheritable(opened, True)
            setattr(sys, name, os.fdopen(opened, mode, encoding="utf-8", closefd=False))


def _flush_stdout() -> None:
    """At the interpreter's own end a failure would be a traceback. Raises OutputFailed."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read it has seen enough.
        discard_output()


def main() -> None:
    _open_closed_streams()
    # A terminal or a pipe that is not UTF-8 gets escapes instead of ending the command; so do names that are not, and
    # names that would command a terminal.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = TerminalText(sys.stdout)
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = TerminalText(sys.stderr)
    try:
        try:
            app()
        finally:
            _flush_stdout()
    except KeyboardInterrupt:
        # While stdout is flushed, to whoever does not read it: another try would wait, too.
        discard_output()
        sys.exit(130)
    except ModuleNotFoundError as error:
        if (text := missing(error)) is None:
            raise
        print(f"error: {text}", file=sys.stderr)
        sys.exit(1)
    except OutputFailed as error:
        discard_output()
        print(f"error: stdout cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(1)
