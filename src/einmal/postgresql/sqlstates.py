"""SQLSTATEs by their names, and what they mean: PostgreSQL's appendix A has the list. Pure.

Two characters are a class of errors, five are one error.
"""

from __future__ import annotations

from typing import Final

CONNECTION: Final = "08"
FEATURE_NOT_SUPPORTED: Final = "0A"
CARDINALITY_VIOLATION: Final = "21"
DATA_EXCEPTION: Final = "22"
INTEGRITY_CONSTRAINT_VIOLATION: Final = "23"
INVALID_AUTHORIZATION: Final = "28"
SQL_ROUTINE: Final = "2F"
EXTERNAL_ROUTINE: Final = "38"
EXTERNAL_ROUTINE_INVOCATION: Final = "39"
INVALID_CATALOG: Final = "3D"
INVALID_SCHEMA: Final = "3F"
TRANSACTION_ROLLBACK: Final = "40"
SYNTAX_OR_ACCESS_RULE: Final = "42"
WITH_CHECK_OPTION_VIOLATION: Final = "44"
INSUFFICIENT_RESOURCES: Final = "53"
PROGRAM_LIMIT_EXCEEDED: Final = "54"
OPERATOR_INTERVENTION: Final = "57"
SYSTEM_ERROR: Final = "58"
RAISED: Final = "P0"
"""By a function: PL/pgSQL's errors."""
INTERNAL: Final = "XX"

TRANSACTION_RESOLUTION_UNKNOWN: Final = "08007"
STATEMENT_NOT_SUPPORTED: Final = "0A000"
STRING_TOO_LONG: Final = "22001"
NUMERIC_OUT_OF_RANGE: Final = "22003"
CHARACTER_NOT_IN_REPERTOIRE: Final = "22021"
SEQUENCE_LIMIT_EXCEEDED: Final = "2200H"
BAD_COPY_FILE_FORMAT: Final = "22P04"
UNTRANSLATABLE_CHARACTER: Final = "22P05"
NOT_NULL_VIOLATION: Final = "23502"
FOREIGN_KEY_VIOLATION: Final = "23503"
UNIQUE_VIOLATION: Final = "23505"
CHECK_VIOLATION: Final = "23514"
EXCLUSION_VIOLATION: Final = "23P01"
UNKNOWN_DATABASE: Final = "3D000"
STATEMENT_COMPLETION_UNKNOWN: Final = "40003"
INSUFFICIENT_PRIVILEGE: Final = "42501"
UNDEFINED_COLUMN: Final = "42703"
UNDEFINED_OBJECT: Final = "42704"
DUPLICATE_OBJECT: Final = "42710"
UNDEFINED_TABLE: Final = "42P01"
TOO_MANY_CONNECTIONS: Final = "53300"
CONFIGURATION_LIMIT_EXCEEDED: Final = "53400"
NOT_IN_PREREQUISITE_STATE: Final = "55000"
OBJECT_IN_USE: Final = "55006"
LOCK_NOT_AVAILABLE: Final = "55P03"
ADMIN_SHUTDOWN: Final = "57P01"
CRASH_SHUTDOWN: Final = "57P02"
CANNOT_CONNECT_NOW: Final = "57P03"
UNDEFINED_FILE: Final = "58P01"

OF_ROWS: Final = frozenset(
    {
        CARDINALITY_VIOLATION,
        DATA_EXCEPTION,
        INTEGRITY_CONSTRAINT_VIOLATION,
        WITH_CHECK_OPTION_VIOLATION,
        PROGRAM_LIMIT_EXCEEDED,
    }
)
"""Classes for rows that a table rejects. Cardinality: a rule of the table looks for one row and finds two; limits: a
value that is too long for an index, JSON that is too deep."""
NOT_OF_ROWS: Final = frozenset({SEQUENCE_LIMIT_EXCEEDED, BAD_COPY_FILE_FORMAT})
"""Codes in these classes that are not about rows."""
WILL_AGAIN: Final = OF_ROWS | {
    FEATURE_NOT_SUPPORTED,
    INVALID_AUTHORIZATION,
    SQL_ROUTINE,
    EXTERNAL_ROUTINE,
    EXTERNAL_ROUTINE_INVOCATION,
    INVALID_CATALOG,
    INVALID_SCHEMA,
    SYNTAX_OR_ACCESS_RULE,
    RAISED,
}
"""Classes that every other attempt would meet, too: permissions, missing columns, RAISE in a trigger."""
PASSING: Final = (CONNECTION, TRANSACTION_ROLLBACK, INSUFFICIENT_RESOURCES, OPERATOR_INTERVENTION, SYSTEM_ERROR)
"""Classes of the state of the server, which passes."""
OF_FUNCTIONS: Final = frozenset({FEATURE_NOT_SUPPORTED, SYNTAX_OR_ACCESS_RULE, INTERNAL})
"""Classes for the text of a function, unless it raises them itself."""
NOT_UP: Final = frozenset({ADMIN_SHUTDOWN, CRASH_SHUTDOWN, CANNOT_CONNECT_NOW, TOO_MANY_CONNECTIONS})
"""A server that refuses connections for a while."""
COMMIT_UNKNOWN: Final = frozenset({TRANSACTION_RESOLUTION_UNKNOWN, STATEMENT_COMPLETION_UNKNOWN})
WITHOUT_VALUES: Final = frozenset(
    {
        STRING_TOO_LONG,
        NUMERIC_OUT_OF_RANGE,
        CHARACTER_NOT_IN_REPERTOIRE,
        UNTRANSLATABLE_CHARACTER,
        NOT_NULL_VIOLATION,
        FOREIGN_KEY_VIOLATION,
        UNIQUE_VIOLATION,
        CHECK_VIOLATION,
        EXCLUSION_VIOLATION,
        INSUFFICIENT_PRIVILEGE,
    }
)
"""Their primary message may name columns, constraints and types; others quote the value."""
