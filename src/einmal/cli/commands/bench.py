"""``einmal bench``: figures on stdout, beside their targets; messages on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import einmal
from einmal.cli.clients import not_nan, read_properties
from einmal.cli.commands.run import pipeline_failures_reported, quiet_py4j
from einmal.cli.printing.documents import encoded
from einmal.cli.printing.formats import Format, Output
from einmal.compiled import execution
from einmal.extras import install_command
from einmal.local.layout import BROKERS_MAX

if TYPE_CHECKING:
    from einmal.bench.cases import Case, Figure
    from einmal.bench.pipeline_cases import PipelineCases


def bench(
    cases: Annotated[
        list[str] | None,
        typer.Argument(help="Cases to measure. Default: those of brokers. Others: equal, failover, pipeline."),
    ] = None,
    bootstrap_server: Annotated[
        str | None, typer.Option("--bootstrap-server", "-b", help="Measure this cluster instead of fresh brokers.")
    ] = None,
    brokers: Annotated[int, typer.Option(min=1, max=BROKERS_MAX, help="Number of fresh brokers, one cluster.")] = 1,
    tls: Annotated[
        bool, typer.Option("--tls", help="Connect over TLS, to brokers with any certificate; fresh brokers get one.")
    ] = False,
    beside: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT,...",
            help="Measure each case in turn on this cluster too, with no security but --tls, and show the ratio.",
        ),
    ] = None,
    command_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Security settings of the clients, under librdkafka's names: for listeners with TLS."
        ),
    ] = None,
    scale: Annotated[
        float, typer.Option(min=0.01, max=100, callback=not_nan, help="Factor for the length of runs.")
    ] = 1.0,
    properties: Annotated[
        list[str] | None, typer.Option("-X", metavar="KEY=VALUE", help="Setting of the fresh brokers.")
    ] = None,
    connector: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="pipeline: directory with the jars of Spark's own Kafka connector, for comparison."
        ),
    ] = None,
    triggers: Annotated[
        list[str] | None,
        typer.Option(
            "--trigger", metavar="TIME", help="pipeline: price of exactly-once at this trigger, such as '1 second'."
        ),
    ] = None,
    workloads: Annotated[
        list[str] | None,
        typer.Option(
            "--workload",
            metavar="NAME",
            help="pipeline: workload to measure; may be repeated. Names: docs/benchmarks.md. Default: '100 B' and '1 "
            "KB', and the latency.",
        ),
    ] = None,
    java: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="client, price: measure Kafka's Java producer instead, with the jars of Apache Kafka's tools in it.",
        ),
    ] = None,
    master: Annotated[
        str | None, typer.Option("--spark", metavar="MASTER", help="pipeline: Spark's master. Default: this machine.")
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Measure a broker. Figures are printed and never checked: machines differ, so compare within one run."""
    from einmal.bench.cases import CASES, MeasuredBroker
    from einmal.bench.run import run
    from einmal.bench.server import TLS_CLIENTS, FreshBrokers

    given = {
        "-b": bootstrap_server,
        "--brokers": brokers > 1,
        "--tls": tls,
        "--beside": beside,
        "--command-config": command_config,
        "-X": properties,
        "--connector": connector,
        "--trigger": triggers,
        "--workload": workloads,
        "--java": java,
        "--spark": master,
    }
    chosen = _checked(cases, [option for option, value in given.items() if value])
    measured = _pipeline_cases(connector, triggers, workloads, master)
    variants = {} if java is None else _java_cases(java)
    security = TLS_CLIENTS if tls else _security(command_config)
    figures = []
    typer.echo(f"einmal {einmal.__version__} ({execution()})", err=True)
    with _failures_reported():
        for figure in run(
            chosen,
            target=MeasuredBroker(bootstrap_server, security)
            if bootstrap_server
            else FreshBrokers(properties or [], brokers, tls),
            scale=scale,
            pipeline=measured,
            say=lambda text: typer.echo(text, err=True),
            beside=None if beside is None else MeasuredBroker(beside, TLS_CLIENTS if tls else {}),
            cases={**CASES, **variants},
        ):
            figures.append(figure)
            if not output.is_document:
                typer.echo(_line(figure))
    if output.is_document:
        typer.echo(
            encoded(
                {
                    "version": einmal.__version__,
                    "execution": execution(),
                    "figures": [asdict(figure) | {"ratio": figure.ratio} for figure in figures],
                },
                output,
            )
        )


def _checked(cases: list[str] | None, given: list[str]) -> list[str]:
    """The cases to measure. Raises typer.Exit where an option has no effect on them."""
    from einmal.bench.cases import CASES, DEFAULT
    from einmal.cli.bench_options import wrong_usage_of

    chosen = cases or list(DEFAULT)
    if (problem := wrong_usage_of(chosen, CASES, given)) is not None:
        typer.echo(f"error: {problem.error}\nhint: {problem.hint}", err=True)
        raise typer.Exit(2)
    return chosen


def _pipeline_cases(
    connector: Path | None, triggers: list[str] | None, workloads: list[str] | None, master: str | None
) -> PipelineCases:
    from einmal.bench.load import BenchRefused
    from einmal.bench.pipeline_cases import PipelineCases

    try:
        return PipelineCases(connector, tuple(triggers or ()), tuple(workloads or ()), master)
    except BenchRefused as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error


def _java_cases(jars: Path) -> dict[str, Case]:
    from einmal.bench.java import ProducerPerformance
    from einmal.bench.load import BenchRefused
    from einmal.bench.run import CLIENT, PRICE
    from einmal.spark.environment.java import JavaMissing, use_java

    try:
        producer = ProducerPerformance(use_java() / "bin" / "java", jars)
    except (BenchRefused, JavaMissing) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    return {CLIENT: producer.client, PRICE: producer.price}


@contextmanager
def _failures_reported() -> Iterator[None]:
    """As ``pipeline_failures_reported``, and what else a measurement can meet."""
    from einmal.bench.load import BenchRefused
    from einmal.local.processes import BrokerFailed

    quiet_py4j()
    with pipeline_failures_reported(Path("bench")):
        try:
            yield
        except ModuleNotFoundError as error:
            typer.echo(f"error: {error}\nhint: {install_command('bench', 'spark')}", err=True)
            raise typer.Exit(2) from error
        except (BenchRefused, BrokerFailed) as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from error


def _security(command_config: Path | None) -> dict[str, str]:
    """Those of the file's settings that are about security. Raises typer.BadParameter."""
    values = {} if command_config is None else read_properties(command_config)
    return {name: value for name, value in values.items() if name.startswith(("security.", "ssl.", "sasl.", "enable."))}


def _line(figure: Figure) -> str:
    value = _number(figure.value)
    if figure.beside is not None:
        ratio = "" if figure.ratio is None else f"{figure.ratio:8.2f}"
        return f"{figure.name:<52} {value:>12} : {_number(figure.beside):>12} {figure.unit:<21}{ratio}".rstrip()
    budget = ""
    if figure.budget is not None:
        budget = f"   (wanted: {'at most' if figure.at_most else 'at least'} {figure.budget:,.10g} {figure.unit})"
    return f"{figure.name:<52} {value:>12} {figure.unit}{budget}"


def _number(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
