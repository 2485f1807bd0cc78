"""PostgreSQL's errors as the verbs of a target report them: what failed and where, without the values of rows. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

import psycopg

from einmal.sinks.commit_point import OutcomeUnknown, SinkFailed

OF_ROWS: Final = frozenset({"21", "22", "23", "44", "54"})
"""Classes of SQLSTATE for rows that the table rejects: cardinality violation (a rule of the table looks for one row
and finds two), data exception, integrity constraint violation, WITH CHECK OPTION, program limit exceeded (a value that
is too long for an index, JSON that is too deep)."""
NOT_OF_ROWS: Final = frozenset({"2200H", "22P04"})
"""Codes in the classes of ``OF_ROWS`` that are not about rows: a sequence has come to its end, COPY was not
understood."""
_ROW_SECURITY: Final = "ExecWithCheckOptions"
"""Where the server finds that a policy does not allow a row, with the SQLSTATE of a missing permission."""
_WILL_AGAIN: Final = OF_ROWS | frozenset({"0A", "28", "2F", "38", "39", "3D", "3F", "42", "P0"})
"""Classes of errors that every other attempt would meet, too: permissions, missing columns, RAISE in a trigger."""
_PASSING: Final = ("08", "40", "53", "55P03", "57", "58")
"""Errors that a function raises to be called again, as it would be without it: the state of the server, not of the
row."""
_OF_FUNCTIONS: Final = frozenset({"0A", "42", "XX"})
"""Classes of errors in the text of a function, unless it raises them itself."""
_RAISING: Final = frozenset({"exec_stmt_raise", "PLy_output", "do_util_elog", "plperl_util_elog", "pltcl_elog"})
"""Functions of procedural languages in which an author's own error is raised."""
_LANGUAGES: Final = ("pl_", "plpy", "plperl", "pltcl")
"""How the source files of procedural languages begin: their errors have the text of a function's author."""
_UNIQUE: Final = "23505"
_FORBIDDEN: Final = "42501"
DEPENDS: Final = "23503"
"""foreign_key_violation: a row may need another one of its batch, as where a trigger raises an exception."""
_UNKNOWN: Final = frozenset({"08007", "40003"})
"""transaction_resolution_unknown, statement_completion_unknown."""
_FATAL: Final = frozenset({"FATAL", "PANIC"})
SAY_NO_VALUES: Final = frozenset(
    {"22001", "22003", "22021", "22P05", "23502", "23503", "23505", "23514", "23P01", "42501"}
)
"""Their primary message may name columns, constraints and types; others quote the value."""
_WITH_VALUE: Final = re.compile(r'^value ".*" is out', re.DOTALL)
_COPIED_COLUMN: Final = re.compile(r"^COPY [^,]+, line \d+, column (\w+)", re.MULTILINE)


def is_of_rows(error: psycopg.Error) -> bool:
    """Whether a row is at fault, not the server or a permission."""
    state = error.sqlstate or ""
    return (state[:2] in OF_ROWS and state not in NOT_OF_ROWS) or (
        state == _FORBIDDEN and error.diag.source_function == _ROW_SECURITY
    )


def rejects_row(error: psycopg.Error) -> bool:
    """Whether the table takes the other rows without this one: also where a trigger has raised an exception."""
    return is_of_rows(error) or is_raised(error)


def is_raised(error: psycopg.Error) -> bool:
    """Whether the author of a function or trigger has raised it, with whatever SQLSTATE."""
    state, diag = error.sqlstate or "", error.diag
    if ended_session(error) or state.startswith(_PASSING):
        return False
    if state.startswith("P0"):
        return True
    return _is_of_language(error) and (state[:2] not in _OF_FUNCTIONS or diag.source_function in _RAISING)


def _is_of_language(error: psycopg.Error) -> bool:
    return (error.diag.source_file or "").startswith(_LANGUAGES)


def condition(error: psycopg.Error) -> str:
    """PostgreSQL's name for an error, such as unique_violation."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()


def ended_session(error: psycopg.Error) -> bool:
    """Whether the session ended with this error: no SQLSTATE means that the connection broke."""
    return error.sqlstate is None or (error.diag.severity_nonlocalized or "") in _FATAL


def cause(error: psycopg.Error) -> psycopg.Error | None:
    """Return what a SinkError is raised from: an error about a row has its values, and is left out."""
    has_text = (error.sqlstate or "").startswith("P0") or _is_of_language(error)
    return None if is_of_rows(error) or has_text else error


def is_race(error: psycopg.Error, races: Collection[str]) -> bool:
    """Whether another session has inserted the key that this one was inserting. ``races``: unique indexes of the key,
    which rows that were merged by it cannot violate on their own. Another attempt finds the other session's row."""
    return error.sqlstate == _UNIQUE and error.diag.constraint_name in races


def failed(
    error: psycopg.Error, what: str, columns: Mapping[str, str] | None = None, *, races: Collection[str] = ()
) -> SinkFailed:
    """A step that did not happen. ``columns``: names in the staging table, and what they stand for."""
    if is_race(error, races):
        return SinkFailed(f"{what}: another session has inserted a key of the batch at the same time")
    will_again = (error.sqlstate or "")[:2] in _WILL_AGAIN or is_raised(error)
    return SinkFailed(f"{what}: {reason(error, columns)}", will_again=will_again)


def undecided(error: psycopg.Error, what: str) -> SinkFailed | OutcomeUnknown:
    """A COMMIT that raised: certain only if the server refused it and the session lives on, or it never came there."""
    if ended_session(error) or error.sqlstate in _UNKNOWN:
        return OutcomeUnknown(f"{what}: no answer to COMMIT: {reason(error)}")
    return failed(error, what)


def reason(error: psycopg.Error, columns: Mapping[str, str] | None = None) -> str:
    """In one line, with PostgreSQL's condition name and SQLSTATE, and without the values of a row."""
    if error.sqlstate is None:
        return " ".join(str(error).split()) or type(error).__name__
    diag = error.diag
    text = (diag.message_primary or "").strip()
    if is_of_rows(error) and (error.sqlstate not in SAY_NO_VALUES or _WITH_VALUE.match(text)):
        text = ""
    if error.sqlstate.startswith("P0") or _is_of_language(error):
        # It may have values, whatever its SQLSTATE is.
        text = "raised by a function or trigger"
    where = [
        f"{kind} {name}"
        for kind, name in (
            ("table", diag.table_name),
            ("column", diag.column_name or _copied_column(diag.context, columns)),
            ("constraint", diag.constraint_name),
            ("type", diag.datatype_name),
        )
        if name
    ]
    return (
        f"{condition(error)} (SQLSTATE {error.sqlstate})"
        + (f": {text}" if text else "")
        + (f" [{', '.join(where)}]" if where else "")
    )


def _copied_column(context: str | None, columns: Mapping[str, str] | None) -> str | None:
    """Only a column that is known: the context quotes the value, which may look like one."""
    found = _COPIED_COLUMN.findall(context or "")
    return next((columns[each] for each in found if each in columns), None) if columns else None
