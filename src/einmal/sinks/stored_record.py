"""The commit record as a sink keeps it: encoded, as text."""

from __future__ import annotations

from typing import Final

from einmal.commit_protocol.batch_plan import BATCH_WRITES, NOBODY
from einmal.commit_protocol.commit_record import CommitRecord, UnreadableCommitRecord, decode
from einmal.pipeline.errors import PipelineRefused
from einmal.sinks.commit_point import Committed

MISSING: Final = "missing"
"""Beginning of the text that a sink has in place of a record that is lost: why it is."""
_RESTORED_HINT: Final = "start the pipeline again: it compares its checkpoint with the record, and reports what to do"

Known = tuple[str | None]
"""The text that a run has read or committed; it may be none."""


def decoded(name: str, text: str | None) -> CommitRecord | None:
    """Raises UnreadableCommitRecord."""
    if text is not None and text.startswith(MISSING):
        raise UnreadableCommitRecord(f"the commit record of {name!r} is {text}")
    return None if text is None else decode(name.encode(), text.encode())


def committed(name: str, text: str, timestamp_ms: int) -> Committed:
    """The record under a name, or why it cannot be read."""
    try:
        return Committed(name, decoded(name, text), timestamp_ms)
    except UnreadableCommitRecord as error:
        return Committed(name, None, timestamp_ms, str(error))


def missing_table(name: str, text: str | None, table: str) -> list[tuple[str, str]]:
    """Return the problem of a table that does not exist: the record may prove rows that were dropped with it."""
    try:
        record = decoded(name, text)
    except UnreadableCommitRecord:
        # Whoever reads the record next is refused.
        return []
    # Batch writes continue nothing: each may be into another table.
    if record is None or record.query_id in (NOBODY, BATCH_WRITES):
        return []
    return [
        (
            f"table {table} does not exist, and by the record of {name!r} batches up to {record.batch_id} are "
            "committed: in it, or in another table, if the option was changed",
            "restore it; or create it, to continue without those rows; or begin anew: einmal pipeline reset",
        )
    ]


def compare_epoch(name: str, granted: int, stored: int, location: str) -> None:
    """Epochs only rise: a lower one than this run's is of before the run. Raises PipelineRefused."""
    if 0 < stored < granted:
        raise PipelineRefused(
            f"{name!r} has epoch {stored} in {location}, and this run was granted {granted}: it was restored",
            _RESTORED_HINT,
        )


def compare(name: str, known: Known | None, stored: str | None, location: str, cause: str) -> None:
    """A sink that was restored lacks batches that a run goes by, and may have its epoch.

    ``known``: None where the run has neither read nor committed a record. Raises PipelineRefused.
    """
    if known is None or known == (stored,):
        return
    was, now = described(name, known[0]), described(name, stored)
    raise PipelineRefused(
        f"the last commit of {name!r} in {location} was {was}, and now it is {now}: {cause}",
        _RESTORED_HINT,
    )


def described(name: str, text: str | None) -> str:
    """The record for an error's text."""
    try:
        record = decoded(name, text)
    except UnreadableCommitRecord:
        return "unreadable"
    return "none" if record is None else f"batch {record.batch_id}"
