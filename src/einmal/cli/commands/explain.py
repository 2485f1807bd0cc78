"""``einmal explain``: which guarantee holds on each hop of a pipeline, why, and where it does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from einmal.cli.clients import key_and_value
from einmal.cli.commands.run import Confs, Master, Overrides, named_session, new_session, pipeline_failures_reported
from einmal.cli.printing.documents import encoded
from einmal.cli.printing.formats import Format, Output
from einmal.cli.printing.hops import LEGEND, print_hops

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MASTER: Final = "local[1]"


def explain(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="PIPELINE...",
            help="pipeline.toml, Python program or spark-pipeline.yml; several files are a chain.",
        ),
    ],
    master: Master = None,
    confs: Confs = None,
    settings: Overrides = None,
    graph: Annotated[
        Path | None, typer.Option("--graph", metavar="FILE", help="Draw the chain to an SVG file.")
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Report which guarantee holds on each hop of a declared pipeline, why, and which does not. Starts nothing.

    It names what it cannot check because no broker responds or Java is missing. Several files, mirror.toml, and the
    declaration of ingesters alone are explained as one chain, from end to end. A spark-pipeline.yml, of Spark's
    declarative pipelines, is explained flow by flow.
    """
    specs = [file for file in files if file.suffix in (".yml", ".yaml")]
    if specs and (len(files) > 1 or graph is not None):
        raise typer.BadParameter(f"a chain has declarations in TOML\nhint: einmal explain {specs[0]} alone")
    if specs:
        if settings:
            raise typer.BadParameter(
                "-X sets keys of a pipeline.toml; the options of a flow are in its definition file"
            )
        _explain_spec(specs[0], master or _MASTER, confs, output)
        return
    if len(files) > 1 or graph is not None or _declares_no_pipeline(files[0]):
        from einmal.cli.chain import explain_chain

        explain_chain(files, graph, output)
        return
    _explain_pipeline(files[0], master or _MASTER, confs, dict(map(key_and_value, settings or ())), output)


def _explain_spec(file: Path, master: str, confs: list[str] | None, output: Format) -> None:
    from einmal.cli.declarative_pipeline import explain_project

    def session(name: str, config: Mapping[str, str]) -> tuple[SparkSession | None, str]:
        return _or_no_java(lambda: named_session(file, name, master, config, confs))

    with pipeline_failures_reported(file):
        from einmal.spark.environment.spark_version import require_spark

        require_spark()
        explain_project(file, session, output)


def _explain_pipeline(
    file: Path, master: str, confs: list[str] | None, overrides: dict[str, str], output: Format
) -> None:
    with pipeline_failures_reported(file):
        from einmal.spark.environment.spark_version import require_spark

        require_spark()
        from einmal.spark.api.program import ProgramKind, kind_of, load, rows
        from einmal.spark.declare.explanation import facts_of
        from einmal.spark.declare.guarantees import explain as hops_of
        from einmal.spark.declare.guarantees import overall
        from einmal.spark.declare.plan import plan_facts
        from einmal.spark.writer.handover import STATE_CAVEAT

        kind = kind_of(file)
        if kind is ProgramKind.WHOLE:
            raise typer.BadParameter(
                f"{file} is {kind}: only what is declared can be explained\n"
                f'hint: a query that writes with format("einmal") is exactly_once_v2, with one limit. {STATE_CAVEAT}'
            )
        program = load(file, overrides) if kind is ProgramKind.TABLES else None
        spark, problem = _or_no_java(lambda: new_session(file, program, master, confs, overrides))
        program = program or load(file, overrides)
        plan = None if spark is None else plan_facts(rows(program, spark))
        facts = facts_of(program.declaration, plan, problem)
        hops = hops_of(facts)
        holds = overall(hops)
    is_all = not any(reason.verdict == "unknown" for hop in hops for reason in hop.reasons)
    if output.is_document:
        document = {"pipeline": facts.name, "asked": facts.guarantee, "holds": holds, "looked_at_all": is_all}
        print(encoded(document | {"hops": [asdict(hop) for hop in hops]}, output))
        return
    limit = "" if is_all else ", as far as could be looked at"
    print(f"{facts.name}: asked for {facts.guarantee}; from end to end {holds}{limit}\n")
    print_hops(hops)
    print(f"\n{LEGEND}")


def _declares_no_pipeline(file: Path) -> bool:
    """For a mirror's declaration, and that of ingesters alone. False where that cannot be read, which is reported
    next."""
    from einmal.declare.document import DeclarationError, toml_tables
    from einmal.declare.pipeline import declares_pipeline

    try:
        return file.suffix == ".toml" and not declares_pipeline(toml_tables(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, DeclarationError):
        return False


def _or_no_java(session: Callable[[], SparkSession]) -> tuple[SparkSession | None, str]:
    """Return the session, or None and the problem where Java is missing."""
    from einmal.spark.environment.java import JavaMissing

    try:
        return session(), ""
    except JavaMissing as error:
        return None, str(error).partition("\n")[0]
