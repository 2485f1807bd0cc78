"""The command ``einmal``: its subcommands, their options, and nothing else.

A subcommand imports what it needs when it runs: ``einmal --help`` must not wait for a broker's modules.
Exit status: 0 done, 1 failed (with ``error:`` and ``hint:`` on stderr), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated

import typer

import einmal
from einmal.cli.acl import acl
from einmal.cli.bench import bench
from einmal.cli.cluster import cluster
from einmal.cli.demo import demo
from einmal.cli.dlq import dlq
from einmal.cli.explain import explain
from einmal.cli.formats import Format, LogFormat
from einmal.cli.group import group
from einmal.cli.ingest import ingest
from einmal.cli.log import log
from einmal.cli.mirror import mirror
from einmal.cli.output import TerminalText
from einmal.cli.pipeline import pipeline
from einmal.cli.quota import quota
from einmal.cli.run import run
from einmal.cli.simulate import simulate
from einmal.cli.topic import topic
from einmal.cli.trace import trace
from einmal.cli.txn import txn
from einmal.cli.user import user
from einmal.cli.verify import verify
from einmal.compiled import execution
from einmal.extras import missing

app = typer.Typer(
    name="einmal",
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
    from einmal.cli import start as command

    raise typer.Exit(
        command.run(
            port=port,
            host=host,
            data_dir=data_dir,
            assignments=settings or [],
            config_file=config,
            as_json=output is Format.JSON,
            brokers=brokers,
            stops_with_stdin=stop_with_stdin,
            log_format=log_format,
        )
    )


app.command()(run)
app.command()(ingest)
app.command()(explain)
app.command()(trace)
app.command()(demo)
app.command()(bench)
app.command()(simulate)
app.command()(verify)
app.add_typer(mirror, name="mirror")
app.add_typer(pipeline, name="pipeline")
app.add_typer(dlq, name="dlq")
app.add_typer(topic, name="topic")
app.add_typer(group, name="group")
app.add_typer(cluster, name="cluster")
app.add_typer(log, name="log")
app.add_typer(quota, name="quota")
app.add_typer(txn, name="txn")
app.add_typer(acl, name="acl")
app.add_typer(user, name="user")


def main() -> None:
    # A terminal or a pipe that is not UTF-8 gets escapes instead of ending the command; so do names that are not, and
    # names that would command a terminal.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = TerminalText(sys.stdout)
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = TerminalText(sys.stderr)
    try:
        app()
    except ModuleNotFoundError as error:
        if (text := missing(error)) is None:
            raise
        print(f"error: {text}", file=sys.stderr)
        sys.exit(1)
