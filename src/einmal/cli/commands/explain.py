"""``einmal explain``: which guarantee holds on each hop of a pipeline, why, and where it does not."""

from __future__ import annotations

import shutil
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from einmal.cli.clients import key_and_value
from einmal.cli.commands.run import Confs, Master, Overrides, new_session, pipeline_failures_reported
from einmal.cli.printing.documents import encoded
from einmal.cli.printing.formats import Format, Output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from einmal.pipeline.reasons import Reason
    from einmal.spark.api.program import Program
    from einmal.spark.declare.guarantees import Hop

_SIGNS = {"holds": "+", "if": "~", "not": "-", "unknown": "?"}


def explain(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="PIPELINE...", help="pipeline.toml or Python program; several files are a chain."),
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
    declaration of ingesters alone are explained as one chain, from end to end.
    """
    if len(files) > 1 or graph is not None or _declares_no_pipeline(files[0]):
        from einmal.cli.chain import explain_chain

        explain_chain(files, graph, output)
        return
    (file,) = files
    with pipeline_failures_reported(file):
        from einmal.spark.environment.spark_version import require_spark

        require_spark()
        from einmal.spark.api.program import ProgramKind, kind_of, load, rows
        from einmal.spark.declare.explanation import facts_of
        from einmal.spark.declare.guarantees import explain as hops_of
        from einmal.spark.declare.guarantees import overall
        from einmal.spark.declare.plan import plan_facts
        from einmal.spark.writer.handover import STATE_CAVEAT

        kind, overrides = kind_of(file), dict(map(key_and_value, settings or ()))
        if kind is ProgramKind.WHOLE:
            raise typer.BadParameter(
                f"{file} is {kind}: only what is declared can be explained\n"
                f'hint: a query that writes with format("einmal") is exactly_once_v2, with one limit. {STATE_CAVEAT}'
            )
        program = load(file, overrides) if kind is ProgramKind.TABLES else None
        spark, problem = _session(file, program, master or "local[1]", confs, overrides)
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
    _print(hops)


def _declares_no_pipeline(file: Path) -> bool:
    """For a mirror's declaration, and that of ingesters alone. False where that cannot be read, which is reported
    next."""
    from einmal.declare.document import DeclarationError, toml_tables
    from einmal.declare.pipeline import declares_pipeline

    try:
        return file.suffix == ".toml" and not declares_pipeline(toml_tables(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, DeclarationError):
        return False


def _session(
    file: Path, program: Program | None, master: str, confs: list[str] | None, overrides: dict[str, str]
) -> tuple[SparkSession | None, str]:
    from einmal.spark.environment.java import JavaMissing

    try:
        return new_session(file, program, master, confs, overrides), ""
    except JavaMissing as error:
        return None, str(error).partition("\n")[0]


def _print(hops: list[Hop]) -> None:
    width = max(len(_head(hop)) for hop in hops)
    room = max(40, shutil.get_terminal_size((120, 24)).columns - width - 4)
    for hop in hops:
        print(f"{_head(hop):<{width}}  {hop.guarantee}")
        for reason in hop.reasons:
            for line in _lines(reason, room):
                print(f"{'':<{width}}  {line}")
    print("\n+ holds   ~ holds on a condition   - does not hold   ? could not be looked at")


def _head(hop: Hop) -> str:
    return f"{hop.kind} {hop.name}".strip()


def _lines(reason: Reason, room: int) -> list[str]:
    lines = textwrap.wrap(reason.text, room)
    hint = textwrap.wrap(f"hint: {reason.hint}", room) if reason.hint else []
    return [f"{'  ' if number else _SIGNS[reason.verdict] + ' '}{line}" for number, line in enumerate((*lines, *hint))]
