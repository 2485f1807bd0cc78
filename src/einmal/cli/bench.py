"""``einmal bench``: figures on stdout, beside their targets; messages on stderr."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from einmal.cli.formats import Format, Output
from einmal.security.properties import parse_properties

if TYPE_CHECKING:
    from einmal.bench.cases import Figure


def bench(
    cases: Annotated[
        list[str] | None,
        typer.Argument(help="Cases to measure. Default: all of one broker. Others: failover, pipeline."),
    ] = None,
    bootstrap_server: Annotated[
        str | None, typer.Option("--bootstrap-server", "-b", help="Measure this cluster instead of a fresh broker.")
    ] = None,
    beside: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Measure each case in turn on this broker too, without security, and show the ratio.",
        ),
    ] = None,
    command_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Security settings of the clients, under librdkafka's names: for listeners with TLS."
        ),
    ] = None,
    scale: Annotated[float, typer.Option(min=0.01, max=100, help="Factor for the length of runs.")] = 1.0,
    properties: Annotated[
        list[str] | None, typer.Option("-X", metavar="KEY=VALUE", help="Setting of the fresh broker.")
    ] = None,
    connector: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="pipeline: directory with the jars of Spark's own Kafka connector, for comparison."
        ),
    ] = None,
    triggers: Annotated[
        list[str] | None,
        typer.Option("--trigger", metavar="TIME", help="pipeline: measure the price of exactly-once at this trigger."),
    ] = None,
    workloads: Annotated[
        list[str] | None,
        typer.Option(
            "--workload",
            metavar="NAME",
            help="pipeline: measure this one, as '10 KB', '100 B, 1 partition', '100 B, windowed count'. A name that "
            "does not exist lists all.",
        ),
    ] = None,
    master: Annotated[
        str | None, typer.Option("--spark", metavar="MASTER", help="pipeline: on this Spark cluster.")
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Measure a broker. Figures are printed and never checked: machines differ, so compare within one run."""
    from einmal.bench.cases import CASES, MeasuredBroker
    from einmal.bench.load import BenchRefused
    from einmal.bench.pipeline_cases import PipelineCases
    from einmal.bench.run import FAILOVER, PIPELINE, run
    from einmal.bench.server import BrokerDidNotStart
    from einmal.client.errors import ConfigError
    from einmal.local.processes import BrokerFailed
    from einmal.spark.errors import PipelineError

    chosen = cases or list(CASES)
    if chosen not in ([FAILOVER], [PIPELINE]) and (unknown := [name for name in chosen if name not in CASES]):
        known = f"there are {', '.join(CASES)}; and {FAILOVER} and {PIPELINE}, which run alone"
        typer.echo(f"error: no case {', '.join(unknown)}\nhint: {known}", err=True)
        raise typer.Exit(2)
    if beside is not None and chosen in ([FAILOVER], [PIPELINE]):
        typer.echo("error: --beside HOST:PORT is for the cases of one broker", err=True)
        raise typer.Exit(2)
    figures = []
    try:
        for figure in run(
            chosen,
            target=MeasuredBroker(bootstrap_server or "", _security(command_config)),
            scale=scale,
            properties=properties or [],
            pipeline=PipelineCases(connector, tuple(triggers or ()), tuple(workloads or ()), master),
            say=lambda text: typer.echo(text, err=True),
            beside=None if beside is None else MeasuredBroker(beside),
        ):
            figures.append(figure)
            if output is Format.TEXT:
                typer.echo(_line(figure))
    except ImportError as error:
        typer.echo(f"error: {error}\nhint: pip install 'einmal[bench,spark]'", err=True)
        raise typer.Exit(2) from error
    except (BenchRefused, BrokerDidNotStart, BrokerFailed, ConfigError, PipelineError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    if output is Format.JSON:
        typer.echo(json.dumps({"figures": [asdict(figure) for figure in figures]}))


def _security(command_config: Path | None) -> dict[str, str]:
    """What the file sets of it. Raises OSError."""
    values = {} if command_config is None else parse_properties(command_config.read_text())
    return {name: value for name, value in values.items() if name.startswith(("security.", "ssl.", "sasl.", "enable."))}


def _line(figure: Figure) -> str:
    value = _number(figure.value)
    if figure.beside is not None:
        # Percentages can be below zero: their ratio has no meaning.
        ratio = f"{figure.value / figure.beside:8.2f}" if figure.unit != "%" and figure.beside else ""
        return f"{figure.name:<52} {value:>12} : {_number(figure.beside):>12} {figure.unit:<10}{ratio}".rstrip()
    budget = ""
    if figure.budget is not None:
        budget = f"   (wanted: {'at most' if figure.at_most else 'at least'} {figure.budget:,.10g} {figure.unit})"
    return f"{figure.name:<52} {value:>12} {figure.unit}{budget}"


def _number(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
