"""The options of a PostgreSQL destination. Pure, but for libpq's parser of connection strings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from einmal.options.sink import error_options
from einmal.options.values import OptionError, Options
from einmal.schemas.settings import ERRORS, ErrorSettings
from einmal.security.redaction import RedactedDict
from einmal.sinks.postgres.names import TableName, identifier, table_name

SSL: Final = ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl")
NAMES: Final = (
    "url", "user", "password", *SSL, "table", "mode", "key", "order", "delete", "createTable", "schema",
    "statement_timeout", "lock_timeout", *ERRORS,
)  # fmt: skip
SECRETS: Final = ("password",)
_DEFAULTS: Final = {
    "connect_timeout": "10",
    "client_encoding": "UTF8",
    # A server that died silently is noticed in some 25 s, also while an answer is outstanding.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",
    # With several hosts: the primary.
    "target_session_attrs": "primary",
}


class Mode(StrEnum):
    APPEND = "append"
    UPSERT = "upsert"
    SCD2 = "scd2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connecting:
    """How a session is opened, on the driver and in tasks. ``conninfo``: libpq's parameters, which print without
    secrets. Times in ms; 0: no limit."""

    conninfo: RedactedDict
    statement_timeout_ms: int
    lock_timeout_ms: int

    def __str__(self) -> str:
        known = self.conninfo
        hosts = known.get("host", known.get("hostaddr", "the local socket"))
        port = f":{known['port']}" if "port" in known else ""
        return f"{known.get('dbname', known.get('service', 'the default database'))} on {hosts}{port}"


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


def connecting(options: Options) -> Connecting:
    """Return how to connect, from ``url``, ``user``, ``password``, the names in ``SSL`` and the timeouts. Raises
    OptionError."""
    return Connecting(
        conninfo=_conninfo(options),
        statement_timeout_ms=options.duration_ms("statement_timeout", 0),
        lock_timeout_ms=options.duration_ms("lock_timeout", 30_000),
    )


def _columns(options: Options, name: str) -> tuple[str, ...]:
    columns = tuple(each.strip() for each in (options.text(name) or "").split(",") if each.strip())
    if len(set(columns)) < len(columns):
        raise OptionError(f'option "{name}" names a column twice: {", ".join(columns)}')
    return columns


def _conninfo(options: Options) -> RedactedDict:
    url = options.required("url", "postgresql://db.example.com:5432/shop")
    known = _parsed(url)
    if "password" in known and "://" not in url:
        # A URI's password is hidden wherever settings are printed, this one would not be.
        raise OptionError('option "url" contains a password\nhint: .option("password", ...) keeps it out of logs')
    for name in ("user", "password", *SSL):
        value = options.text(name)
        if value is not None:
            known[name] = value
    return RedactedDict({**_DEFAULTS, **known})


def _parsed(url: str) -> dict[str, str]:
    if url.startswith("jdbc:"):
        raise OptionError(
            'option "url" is a URI of libpq, not of JDBC\nhint: leave "jdbc:" away, and set user and password as '
            "options"
        )
    try:
        known: Mapping[str, Any] = conninfo_to_dict(url)
    except psycopg.Error as error:
        # libpq's text may repeat the string, with its password.
        raise OptionError(
            'option "url" is not a connection string of libpq\n'
            'hint: .option("url", "postgresql://db.example.com:5432/shop")'
        ) from (None if "password" in url or "@" in url else error)
    return {name: str(value) for name, value in known.items() if value is not None}
