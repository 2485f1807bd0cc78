"""Whether a slot still has what follows a position. Pure.

A slot that has moved past the position, or a server that is behind it, means that changes are lost or that records are
of transactions which this server does not have. Neither can be repaired by waiting, nor seen in the stream itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from einmal.ingest.postgresql.lsn import Lsn, lsn_text
from einmal.ingest.postgresql.position import StreamPosition
from einmal.ingest.source import SourceRefused

PLUGIN: Final = "pgoutput"
AFRESH: Final = (
    "to start afresh, delete the recorded position (einmal pipeline reset einmal-ingest-NAME): the next start takes a "
    "snapshot of the tables, whose records repeat rows that were ingested before"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """As in pg_replication_slots; ``plugin``: "physical" for a slot without one; ``confirmed_lsn``: what commits behind
    it will be sent."""

    plugin: str
    database: str
    confirmed_lsn: Lsn
    wal_status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """``insert_lsn``: the end of the log, ``flushed_lsn``: of its part on disk. ``slot``: None if there is none."""

    database: str
    timeline: int
    insert_lsn: Lsn
    flushed_lsn: Lsn
    slot: SlotState | None


def check_slot(name: str, state: ServerState, position: StreamPosition | None) -> None:
    """Raises SourceRefused. Without a position, a slot may be missing, and have any position."""
    if position is not None:
        _check_server(name, state, position)
    slot = state.slot
    if slot is None:
        if position is not None:
            raise SourceRefused(
                f"replication slot {name!r} does not exist any more; changes after {lsn_text(position.lsn)} are not "
                "kept for this source",
                f"the slot was dropped, or the server was replaced by one without it; {AFRESH}",
            )
        return
    if slot.plugin != PLUGIN:
        raise SourceRefused(
            f"replication slot {name!r} has the output plugin {slot.plugin!r}, not {PLUGIN!r}",
            "another program uses it: declare another slot",
        )
    if slot.database != state.database:
        raise SourceRefused(
            f"replication slot {name!r} belongs to database {slot.database!r}, not {state.database!r}",
            "slots' names are unique in a server: declare another slot",
        )
    if slot.wal_status == "lost":
        raise SourceRefused(
            f"replication slot {name!r} is lost: the server has removed log that it needs",
            f"raise max_slot_wal_keep_size, and drop the slot; {AFRESH}",
        )
    if position is not None and slot.confirmed_lsn > position.lsn:
        raise SourceRefused(
            f"replication slot {name!r} is at {lsn_text(slot.confirmed_lsn)}, ahead of the recorded position "
            f"{lsn_text(position.lsn)}: changes between them are lost",
            f"it was advanced, read by another program, or created anew: one slot serves one source; {AFRESH}",
        )


def _check_server(name: str, state: ServerState, position: StreamPosition) -> None:
    without = "" if state.slot is not None else f", and has no replication slot {name!r}"
    if state.timeline != position.timeline:
        raise SourceRefused(
            f"the server is on timeline {state.timeline}, the position {lsn_text(position.lsn)} is on "
            f"{position.timeline}: it was promoted or recovered{without}",
            "transactions that were ingested may be missing here, and changes may not be kept for this source: if the "
            f"former primary still exists, connect to it and let the source catch up before the switch; {AFRESH}",
        )
    if state.insert_lsn < position.lsn:
        raise SourceRefused(
            f"the server's log ends at {lsn_text(state.insert_lsn)}, before the recorded position "
            f"{lsn_text(position.lsn)}{without}",
            f"it was restored from a backup, or lost its last transactions in a crash (fsync = off); {AFRESH}",
        )
