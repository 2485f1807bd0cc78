"""The names of what a pipeline creates in a PostgreSQL database. Pure."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from einmal.postgresql.names import NAME_BYTES_MAX

RECORDS: Final = "einmal_commits"
_STAGING: Final = re.compile(r"einmal_staging_[0-9a-f]{12}_(\d+)_(\d+)_(\d+)")
_APPLICATION: Final = re.compile(r"einmal ([0-9a-f]{12})(?: (\d+))?")


def short_hash(pipeline: str) -> str:
    """Return the hash that stands for a pipeline's name, which may be longer than an identifier. Equal hashes of two
    names are distinguished by the comment on the table."""
    return hashlib.sha256(pipeline.encode()).hexdigest()[:12]


def staging_prefix(pipeline: str) -> str:
    return f"einmal_staging_{short_hash(pipeline)}_"


def staging_name(pipeline: str, epoch: int, number: int, batch_id: int) -> str:
    """``number``: of the transaction under the epoch: every attempt at a batch has a table of its own."""
    name = f"{staging_prefix(pipeline)}{epoch}_{number}_{batch_id}"
    assert len(name) <= NAME_BYTES_MAX, name
    return name


def staging_comment(pipeline: str) -> str:
    return f"einmal: rows of pipeline {pipeline!r} that are not committed yet"


def epoch_of_staging(name: str) -> int | None:
    match = _STAGING.fullmatch(name)
    return int(match[1]) if match else None


def application_name(schema: str, pipeline: str, epoch: int | None) -> str:
    """Return the name that ``pg_stat_activity`` shows for the sessions of a pipeline, of driver and tasks. ``schema``:
    of its record; two schemas of a database can have pipelines of one name."""
    return f"einmal {_session_hash(schema, pipeline)}" + ("" if epoch is None else f" {epoch}")


def epoch_of_application(schema: str, pipeline: str, name: str) -> int | None:
    """The epoch that a session of this pipeline works under; None: another's, or it has not acquired one."""
    match = _APPLICATION.fullmatch(name)
    return int(match[2]) if match and match[2] and match[1] == _session_hash(schema, pipeline) else None


def _session_hash(schema: str, pipeline: str) -> str:
    # No name has a NUL, so no two pairs are one text.
    return short_hash(f"{schema}\0{pipeline}")
