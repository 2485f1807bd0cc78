"""``einmal pipeline``: the status of pipelines, and changes of it, which print a plan first. Needs no Spark."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from einmal.cli.aliases import WithAliases
from einmal.cli.clients import Brokers, CommandConfig, Settings, config_of, failures_reported
from einmal.cli.confirmation import confirm
from einmal.cli.declarations import why_unreadable
from einmal.cli.printing.documents import encoded
from einmal.cli.printing.formats import Format, Output
from einmal.cli.printing.messages import note
from einmal.cli.printing.output import print_rows

if TYPE_CHECKING:
    from einmal.commit_protocol.commit_record import CommitRecord
    from einmal.commit_protocol.takeover import RecordChange
    from einmal.declare.pipeline import Declaration
    from einmal.spark.operate.ownership import Ownership, PipelineStatus

pipeline = typer.Typer(cls=WithAliases, help="Pipelines: status, adopt, reset, infer.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="transactional.id of the pipeline.")]
File = Annotated[
    Path | None,
    typer.Option("-f", "--file", help="The pipeline's declaration: for one whose sink is a database or a lake table."),
]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")]

_COLUMNS = (
    "name",
    "kind",
    "batch",
    "lag",
    "state",
    "open_ms",
    "producer_id",
    "producer_epoch",
    "committed_at",
    "checkpoint",
)
_MORE = ("query_id", "records", "positions", "problem")


@pipeline.command()
def status(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these pipelines.")] = None,
    file: File = None,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Show the status of pipelines: last committed batch, lag to the last stable offset, open transaction, identity."""
    rows: list[dict[str, Any]] = []
    there: list[str] = []
    for sink in _databases(file):
        with _owned(file, brokers, settings, command_config, sink) as owned:
            committed = owned.committed()
            there += committed
            rows += [_row(owned.status(committed[name])) for name in names or committed if name in committed]
    for name in names or ():
        if name not in there:
            _fail(f"no pipeline has committed a batch as {name!r}", f"there are: {', '.join(there) or 'none'}")
    # Two sinks may be tables of one database.
    rows = [row for number, row in enumerate(rows) if row not in rows[:number]]
    if names and not output.is_document:
        # One below the other: positions are long.
        for row in rows:
            _print_one(row)
        return
    print_rows(rows, (*_COLUMNS, *_MORE) if output.has_all else _COLUMNS, output)


@pipeline.command()
def adopt(
    name: Name,
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", help="Directory of the checkpoint on this machine, or its future location.")
    ],
    yes: Yes = False,
    file: File = None,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Let the query of another checkpoint resume under a pipeline's name, at the position of that checkpoint."""
    from einmal.commit_protocol.batch_plan import Refuse
    from einmal.commit_protocol.takeover import plan_adopt
    from einmal.spark.protocol.checkpoint import CheckpointError
    from einmal.spark.protocol.local_checkpoint import standing_of

    with _owned(file, brokers, settings, command_config, _sink_of(file, name)) as owned:
        record = _record(owned, name)
        try:
            change = plan_adopt(name, record, standing_of(checkpoint))
        except CheckpointError as error:
            _fail(str(error))
        if isinstance(change, Refuse):
            _fail(change.reason, change.hint)
        _carry_out(owned, name, record, change, yes, output)


@pipeline.command()
def reset(
    name: Name,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="POSITION",
            help="Start of a new checkpoint: start (its startingOffsets), earliest, latest, or JSON of offsets, a "
            "list with one object for each source.",
        ),
    ] = "start",
    yes: Yes = False,
    file: File = None,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Fence a pipeline and forget its committed batches, so that a new checkpoint can start elsewhere."""
    from einmal.commit_protocol.takeover import plan_reset

    with _owned(file, brokers, settings, command_config, _sink_of(file, name)) as owned:
        record = _record(owned, name)
        if record is None and name not in owned.committed():
            # The name may be any producer's.
            _fail(
                f"no pipeline has committed a batch as {name!r}: there is nothing to reset",
                "einmal pipeline status lists those that have; einmal txn abort ends a transaction",
            )
        _carry_out(owned, name, record, plan_reset(name, record, _position(owned, record, to)), yes, output)


@pipeline.command()
def infer(
    sample: Annotated[str, typer.Argument(metavar="TOPIC|FILE", help="Topic, or file with a JSON document per line.")],
    records: Annotated[
        int, typer.Option("-n", "--records", min=1, max=1_000_000, help="Maximum number of samples.")
    ] = 1_000,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Propose a JSON Schema from samples: the newest records of each partition of a topic, or the lines of a file."""
    from einmal.schemas.infer import proposed

    config = config_of(brokers, settings, command_config, "ConsumerSettings")
    with failures_reported():
        proposal = proposed(
            _lines(Path(sample), records) if Path(sample).is_file() else _newest(config, sample, records)
        )
    if not proposal.samples:
        _fail(f"{sample} has no sample that is JSON: {proposal.refused or 'it is empty'}")
    for reason, count in proposal.refused.items():
        print(f"warning: {count} samples are not JSON: {reason}", file=sys.stderr)
    if output.is_document:
        print(encoded({"schema": proposal.schema, "samples": proposal.samples, "refused": proposal.refused}, output))
    else:
        note(f"{proposal.samples:,} samples")
        print(json.dumps(proposal.schema, indent=2, ensure_ascii=False))


# --- parts ------------------------------------------------------------------------------------------------------


@contextmanager
def _owned(
    file: Path | None, brokers: str | None, settings: list[str] | None, command_config: Path | None, sink: str
) -> Iterator[Ownership]:
    """``sink``: of a declaration with several databases; empty: the only one."""
    from einmal.client.errors import KafkaError
    from einmal.pipeline.errors import PipelineRefused
    from einmal.sinks.commit_point import SinkError
    from einmal.spark.operate.ownership import Changed, KafkaOwnership

    with failures_reported():
        try:
            if file is not None:
                opened = _declared(file, brokers, settings, command_config, sink)
            else:
                config = config_of(brokers, settings, command_config)
                opened = KafkaOwnership({name: str(value) for name, value in config.items()})
            with opened as owned:
                yield owned
        except (Changed, SinkError) as error:
            if isinstance(error.__cause__, KafkaError):
                raise error.__cause__ from error
            _fail(str(error), "look at its status, and decide again")
        except PipelineRefused as error:
            _fail(error.reason, error.hint)


def _sink_of(file: Path | None, name: str) -> str:
    """Return the sink whose record has this name: each of several databases of one pipeline has its own, NAME/SINK.
    Empty where there is one record."""
    databases = _databases(file)
    if file is None or len(databases) == 1:
        return ""
    records = {f"{_parsed(file).name}/{sink}": sink for sink in databases}
    if name not in records:
        _fail(f"{file} declares no commit record {name!r}", f"each database has its own: {', '.join(records)}")
    return records[name]


def _databases(file: Path | None) -> list[str]:
    """The sinks of a declaration that are no topics; one without a name, where there is none."""
    if file is None:
        return [""]
    return [sink.name for sink in _parsed(file).sinks if not sink.is_topic] or [""]


def _parsed(file: Path) -> Declaration:
    from einmal.declare.document import DeclarationError
    from einmal.declare.pipeline import parse
    from einmal.security.properties import read_file

    try:
        return parse(file.read_text(encoding="utf-8"), os.environ, {}, read_file)
    except (OSError, UnicodeDecodeError) as error:
        _fail(f"{file} cannot be read: {why_unreadable(error)}", "--file is a pipeline.toml")
    except DeclarationError as error:
        _fail(f"{file}: {error.problems[0]}")


def _declared(
    file: Path, brokers: str | None, settings: list[str] | None, command_config: Path | None, sink: str
) -> Ownership:
    """Return the ownership of a sink that a file declares."""
    from einmal.clusters.kafka_cluster import KafkaCluster
    from einmal.options.values import client_settings
    from einmal.sinks.kinds import new_sink
    from einmal.spark.operate.ownership import KafkaOwnership, Ownership
    from einmal.spark.sinks.kafka.sink import KafkaFrameSink
    from einmal.spark.sinks.part import Part
    from einmal.spark.sinks.two_phase import FrameTwoPhaseSink

    if brokers or settings or command_config:
        raise typer.BadParameter("--file has the settings of its clusters: -b, -X and --command-config are without it")
    declaration = _parsed(file)
    others = [candidate for candidate in declaration.sinks if not candidate.is_topic]
    clients = [client for source in declaration.sources if (client := client_settings(source.options))]
    if not others:
        return KafkaOwnership(client_settings(declaration.writer))
    chosen = next((candidate for candidate in others if candidate.name == sink), others[0])
    database = new_sink(chosen.kind, chosen.options)
    topics = KafkaFrameSink(client_settings(declaration.writer))
    if topics.two_phase:
        database = FrameTwoPhaseSink(Part(topics), Part(database))
    return Ownership(database, KafkaCluster(clients[0]) if clients else None)


def _lines(path: Path, most: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        for line in itertools.islice(file, most):
            if line.strip():
                yield line


def _newest(config: dict[str, Any], topic: str, most: int) -> Iterator[bytes]:
    """Values of the newest records: as many of each partition. Raises KafkaError."""
    from contextlib import closing

    from einmal.client import OffsetRange, RangeReader
    from einmal.clusters.kafka_cluster import KafkaCluster

    given = {name: str(value) for name, value in config.items()}
    with closing(KafkaCluster(given)) as cluster:
        partitions = cluster.partitions([topic])
        # A partition without a leader has no sample; without any, its error is raised.
        last = cluster.latest(partitions, committed=True, may_lack=True) or cluster.latest(partitions, committed=True)
        first = cluster.earliest(last)
    share = -(-most // len(partitions))
    bounds = {
        partition: OffsetRange(max(first[partition], last[partition] - share), last[partition])
        for partition in last
        if last[partition] > first[partition]
    }
    with RangeReader({**given, "isolation.level": "read_committed"}) as reader:
        for batch in reader.read(bounds):
            for record in batch.records(bounds[batch.topic_partition]):
                if record.value is not None:
                    yield record.value


def _fail(reason: str, hint: str = "") -> NoReturn:
    print(f"error: {reason}" + (f"\nhint: {hint}" if hint else ""), file=sys.stderr)
    raise typer.Exit(1)


def _record(owned: Ownership, name: str) -> CommitRecord | None:
    committed = owned.committed().get(name)
    if committed is not None and committed.problem:
        print(f"warning: {committed.problem}; it will be replaced", file=sys.stderr)
    return None if committed is None else committed.record


def _position(owned: Ownership, record: CommitRecord | None, to: str) -> tuple[Any, ...] | None:
    from einmal.commit_protocol.positions import offsets_of

    if to == "start":
        return None
    if to in ("earliest", "latest"):
        if record is None:
            _fail(f"without a commit record nobody knows which topics {to} is about", "give offsets as JSON")
        try:
            return owned.ends(record.end, earliest=to == "earliest")
        except ValueError as error:
            _fail(f"{to}: {error}", "give the position as JSON")
    try:
        given = json.loads(to)
        position = tuple(given if isinstance(given, list) else [given])
        if (offsets := offsets_of(position)) is None or min(offsets.values(), default=0) < 0:
            raise ValueError(to)
    except (ValueError, TypeError) as error:
        example = '[{"orders":{"0":23,"1":7}}]'
        raise typer.BadParameter(f"--to is start, earliest, latest, or JSON such as {example}, not {to!r}") from error
    return position


def _carry_out(
    owned: Ownership, name: str, record: CommitRecord | None, change: RecordChange, yes: bool, output: Format
) -> None:
    """Print the plan, ask for confirmation, carry it out."""
    transaction = owned.transaction(name)
    if transaction is not None and transaction.partitions:
        print(f"{name} has a transaction open: it is probably running", file=sys.stderr)
    elif transaction is not None and record is None:
        print(f"{name} is known to the cluster, but has no commit record: is it another program's?", file=sys.stderr)
    print(f"{name}: this will", file=sys.stderr)
    for line in change.consequences:
        print(f"  - {line}", file=sys.stderr)
    confirm("Do it?", yes)
    owned.change(name, record, change.record)
    if output.is_document:
        print(encoded({"pipeline": name, "status": "done", "did": list(change.consequences)}, output))
    else:
        note("done")


def _row(status: PipelineStatus) -> dict[str, Any]:
    from einmal.commit_protocol.batch_plan import NOBODY

    record, transaction = status.committed.record, status.transaction
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(status.committed.timestamp / 1000))
    is_set = record is not None and record.query_id == NOBODY
    return {
        "name": status.committed.transactional_id,
        "kind": None if record is None else record.kind.value,
        "batch": None if record is None or is_set else record.batch_id,
        "lag": status.lag,
        "state": None if transaction is None else transaction.state,
        "open_ms": status.open_ms,
        "producer_id": None if transaction is None else transaction.producer_id,
        "producer_epoch": None if transaction is None else transaction.producer_epoch,
        "committed_at": at,
        "checkpoint": None if record is None or is_set else record.checkpoint,
        "query_id": None if record is None or is_set else record.query_id,
        "records": None if record is None else record.records,
        "positions": None if record is None else _positions(record.end),
        "problem": status.problem,
    }


def _print_one(row: dict[str, Any]) -> None:
    for name in (*_COLUMNS, *_MORE):
        value = row[name]
        lines = (value or ["-"]) if isinstance(value, list) else ["-" if value in (None, "") else str(value)]
        for number, line in enumerate(lines):
            print(f"{'' if number else name.replace('_', '-'):<16}{line}")


def _positions(end: tuple[Any, ...]) -> list[str]:
    from einmal.commit_protocol.positions import offsets_of

    offsets = offsets_of(end)
    return (
        [str(position) for position in end]
        if offsets is None
        else [f"{partition}:{offsets[partition]}" for partition in sorted(offsets)]
    )
