"""PostgreSQL's errors: what failed and where, without the values of rows. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import psycopg

from einmal.postgresql import sqlstates

_ROW_SECURITY: Final = "ExecWithCheckOptions"
"""Where the server finds that a policy does not allow a row, with the SQLSTATE of a missing permission."""
_PASSING: Final = (*sqlstates.PASSING, sqlstates.LOCK_NOT_AVAILABLE)
"""Errors that a function raises to be called again, as it would be without it: about the server, not about a row."""
_RAISING: Final = frozenset({"exec_stmt_raise", "PLy_output", "do_util_elog", "plperl_util_elog", "pltcl_elog"})
"""Functions of procedural languages in which an author's own error is raised."""
_LANGUAGES: Final = ("pl_", "plpy", "plperl", "pltcl")
"""How the source files of procedural languages begin: their errors have the text of a function's author."""
_FATAL: Final = frozenset({"FATAL", "PANIC"})
_WITH_VALUE: Final = re.compile(r'^value ".*" is out', re.DOTALL)
_COPIED_COLUMN: Final = re.compile(r"^COPY [^,]+, line \d+, column (\w+)", re.MULTILINE)


def is_of_rows(error: psycopg.Error) -> bool:
    """Whether a row is at fault, not the server or a permission."""
    state = error.sqlstate or ""
    return (state[:2] in sqlstates.OF_ROWS and state not in sqlstates.NOT_OF_ROWS) or (
        state == sqlstates.INSUFFICIENT_PRIVILEGE and error.diag.source_function == _ROW_SECURITY
    )


def rejects_row(error: psycopg.Error) -> bool:
    """Whether the table takes the other rows without this one: also where a trigger has raised an exception."""
    return is_of_rows(error) or is_raised(error)


def is_raised(error: psycopg.Error) -> bool:
    """Whether the author of a function or trigger has raised it, with whatever SQLSTATE."""
    state, diag = error.sqlstate or "", error.diag
    if ended_session(error) or state.startswith(_PASSING):
        return False
    if state.startswith(sqlstates.RAISED):
        return True
    return _is_of_language(error) and (state[:2] not in sqlstates.OF_FUNCTIONS or diag.source_function in _RAISING)


def _is_of_language(error: psycopg.Error) -> bool:
    return (error.diag.source_file or "").startswith(_LANGUAGES)


def condition(error: psycopg.Error) -> str:
    """PostgreSQL's name for an error, such as unique_violation."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()


def ended_session(error: psycopg.Error) -> bool:
    """Whether the session ended with this error: no SQLSTATE means that the connection broke."""
    return error.sqlstate is None or (error.diag.severity_nonlocalized or "") in _FATAL


def cause(error: psycopg.Error) -> psycopg.Error | None:
    """Return the cause for an error of ours: an error about a row has its values, and is left out."""
    has_text = (error.sqlstate or "").startswith(sqlstates.RAISED) or _is_of_language(error)
    return None if is_of_rows(error) or has_text else error


def reason(error: psycopg.Error, columns: Mapping[str, str] | None = None) -> str:
    """In one line, with PostgreSQL's condition name and SQLSTATE, and without the values of a row."""
    if error.sqlstate is None:
        return " ".join(str(error).split()) or type(error).__name__
    diag = error.diag
    text = (diag.message_primary or "").strip()
    if is_of_rows(error) and (error.sqlstate not in sqlstates.WITHOUT_VALUES or _WITH_VALUE.match(text)):
        text = ""
    if error.sqlstate.startswith(sqlstates.RAISED) or _is_of_language(error):
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
    names = _COPIED_COLUMN.findall(context or "")
    return next((columns[name] for name in names if name in columns), None) if columns else None
