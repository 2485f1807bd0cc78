"""The options of a PostgreSQL sink. Pure, but for libpq's parser of connection strings."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from einmal.options.sink import error_options
from einmal.options.values import OptionError, Options
from einmal.postgresql.names import TableName, identifier, table_name
from einmal.postgresql.options import CONNECTING, Connecting, connecting
from einmal.schemas.settings import ERRORS, ErrorSettings

NAMES: Final = (
    *CONNECTING, "table", "mode", "key", "order", "delete", "createTable", "schema", *ERRORS,
)  # fmt: skip
SECRETS: Final = ("password",)


class Mode(StrEnum):
    APPEND = "append"
    UPSERT = "upsert"
    SCD2 = "scd2"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresOptions:
    """``key``: the columns by which rows are found. ``order``: the columns that define which row of a key is the
    last of a batch. ``delete``: the boolean column of rows that delete. ``schema``: of einmal's own tables.
    ``errors``: what happens to rows that the table rejects."""

    connecting: Connecting
    table: TableName
    mode: Mode
    key: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    delete: str | None = None
    create_table: bool = True
    schema: str = field(default="public")
    errors: ErrorSettings = field(default_factory=ErrorSettings)


def postgres_options(options: Options) -> PostgresOptions:
    """Raises OptionError."""
    mode = (options.text("mode") or Mode.APPEND).lower()
    if mode not in list(Mode):
        raise OptionError(f'option "mode" is one of {", ".join(Mode)}, not {mode!r}')
    key, order = _columns(options, "key"), _columns(options, "order")
    delete = options.text("delete")
    if mode == Mode.APPEND:
        for name, value in (("key", key), ("order", order), ("delete", delete)):
            if value:
                raise OptionError(
                    f'option "{name}" has no effect with mode append\nhint: .option("mode", "upsert") or "scd2"'
                )
    elif not key:
        raise OptionError(f'option "key" is missing: mode {mode} finds rows by it\nhint: .option("key", "id")')
    return PostgresOptions(
        connecting=connecting(options),
        table=table_name("table", options.required("table", "public.orders")),
        mode=Mode(mode),
        key=key,
        order=order,
        delete=delete,
        create_table=options.flag("createTable", True),
        schema=identifier("schema", options.text("schema") or "public"),
        errors=error_options(options),
    )


def _columns(options: Options, name: str) -> tuple[str, ...]:
    columns = tuple(column.strip() for column in (options.text(name) or "").split(",") if column.strip())
    if len(set(columns)) < len(columns):
        raise OptionError(f'option "{name}" names a column twice: {", ".join(columns)}')
    return columns
