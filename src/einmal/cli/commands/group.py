"""``einmal group``: consumer groups, their members and lag. On any Kafka cluster."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from einmal.cli.aliases import WithAliases
from einmal.cli.clients import (
    Brokers,
    CommandConfig,
    LogOffsets,
    Settings,
    config_of,
    failures_reported,
    for_each,
    inspecting,
)
from einmal.cli.completion import group_names, topic_names
from einmal.cli.printing.documents import encoded
from einmal.cli.printing.formats import Format, Output
from einmal.cli.printing.messages import note
from einmal.cli.printing.output import Row, print_rows, print_sections, printable
from einmal.cli.seeking import commit, planned

if TYPE_CHECKING:
    from einmal.types import TopicPartition

group = typer.Typer(cls=WithAliases, help="Consumer groups: list, describe, lag, seek, delete.", no_args_is_help=True)


@group.command("list")
def list_groups(
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """List groups."""
    from einmal.client import Admin

    with failures_reported(), Admin(config_of(brokers, settings, command_config)) as admin:
        groups = admin.list_groups()
    rows = [
        {"group": listing.group_id, "state": listing.state, "protocol_type": listing.protocol_type}
        for listing in groups
    ]
    print_rows(rows, ("group", "state", "protocol_type"), output)


@group.command()
def describe(
    name: Annotated[str, typer.Argument(metavar="GROUP", autocompletion=group_names)],
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Show a group's members and lag: unread offsets up to the last stable offset, and those held back after it."""
    from einmal.client import LATEST, Admin, IsolationLevel
    from einmal.client.errors import error_for
    from einmal.types import ErrorCode

    with failures_reported(), Admin(config_of(brokers, settings, command_config)) as admin:
        described = admin.describe_groups([name])[name]
        if described.state == "Dead":
            raise error_for(ErrorCode.group_id_not_found, f"group {name!r}")
        committed = admin.list_group_offsets(name, require_stable=False)
        owners = {partition: member for member in described.members for partition in member.partitions}
        wanted = sorted({*committed, *owners})
        log = LogOffsets(admin)
        ends = log.of(wanted, LATEST)
        stable = log.of(wanted, LATEST, IsolationLevel.READ_COMMITTED)
    rows = []
    for partition in wanted:
        offset = committed[partition].offset if partition in committed else None
        owner = owners.get(partition)
        end, stable_end = ends[partition], stable[partition]
        rows.append(
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "current_offset": offset,
                "last_stable_offset": stable_end,
                "log_end_offset": end,
                "lag": _lag(partition, offset, stable_end, end),
                "held_back": None if end is None or stable_end is None else end - stable_end,
                "member_id": owner.member_id if owner else None,
                "client_id": owner.client_id if owner else None,
                "host": owner.client_host if owner else None,
            }
        )
    summary = {
        "group": name,
        "state": described.state,
        "coordinator": described.coordinator_id,
        "protocol": described.protocol,
        "members": len(described.members),
    }
    offsets = ("topic", "partition", "current_offset", "last_stable_offset", "log_end_offset", "lag", "held_back")
    print_sections(
        {
            "summary": ([summary], tuple(summary)),
            "partitions": (rows, (*offsets, "member_id", "client_id", "host")),
        },
        output,
    )


def _lag(partition: TopicPartition, offset: int | None, stable: int | None, high: int | None) -> int | None:
    """Unread offsets up to the last stable offset, where the position is one in this partition."""
    from einmal.inspection.reading import AFTER_THE_END

    if offset is not None and high is not None and offset > high:
        print(f"warning: {partition}: the position {offset} is after the end, {high}: {AFTER_THE_END}", file=sys.stderr)
        return None
    return None if offset is None or stable is None else max(0, stable - offset)


@group.command()
def lag(
    name: Annotated[str, typer.Argument(metavar="GROUP", autocompletion=group_names)],
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Count the committed records that a group has not read, and those behind an open transaction.

    Markers and aborted records are counted apart: no reader gets them. A partition that is more than 100,000 offsets
    behind has an upper bound instead: its number of offsets.
    """
    from einmal.client.errors import error_for
    from einmal.inspection.document import document
    from einmal.inspection.lag import lag_of
    from einmal.types import ErrorCode

    with failures_reported(), inspecting(config_of(brokers, settings, command_config)) as (admin, reader):
        described = admin.describe_groups([name])[name]
        if described.state == "Dead":
            raise error_for(ErrorCode.group_id_not_found, f"group {name!r}")
        group_lag = lag_of(admin, reader, name, [at for member in described.members for at in member.partitions])
    if output.is_document:
        print(encoded(document(group_lag), output))
        return
    offsets = ("topic", "partition", "current_offset", "last_stable_offset", "high_watermark")
    columns = (*offsets, "unread", "aborted", "markers", "behind", "is_upper_bound")
    total = ("group_id", "unread", "behind", "is_upper_bound")
    print_sections(
        {
            "group": ([{column: getattr(group_lag, column) for column in total}], total),
            "partitions": (
                [{column: getattr(partition, column) for column in columns} for partition in group_lag.partitions],
                columns,
            ),
        },
        output,
    )
    for partition in group_lag.partitions:
        for why in dict.fromkeys(partition.unknown.values()):
            note(f"note: {partition.topic}-{partition.partition}: {printable(why)}")


@group.command()
def seek(
    name: Annotated[str, typer.Argument(metavar="GROUP", autocompletion=group_names)],
    to: Annotated[str, typer.Option("--to", help="New position: earliest (start), latest (end), an offset, or @ms.")],
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", help="Only these topics. Default: all that it has positions in.", autocompletion=topic_names
        ),
    ] = None,
    partitions: Annotated[
        list[int] | None, typer.Option("-p", "--partition", min=0, help="Only these partitions of the topics.")
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Move the group. Default: show what would change.")] = False,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Move the positions of a group without members; without --yes only show them.

    latest is the last stable offset: what an open transaction holds back is read later, not left out. Offsets outside
    of a partition become its first or last one. A partition that cannot be moved now, or that does not exist, keeps no
    other from being moved; then the status is 1.
    """
    if re.fullmatch(r"earliest|start|latest|end|@?\d+", to) is None:
        raise typer.BadParameter(f"--to {to!r} is not earliest, latest, an offset or @ms")
    from einmal.client import Admin, Consumer
    from einmal.client.errors import error_for
    from einmal.types import ErrorCode

    config = config_of(brokers, settings, command_config, "ConsumerSettings")
    with failures_reported():
        with Admin(config_of(brokers, settings, command_config)) as admin:
            described = admin.describe_groups([name])[name]
            if described.members:
                raise error_for(ErrorCode.non_empty_group, f"group {name!r} has members; stop them first")
            if topics is None and described.state == "Dead":
                # With topics it is made: a program may begin there.
                raise error_for(ErrorCode.group_id_not_found, f"group {name!r}; to make it, name its topics (--topic)")
            plan = planned(admin, name, to, topics, partitions)
        if yes and plan.moves:
            with Consumer({**config, "group.id": name}) as consumer:
                plan = commit(consumer, plan)
    rows: list[Row] = [
        {
            "topic": move.partition.topic,
            "partition": move.partition.partition,
            "current_offset": move.current,
            "new_offset": move.new,
            "status": "moved" if yes else "not moved",
            "error": None,
        }
        for move in plan.moves
    ]
    for where, error in plan.left.items():
        topic, partition = (where, None) if isinstance(where, str) else where
        unmoved = {"topic": topic, "partition": partition, "current_offset": None, "new_offset": None}
        rows.append({**unmoved, "status": "failed", "error": error.name})
        print(f"warning: {printable(str(where))} cannot be moved: {printable(str(error))}", file=sys.stderr)
    columns = ("topic", "partition", "current_offset", "new_offset", "status")
    print_rows(rows, (*columns, "error") if output.has_all else columns, output)
    if not yes:
        note("note: nothing is changed; repeat the command with --yes")
    if plan.left:
        raise typer.Exit(1)


@group.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="GROUP...", autocompletion=group_names)],
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Delete groups that have no members, with their offsets, and report the outcome for each."""
    from einmal.client import Admin

    with failures_reported(), Admin(config_of(brokers, settings, command_config)) as admin:

        def delete_one(name: str) -> str:
            admin.delete_groups([name])
            return "deleted"

        outcomes = for_each(names, delete_one)
        outcomes.print("group", output)
        outcomes.exit()
