"""The text of ``einmal txn doctor``: a verdict, then a paragraph for each open transaction of a partition."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from einmal.cli.printing.messages import note
from einmal.cli.printing.output import printable

if TYPE_CHECKING:
    from einmal.inspection.diagnosis import Diagnosis, HeldPartition, WayOut

HIDDEN: Final = (
    "a transactional id without the permission DESCRIBE is hidden: its transaction looks as if no coordinator knew it"
)


def with_options(diagnosis: Diagnosis, options: str) -> Diagnosis:
    """With ``options`` in the commands, before their arguments, which may begin with ``--``."""

    def command(way_out: WayOut) -> str | None:
        if way_out.command is None:
            return None
        program, group, verb, *arguments = way_out.command.split(" ", 3)
        return " ".join([f"{program} {group} {verb}{options}", *arguments])

    return replace(
        diagnosis,
        held=tuple(
            replace(partition, way_out=replace(partition.way_out, command=command(partition.way_out)))
            for partition in diagnosis.held
        ),
    )


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """Print the verdict, and what it is about."""
    from einmal.inspection.diagnosis import Cause

    print(diagnosis.verdict)
    for held_partition in diagnosis.held:
        print()
        print("\n".join(_paragraph(held_partition, diagnosis.time)))
    # A transaction that holds a partition back has its paragraph already.
    shown = {
        held_partition.holder.transactional_id for held_partition in diagnosis.held if held_partition.holder is not None
    }
    for name in diagnosis.overdue:
        if name not in shown:
            print(f"\n{printable(name)}: past its time-out, with no records that hold a reader back")
    for partition, why in diagnosis.unseen.items():
        print(f"warning: {partition} was not examined: {printable(why)}", file=sys.stderr)
    if any(held_partition.cause is Cause.HANGING for held_partition in diagnosis.held):
        note(f"note: {HIDDEN}")


def _paragraph(held: HeldPartition, now: int) -> list[str]:
    from einmal.inspection.diagnosis import MEANINGS

    lines = [f"{held.topic}-{held.partition}: {_holds(held, now)}", f"  why      {MEANINGS[held.cause]}"]
    if held.holder is not None:
        lines.append(f"  who      {_who(held)}")
    bound = "up to " if held.is_upper_bound else ""
    groups = "groups are not known" if held.waiting_groups is None else _groups(held)
    lines.append(f"  waiting  {bound}{held.records_waiting:,} records; {groups}")
    if "waiting_groups" in held.unknown:
        lines.append(f"           {printable(held.unknown['waiting_groups'])}")
    lines.append(f"  way out  {held.way_out.advice}")
    if held.way_out.command is not None:
        lines.append(f"           {held.way_out.command}")
    return lines


def _holds(held: HeldPartition, now: int) -> str:
    offset = held.last_stable_offset if held.holder is None else held.holder.start_offset
    since = None if held.holder is None else held.holder.since
    what = "readers stop" if held.is_first else "an open transaction begins, behind the first,"
    if since is None:
        return f"{what} at offset {offset}"
    try:
        begun = datetime.fromtimestamp(since / 1000, UTC).isoformat(" ", "seconds").replace("+00:00", " UTC")
    except (OverflowError, ValueError, OSError):
        # The timestamp of a record is its producer's, which may have taken microseconds.
        return f"{what} at offset {offset}; its first record has the timestamp {since}"
    return f"{what} at offset {offset} since {begun}, {max(0, now - since) / 1000:,.0f} s"


def _who(held: HeldPartition) -> str:
    holder = held.holder
    assert holder is not None, "the caller has looked"
    name = holder.transactional_id
    known = "transactional id not known" if name is None else f"transactional id {printable(name)!r}"
    client = f"client id and host {holder.unknown['client_id']}"
    return f"{known}, producer id {holder.producer_id}, epoch {holder.producer_epoch}; {client}"


def _groups(held: HeldPartition) -> str:
    groups = held.waiting_groups or ()
    names = [f"{printable(group.group_id)}{' (at the end)' if group.is_at_the_end else ''}" for group in groups]
    return f"groups: {', '.join(names)}" if names else "no group has an offset here"
