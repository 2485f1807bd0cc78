"""Spark's columns and PostgreSQL's: which type fits which, what is created, what must be changed first.

The mapping is strict: a value that might not fit is refused before anything is written, with the cast to make.
docs/databases.md has the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from psycopg import sql

from einmal.postgresql.names import NAME_BYTES_MAX, quoted
from einmal.sinks.postgres.options import Mode, PostgresOptions
from einmal.sinks.postgres.staging import StagingColumn, Wide
from einmal.sinks.postgres.table import TableColumn, TableShape
from einmal.sinks.row_schema import ArrayRowType, DecimalRowType, MapRowType, RowField, RowSchema, RowType

VALID_FROM: Final = "valid_from"
VALID_TO: Final = "valid_to"
IS_CURRENT: Final = "is_current"
DELETES: Final = "deletes"
"""The staging column of ``delete``."""

_CREATED: Final[dict[str, str]] = {
    "boolean": "boolean",
    "byte": "smallint",
    "short": "smallint",
    "integer": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
}
_FITS: Final[dict[str, frozenset[str]]] = {
    "boolean": frozenset({"bool"}),
    "byte": frozenset({"int2", "int4", "int8", "numeric", "float4", "float8"}),
    "short": frozenset({"int2", "int4", "int8", "numeric", "float4", "float8"}),
    "integer": frozenset({"int4", "int8", "numeric", "float8"}),
    "long": frozenset({"int8", "numeric"}),
    "float": frozenset({"float4", "float8"}),
    "double": frozenset({"float8"}),
    "decimal": frozenset({"numeric"}),
    "binary": frozenset({"bytea"}),
    "date": frozenset({"date"}),
    "timestamp": frozenset({"timestamptz"}),
    "timestamp_ntz": frozenset({"timestamp"}),
}
_DIGITS: Final[dict[str, int]] = {
    "byte": 3,
    "short": 5,
    "integer": 10,
    "long": 19,
}
_OF_TEXT: Final = "SEIU"
"""Categories of types whose input is text that Spark has no type for: strings, enums, addresses, uuid, json and others.
What is no value of theirs is rejected row by row."""
_NOT_OF_TEXT: Final = frozenset({"name", *(base for fit in _FITS.values() for base in fit)})
"""Types of the categories in ``_OF_TEXT`` that are left out: those that Spark has a type for, and those that text is
cut for without an error."""
_TEXT: Final = "S"
_TEXT_ARRAYS: Final = frozenset({"_text", "_varchar", "_bpchar"})
_JSON: Final = frozenset({"json", "jsonb"})
_TIMES: Final = frozenset({"timestamp", "timestamptz"})
_EXACT: Final = frozenset(
    {"bool", "int2", "int4", "int8", "text", "varchar", "bytea", "date", "timestamp", "timestamptz", "uuid"}
)
"""Types whose equal values are the same. In others 1.0 equals 1.00, 0 equals -0, and "a" equals "A"."""
_MICROSECONDS: Final = 6
"""Digits of a second, which Spark's times have and PostgreSQL's unless a column has fewer: its modifier."""
_VARHDRSZ: Final = 4


@dataclass(frozen=True, slots=True)
class Sought:
    """A frame's column, and what it is for."""

    field: RowField
    column: str | None
    """Column of the table; None: it is only needed to decide."""


def is_json(data_type: RowType) -> bool:
    """Whether the staging job makes it JSON: what has fields, and arrays of anything but plain values."""
    if isinstance(data_type, ArrayRowType):
        return data_type.element.kind not in (*_FITS, "string")
    return data_type.kind in ("struct", "map", "variant")


def created_type(data_type: RowType) -> str | None:
    """The type of a column that is created; None where there is no mapping."""
    if isinstance(data_type, DecimalRowType):
        return f"numeric({data_type.precision},{data_type.scale})"
    if is_json(data_type):
        return None if _has_no_mapping(data_type) else "jsonb"
    if isinstance(data_type, ArrayRowType):
        element = created_type(data_type.element)
        return None if element is None else f"{element}[]"
    return "text" if data_type.kind == "string" else _CREATED.get(data_type.kind)


def _has_no_mapping(data_type: RowType) -> bool:
    match data_type:
        case RowSchema():
            return any(created_type(field.type) is None for field in data_type)
        case MapRowType():
            return created_type(data_type.key) is None or created_type(data_type.value) is None
        case ArrayRowType():
            return created_type(data_type.element) is None
    return False


def fits(data_type: RowType, column: TableColumn) -> bool:
    """Whether every value of the type is one of the column's, lengths and syntax of text aside."""
    if isinstance(data_type, ArrayRowType) and column.base.startswith("_") and not is_json(data_type):
        return _scalar_fits(data_type.element, column.base[1:], column.element_category, column.modifier)
    if isinstance(data_type, ArrayRowType) or is_json(data_type):
        return is_json(data_type) and created_type(data_type) is not None and column.base in _JSON
    return _scalar_fits(data_type, column.base, column.category, column.modifier)


def _scalar_fits(data_type: RowType, base: str, category: str, modifier: int) -> bool:
    if data_type.kind == "string":
        return category in _OF_TEXT and base not in _NOT_OF_TEXT
    if base not in _FITS.get(data_type.kind, ()):
        return False
    if base in _TIMES and 0 <= modifier < _MICROSECONDS:
        # It would round.
        return False
    if base != "numeric" or modifier < _VARHDRSZ:
        return True
    precision, scale = (modifier - _VARHDRSZ) >> 16, ((modifier - _VARHDRSZ) & 0x7FF ^ 1024) - 1024
    if isinstance(data_type, DecimalRowType):
        return scale >= data_type.scale and precision - scale >= data_type.precision - data_type.scale
    return scale >= 0 and precision - scale >= _DIGITS[data_type.kind]


# --- a frame and a table ------------------------------------------------------------------------------------------


def sought(schema: RowSchema, options: PostgresOptions, shape: TableShape | None) -> list[Sought]:
    """The columns of a frame, in order, and where they go."""
    deciding = {name.lower() for name in (*options.order, options.delete or "")}
    columns = []
    for field in schema:
        column = None if shape is None else shape.find(field.name)
        is_deciding = field.name.lower() in deciding
        is_stored = field.name.lower() != (options.delete or "").lower() and (not is_deciding or column is not None)
        name = column.name if column is not None else field.name
        columns.append(Sought(field, name if is_stored else None))
    return columns


def mapped(schema: RowSchema, shape: TableShape, options: PostgresOptions) -> list[StagingColumn]:
    """The columns of the staging table for a frame that has no problems; of types that COPY can fill with every row,
    where rows that the table's types reject are tolerated."""
    columns = []
    for number, frame_column in enumerate(sought(schema, options, shape)):
        column = None if frame_column.column is None else shape.find(frame_column.column)
        definition = created_type(frame_column.field.type) if column is None else column.definition
        is_delete = options.delete is not None and frame_column.field.name.lower() == options.delete.lower()
        columns.append(
            StagingColumn(
                name=DELETES if is_delete else f"c{number}",
                # As the catalog or this module writes it, never as a user does.
                definition=sql.SQL((definition or "text") + _collate(column)),
                source=frame_column.field.name,
                column=None if column is None else column.name,
                wide=_wide(f"c{number}", frame_column.field.type, column) if options.errors.tolerates else None,
                is_exact=column is None or (column.base in _EXACT and not column.collation),
            )
        )
    return columns


def _collate(column: TableColumn | None) -> str:
    """Return the COLLATE clause of a column: PostgreSQL compares no values of two columns with different collations."""
    return f" COLLATE {column.collation}" if column is not None and column.collation else ""


def _wide(name: str, data_type: RowType, column: TableColumn | None) -> Wide | None:
    """None: no value of the type is rejected for its type. The cast of an INSERT is not that of CAST, which cuts text
    to the length of its type: text becomes a type that is text only by the INSERT itself."""
    if column is None:
        return None
    value = sql.Identifier(name)
    if isinstance(data_type, ArrayRowType) and not is_json(data_type):
        is_text = data_type.element.kind == "string"
        definition, is_plain = "text[]", column.base in _TEXT_ARRAYS
    else:
        is_text = data_type.kind == "string" or is_json(data_type)
        definition, is_plain = "text", column.category == _TEXT
    if not is_text:
        return Wide(sql.SQL(created_type(data_type) or "text"), value) if column.is_domain else None
    if column.definition == definition:
        return None
    cast = sql.SQL("CAST({} AS {})").format(value, sql.SQL(column.definition))
    return Wide(sql.SQL(definition), value if is_plain else cast)


def problems(schema: RowSchema, options: PostgresOptions, shape: TableShape | None) -> list[tuple[str, str]]:
    """Return what has to be changed before rows of this schema can be written. ``shape`` None: the table is created."""
    findings = _problems_of_options(schema, options)
    if shape is not None and shape.problem:
        return [(f"{shape.name} {shape.problem}", "write to an ordinary or a partitioned table")]
    for frame_column in sought(schema, options, shape):
        findings += _problems_of_column(frame_column, options, shape)
    if shape is not None:
        findings += _problems_of_table(schema, options, shape)
    return findings


def _problems_of_options(schema: RowSchema, options: PostgresOptions) -> list[tuple[str, str]]:
    names = {field.name.lower(): field.type for field in schema}
    findings = []
    fields = schema.names
    for lower_name in names:
        if len(same := [f'"{name}"' for name in fields if name.lower() == lower_name]) > 1:
            findings.append((f"columns of the query have the same name, but for case: {', '.join(same)}", "rename one"))
    wanted = [("key", name) for name in options.key] + [("order", name) for name in options.order]
    wanted += [("delete", options.delete)] if options.delete else []
    wanted += [("mode scd2", VALID_FROM)] if options.mode is Mode.SCD2 else []
    for option, name in wanted:
        if name.lower() not in names:
            findings.append((f'{option} needs column "{name}", which the query does not have', "add it to the query"))
    if options.delete and (delete_type := names.get(options.delete.lower())) and delete_type.kind != "boolean":
        findings.append(
            (f'option "delete" names "{options.delete}", which is not boolean', "withColumn(name, condition)")
        )
    is_time = VALID_FROM not in names or names[VALID_FROM].kind in ("timestamp", "timestamp_ntz")
    if options.mode is Mode.SCD2 and not is_time:
        findings.append((f'"{VALID_FROM}" is not a timestamp', "it is the time from which a version is valid"))
    return findings


def _problems_of_column(
    frame_column: Sought, options: PostgresOptions, shape: TableShape | None
) -> list[tuple[str, str]]:
    name, kind = frame_column.field.name, frame_column.field.type
    if created_type(kind) is None:
        return [(f'column "{name}" has type {kind}, which has no counterpart', "cast it, or drop it")]
    if not name or "\0" in name:
        # The client would end the statement at a NUL.
        return [(f"no column can be named {name!r}", "rename it")]
    if frame_column.column is None:
        return []
    if options.mode is Mode.SCD2 and frame_column.column in (VALID_TO, IS_CURRENT):
        return [(f'column "{name}" is set by mode scd2', "drop it in the query")]
    if shape is None:
        is_long = len(name.encode()) > NAME_BYTES_MAX
        return [(f'column "{name}" is longer than {NAME_BYTES_MAX} bytes', "rename it")] if is_long else []
    column = shape.find(frame_column.column)
    if column is None:
        hint = f"ALTER TABLE {shape.name} ADD COLUMN {quoted(name)} {created_type(kind)}; or drop it in the query"
        return [(f'{shape.name} has no column "{name}"', hint)]
    if not column.is_written:
        return [(f'column "{column.name}" of {shape.name} is generated', "drop it in the query")]
    if not column.is_ordered and name.lower() in {one.lower() for one in options.order}:
        what = f'option "order" names "{name}", whose type {column.definition} has no order'
        return [(what, "name columns whose values can be compared")]
    if not fits(kind, column):
        change = f"ALTER COLUMN {quoted(column.name)} TYPE {created_type(kind)}"
        hint = f"cast it in the query, or ALTER TABLE {shape.name} {change}"
        return [(f'column "{name}" has type {kind}, {shape.name} has {column.definition}', hint)]
    return []


def _problems_of_table(schema: RowSchema, options: PostgresOptions, shape: TableShape) -> list[tuple[str, str]]:
    findings = []
    written = {frame_column.column for frame_column in sought(schema, options, shape)}
    if options.mode is Mode.SCD2:
        findings += _problems_of_versions(options, shape)
        written |= {VALID_TO, IS_CURRENT}
    findings += [
        (f'column "{column.name}" of {shape.name} is NOT NULL and has no default', "add it to the query")
        for column in shape.columns
        if column.name not in written and not column.may_be_absent
    ]
    key = frozenset(column.name for name in options.key if (column := shape.find(name)) is not None)
    names = ", ".join(quoted(name) for name in sorted(key))
    if options.mode is Mode.UPSERT and key not in shape.keys:
        findings.append((f"{shape.name} has no unique key ({names})", f"ALTER TABLE {shape.name} ADD UNIQUE ({names})"))
    if options.mode is Mode.SCD2 and key not in shape.partial_keys:
        hint = f"CREATE UNIQUE INDEX ON {shape.name} ({names}) WHERE {IS_CURRENT}"
        findings.append((f"{shape.name} does not keep the current version of a key ({names}) unique", hint))
    return findings


def _problems_of_versions(options: PostgresOptions, shape: TableShape) -> list[tuple[str, str]]:
    findings = []
    times = {"timestamptz", "timestamp"}
    for name, bases in ((VALID_FROM, times), (VALID_TO, times), (IS_CURRENT, {"bool"})):
        column = shape.find(name)
        if column is None or column.name != name or column.base not in bases:
            hint = f"ALTER TABLE {shape.name} ADD COLUMN {name} {'boolean' if name == IS_CURRENT else 'timestamptz'}"
            findings.append((f"mode {options.mode} needs column {name} in {shape.name}", hint))
    return findings


def create_statement(schema: RowSchema, options: PostgresOptions) -> list[sql.Composed]:
    """DDL for a table with these columns, and with the key that the mode needs."""
    columns = [
        # The type's name is this module's own text.
        sql.SQL("{} {}").format(
            sql.Identifier(frame_column.column), sql.SQL(created_type(frame_column.field.type) or "text")
        )
        for frame_column in sought(schema, options, None)
        if frame_column.column is not None
    ]
    exact = {field.name.lower(): field.name for field in schema}
    key = sql.SQL(", ").join(sql.Identifier(exact[name.lower()]) for name in options.key)
    name = _identifier(options)
    statements: list[sql.Composed] = []
    if options.mode is Mode.UPSERT:
        columns.append(sql.SQL("PRIMARY KEY ({})").format(key))
    elif options.mode is Mode.SCD2:
        kind = next(field.type for field in schema if field.name.lower() == VALID_FROM)
        columns.append(sql.SQL("{} {}").format(sql.Identifier(VALID_TO), sql.SQL(created_type(kind) or "text")))
        columns.append(sql.SQL("{} boolean NOT NULL").format(sql.Identifier(IS_CURRENT)))
        statements.append(
            sql.SQL("CREATE UNIQUE INDEX ON {} ({}) WHERE {}").format(name, key, sql.Identifier(IS_CURRENT))
        )
        # By which late rows of deleted keys are found.
        statements.append(sql.SQL("CREATE INDEX ON {} ({}, {})").format(name, key, sql.Identifier(VALID_TO)))
    return [sql.SQL("CREATE TABLE {} ({})").format(name, sql.SQL(", ").join(columns)), *statements]


def _identifier(options: PostgresOptions) -> sql.Identifier:
    parts: Sequence[str] = [
        component for component in (options.table.schema, options.table.name) if component is not None
    ]
    return sql.Identifier(*parts)
