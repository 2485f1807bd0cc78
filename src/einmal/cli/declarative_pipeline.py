"""``einmal explain`` of a spark-pipeline.yml: a project of Spark's declarative pipelines, flow by flow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from einmal.cli.printing.documents import encoded
from einmal.cli.printing.formats import Format
from einmal.cli.printing.hops import LEGEND, print_hops

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from einmal.spark.declare.flow_guarantees import FlowGuarantee


def explain_project(
    file: Path, session: Callable[[str, Mapping[str, str]], tuple[SparkSession | None, str]], output: Format
) -> None:
    """Print which guarantee holds for each flow of the project. Runs its definition files, and no query. ``session``:
    makes one of a name and settings, or returns why there is none. Raises DeclarationError, OSError, SparkUnsupported.
    """
    from einmal.options.guarantees import UNKNOWN, together
    from einmal.spark.declare.dataflow_graph import load, spec_of
    from einmal.spark.declare.flow_guarantees import flow_guarantees

    spec = spec_of(file)
    project = load(file, spec, *session(spec.name, spec.configuration))
    flows = flow_guarantees(project)
    unread = project.graph.unread
    holds = together([*(flow.holds for flow in flows), *([UNKNOWN] if unread or not flows else [])])
    is_all = not unread and not any(
        reason.verdict == "unknown" for flow in flows for hop in flow.hops for reason in hop.reasons
    )
    later = [
        *unread,
        f"whether Spark accepts the project: spark-pipelines dry-run --spec {file}",
        f"whether the checkpoints below {project.storage} are those of the commit records: each sink compares them at "
        "its start",
    ]
    if output.is_document:
        document = {"pipeline": project.name, "storage": project.storage, "holds": holds, "looked_at_all": is_all}
        shown = [asdict(flow) | {"holds": flow.holds} for flow in flows]
        print(encoded(document | {"flows": shown, "not_looked_at": later}, output))
        return
    limit = "" if is_all else ", as far as could be looked at"
    print(f"{project.name}: {len(flows)} {'flow' if len(flows) == 1 else 'flows'}; from end to end {holds}{limit}")
    for flow in flows:
        print(f"\n{_title(flow)}\n")
        print_hops(flow.hops)
    print(f"\n{LEGEND}\n")
    for sentence in later:
        print(f"not looked at: {sentence}")


def _title(flow: FlowGuarantee) -> str:
    title = f"flow {flow.flow} into {flow.target}: "
    if flow.asked is None:
        return title + flow.holds
    name = f"\ntopic {flow.topic or 'of each row'}, transactional.id {flow.transactional_id or 'none'}"
    return f"{title}asked for {flow.asked}; from end to end {flow.holds}{name}"
