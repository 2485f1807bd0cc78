"""``einmal mirror``: copies topics and group offsets to another cluster until it is stopped. Notices on stderr.

Exit status, beside the usual: 1 not everything is copied that was to be copied, 3 refused (a restart does not help).
Ctrl-C or SIGTERM ends it between two steps, a second one at once; the next start aborts what it has left open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from einmal.cli.clients import failures_reported, key_and_value
from einmal.cli.commands.spark_option import spark_session
from einmal.cli.declarations import read_declaration
from einmal.cli.interrupts import stop_on_signals
from einmal.cli.printing.documents import encoded
from einmal.cli.printing.formats import Format, Output
from einmal.cli.printing.output import Row, ServiceOutput, print_rows, print_sections

if TYPE_CHECKING:
    from einmal.commit_protocol.commit_record import CommitRecord
    from einmal.mirror_protocol.flow import Flow, MirrorNotice
    from einmal.mirroring.copier import Copier
    from einmal.mirroring.declaration import MirrorDeclaration
    from einmal.mirroring.metrics import MirrorMetrics
    from einmal.mirroring.status import MirrorStatus
    from einmal.otlp import Push

REFUSED: Final = 3
_PARTITIONS: Final = ("partition", "target", "position", "end", "lag")
_LEFT_OUT: Final = ("topic", "reason")
_GROUPS: Final = ("group", "partition", "source_offset", "target_offset", "state")


class _FlowFirst(TyperGroup):
    """``einmal mirror 'A->B'`` and ``einmal mirror mm2.properties`` run the flow."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and "->" in args[0]:
            args = ["run", *args]
        elif args and args[0].endswith(".properties"):
            args = ["run", "--file", *args]
        return super().parse_args(ctx, args)


mirror = typer.Typer(
    cls=_FlowFirst,
    help="Copy topics to another cluster: 'A->B' or MirrorMaker's properties file (or run), status, failover, explain.",
    no_args_is_help=True,
)
FlowName = Annotated[str, typer.Argument(metavar="A->B", help="Flow: aliases of the source and the target.")]
File = Annotated[Path, typer.Option("--file", "-f", help="The mirror's declaration, or MirrorMaker's properties file.")]
Groups = Annotated[
    list[str] | None, typer.Option("--group", help="Only this consumer group; may be repeated. Default: all.")
]
_FILE: Final = Path("mirror.toml")


@mirror.command()
def run(
    flow: Annotated[
        str | None,
        typer.Argument(metavar="[A->B]", help="Flow: aliases of the source and the target. Default: the only one."),
    ] = None,
    file: File = _FILE,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="End when everything is copied that was committed at the start.")
    ] = False,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="[HOST:]PORT", help="Address of the Prometheus metrics endpoint. Port 0 is a free one."),
    ] = None,
    spark: Annotated[
        str | None,
        typer.Option(
            "--spark", metavar="MASTER", help="Spark's master: its tasks copy the records. Needs einmal[spark]."
        ),
    ] = None,
    confs: Annotated[
        list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="Spark setting; needs --spark.")
    ] = None,
    output: Annotated[Format, typer.Option("--format", help="json: one line per transaction on stdout.")] = Format.TEXT,
) -> None:
    """Copy topics to another cluster exactly once, with the offsets of groups, and without torn transactions."""
    from einmal.mirroring.run import MirrorProcess

    flow = _only_flow(file) if flow is None else flow
    declared, declaration = _declared(file, flow)
    if confs and spark is None:
        raise typer.BadParameter("--conf needs --spark")
    source, target = declaration.clusters[declared.source], declaration.clusters[declared.target]
    with failures_reported(), _stops_reported(), _copier(declared, spark, confs, source, target) as copier:
        figures, push = _measured(flow, metrics)
        listener = _Listener(flow, output, figures=figures)
        process = MirrorProcess(
            declared,
            source,
            target,
            notify=listener.notify,
            committed=listener.committed,
            ends_when_idle=available_now,
            copier=copier,
        )
        stop_on_signals(process.stop.set)
        try:
            process.run()
        finally:
            process.close()
            if push is not None:
                push.close()


@mirror.command()
def status(flow: FlowName, file: File = _FILE, output: Output = Format.TEXT) -> None:
    """Show positions, lag, and which groups would resume at the target where they stand at the source."""
    from einmal.mirroring.source import SourceReader
    from einmal.mirroring.status import status_of
    from einmal.mirroring.target import TargetWriter

    declared, declaration = _declared(file, flow)
    with failures_reported(), _stops_reported():
        source = SourceReader(declaration.clusters[declared.source])
        target = TargetWriter(declaration.clusters[declared.target], declared.name, declared.transactional_id)
        try:
            mirror_status = status_of(declared, source, target)
        finally:
            target.close()
            source.close()
    _print(mirror_status, output)


@mirror.command()
def failover(
    flow: FlowName,
    file: File = _FILE,
    groups: Groups = None,
    source_lost: Annotated[
        bool, typer.Option("--source-lost", help="Do not ask the source: groups resume at the last copied state.")
    ] = False,
    output: Output = Format.TEXT,
) -> None:
    """Prepare groups to continue at the target: copy what is committed, then compare their offsets.

    A running mirror of the flow is fenced. Exit status 1: a group would not resume where it stands at the source, or
    not everything is copied; stderr names what is missing. 3: a group is unknown, or has members at the source.
    """
    from einmal.mirroring.failover import fail_over, fail_over_without_source, unready, unready_without_source

    declared, declaration = _declared(file, flow, is_source_lost=source_lost)
    target = declaration.clusters[declared.target]
    with failures_reported(), _stops_reported():
        if source_lost:
            mirror_status = fail_over_without_source(declared, target, groups or ())
        else:
            source, listener = declaration.clusters[declared.source], _Listener(flow, output, err=True)
            mirror_status = fail_over(
                declared, source, target, groups or (), notify=listener.notify, committed=listener.committed
            )
    _print(mirror_status, output)
    problems = unready_without_source(mirror_status) if source_lost else unready(mirror_status, groups or ())
    for problem in problems:
        typer.echo(f"not ready: {problem}", err=True)
    if problems:
        raise typer.Exit(1)


@mirror.command()
def explain(flow: FlowName, file: File = _FILE, output: Output = Format.TEXT) -> None:
    """Report what the flow promises, on which condition, and what it does not. Copies nothing."""
    from einmal.mirroring.promises import promises
    from einmal.mirroring.source import SourceReader

    declared, declaration = _declared(file, flow)
    with failures_reported():
        source = SourceReader(declaration.clusters[declared.source])
        try:
            rows = [asdict(promise) for promise in promises(declared, source)]
        finally:
            source.close()
    print_rows(rows, ("subject", "verdict", "text"), output)


@contextmanager
def _copier(
    flow: Flow, master: str | None, confs: list[str] | None, source: Mapping[str, str], target: Mapping[str, str]
) -> Iterator[Copier | None]:
    """None: the mirror's process copies."""
    if master is None:
        yield None
        return
    config = dict(map(key_and_value, confs or ()))
    with spark_session(f"einmal mirror {flow.name}", flow.name, master, config) as spark:
        from einmal.mirroring.spark_copier import SparkCopier
        from einmal.spark.output.task_job import TaskJob

        yield SparkCopier(TaskJob(spark), source, target)


@contextmanager
def _stops_reported() -> Iterator[None]:
    from einmal.commit_protocol.commit_record import UnreadableCommitRecord
    from einmal.mirroring.map_log import UnreadableMap
    from einmal.mirroring.run import MirrorIncomplete, MirrorStopped
    from einmal.options.values import OptionError
    from einmal.pipeline.errors import PipelineRefused
    from einmal.sinks.commit_point import SinkError

    stops = (MirrorStopped, UnreadableMap, UnreadableCommitRecord, SinkError, OptionError, PipelineRefused)
    try:
        yield
    except stops as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1 if isinstance(error, MirrorIncomplete) else REFUSED) from error


@dataclass(frozen=True, slots=True)
class _Listener:
    """Prints what the mirror reports. ``figures``: None where nobody asks for metrics, which need a package more."""

    flow: str
    output: Format
    err: bool = False
    figures: MirrorMetrics | None = None
    lines: ServiceOutput = field(default_factory=ServiceOutput)

    def committed(self, record: CommitRecord) -> None:
        if self.figures is not None:
            self.figures.commit(record)
        if self.output.is_document and not self.err:
            self.lines.print(
                encoded({"flow": self.flow, "batch_id": record.batch_id, "records": record.records}, self.output)
            )
            return
        line = f"{self.flow}: batch {record.batch_id}, {record.records} records"
        if self.err:
            typer.echo(line, err=True)
        else:
            self.lines.print(line)

    def notify(self, notice: MirrorNotice) -> None:
        if self.figures is not None:
            self.figures.notice(notice)
        typer.echo(f"warning: {notice.text}", err=True)


def _measured(flow: str, address: str | None) -> tuple[MirrorMetrics | None, Push | None]:
    """The figures of the flow where somebody asks for them, and what pushes them where somebody asks for that."""
    from einmal.otlp import wanted_push

    push = wanted_push("einmal-mirror")
    if address is None and push is None:
        return None, None
    from einmal.metrics import serve
    from einmal.mirroring.metrics import MirrorMetrics

    figures = MirrorMetrics(flow)
    if address is not None:
        typer.echo(f"metrics: http://{serve('--metrics', address, figures.registry)}/metrics", err=True)
    if push is not None:
        push.start(figures.registry.collect)
        typer.echo(f"metrics: {push.described}", err=True)
    return figures, push


def _print(status: MirrorStatus, output: Format) -> None:
    if status.batch_id is None:
        typer.echo("no transaction yet: the flow has copied nothing", err=True)
    partitions = [
        {
            "partition": str(partition.partition),
            "target": str(partition.target),
            "position": partition.position,
            "end": partition.end,
            "lag": partition.lag,
        }
        for partition in status.partitions
    ]
    groups = [
        {
            "group": group.group,
            "partition": str(group.partition),
            "source_offset": group.source_offset,
            "target_offset": group.target_offset,
            "state": group.state.value,
            "reason": group.reason,
        }
        for group in status.groups
    ]
    sections: dict[str, tuple[Sequence[Row], tuple[str, ...]]] = {
        "partitions": (partitions, _PARTITIONS),
        "groups": (groups, (*_GROUPS, "reason") if any(group.reason for group in status.groups) else _GROUPS),
    }
    if status.left_out or output.is_document:
        sections["left_out"] = ([asdict(topic) for topic in status.left_out], _LEFT_OUT)
    print_sections(sections, output)


def _declared(file: Path, flow: str, *, is_source_lost: bool = False) -> tuple[Flow, MirrorDeclaration]:
    from einmal.mirroring.declaration import parse
    from einmal.mirroring.mirrormaker import SUFFIX, without_effect

    is_properties = file.suffix == SUFFIX
    parse_flow = partial(parse, only=flow, is_source_lost=is_source_lost, is_properties=is_properties)
    declaration = read_declaration(file, parse_flow)
    for sentence in without_effect(file.read_text(encoding="utf-8")) if is_properties else ():
        typer.echo(f"warning: {file}: {sentence}", err=True)
    if flow not in declaration.flows:
        raise typer.BadParameter(f"{file} declares no flow {flow!r}, only {', '.join(declaration.flows)}")
    return declaration.flows[flow], declaration


def _only_flow(file: Path) -> str:
    from einmal.mirroring.declaration import flow_names
    from einmal.mirroring.mirrormaker import SUFFIX

    names = read_declaration(file, lambda text, _env, _read: flow_names(text, is_properties=file.suffix == SUFFIX))
    if len(names) != 1:
        raise typer.BadParameter(
            f"{file} has the flows {', '.join(names)}: name one, in a process of its own: "
            f"einmal mirror '{names[0]}' --file {file}"
        )
    return names[0]
