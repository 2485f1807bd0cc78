"""PostgreSQL's errors as the verbs of a sink report them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import psycopg

from einmal.postgresql import sqlstates
from einmal.postgresql.errors import ended_session, is_raised, reason
from einmal.sinks.commit_point import OutcomeUnknown, SinkFailed


def is_race(error: psycopg.Error, races: Collection[str]) -> bool:
    """Whether another session has inserted the key that this one was inserting. ``races``: unique indexes of the key,
    which rows that were merged by it cannot violate on their own. Another attempt finds the other session's row."""
    return error.sqlstate == sqlstates.UNIQUE_VIOLATION and error.diag.constraint_name in races


def failed(
    error: psycopg.Error, what: str, columns: Mapping[str, str] | None = None, *, races: Collection[str] = ()
) -> SinkFailed:
    """A step that did not happen. ``columns``: names in the staging table, and what they stand for."""
    if is_race(error, races):
        return SinkFailed(f"{what}: another session has inserted a key of the batch at the same time")
    will_again = (error.sqlstate or "")[:2] in sqlstates.WILL_AGAIN or is_raised(error)
    return SinkFailed(f"{what}: {reason(error, columns)}", will_again=will_again)


def undecided(error: psycopg.Error, what: str) -> SinkFailed | OutcomeUnknown:
    """A COMMIT that raised: certain only if the server refused it and the session lives on, or it never came there."""
    if ended_session(error) or error.sqlstate in sqlstates.COMMIT_UNKNOWN:
        return OutcomeUnknown(f"{what}: no answer to COMMIT: {reason(error)}")
    return failed(error, what)
