"""How a PostgreSQL server is reached, as options have it. Pure, but for libpq's parser of connection strings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from einmal.options.values import OptionError, Options
from einmal.security.redaction import RedactedDict

_SSL: Final = ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl")
CONNECTING: Final = ("url", "user", "password", *_SSL, "statement_timeout", "lock_timeout")


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


def connecting(options: Options) -> Connecting:
    """Return how to connect, from the options in ``CONNECTING``. Raises OptionError."""
    return Connecting(
        conninfo=_conninfo(options),
        statement_timeout_ms=options.duration_ms("statement_timeout", 0),
        lock_timeout_ms=options.duration_ms("lock_timeout", 30_000),
    )


def _conninfo(options: Options) -> RedactedDict:
    url = options.required("url", "postgresql://db.example.com:5432/shop")
    known = _parsed(url)
    if "password" in known and "://" not in url:
        # A URI's password is hidden wherever settings are printed, this one would not be.
        raise OptionError('option "url" contains a password\nhint: .option("password", ...) keeps it out of logs')
    for name in ("user", "password", *_SSL):
        value = options.text(name)
        if value is not None:
            known[name] = value
    # With several hosts: the primary.
    return RedactedDict({"target_session_attrs": "primary", **known})


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
