"""Records of row changes, in the JSON that Debezium's PostgreSQL connector writes without schemas. Pure.

A record's value has ``before``, ``after``, ``source``, ``op`` and ``transaction``. Debezium's ``ts_ms``, the time of
processing, is left out: so that an attempt that is repeated writes the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from einmal.ingest.postgresql.lsn import Lsn
from einmal.ingest.postgresql.pgoutput import UNCHANGED, RelationColumn, Value, Values
from einmal.ingest.postgresql.values import UnreadableValue, json_value
from einmal.types import Header

SCHEMA_HEADER: Final = "__einmal.schema"
"""Differs if and only if names or types of the columns do."""
OLD_KEY_HEADER: Final = "__debezium.oldkey"
NEW_KEY_HEADER: Final = "__debezium.newkey"

_EPOCH_MS: Final = 946_684_800_000
"""2000-01-01 UTC, from which PostgreSQL counts."""
_TOPIC_NAME_MAX: Final = 249
_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9._-]")

_encode: Final = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode
Json = dict[str, Any]


def encoded(value: Any) -> bytes:
    return _encode(value).encode()


def legal_topic(name: str) -> str:
    """As Debezium does: a character that no topic's name has becomes an underscore."""
    return _ILLEGAL.sub("_", name)[:_TOPIC_NAME_MAX]


def timestamp_ms(commit_time_us: int) -> int:
    return commit_time_us // 1_000 + _EPOCH_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class RowShape:
    """A table as its rows are encoded. ``prefix``: of the topic. ``key``: indexes of the columns of the record key."""

    prefix: str
    schema: str
    table: str
    topic: str
    columns: tuple[RelationColumn, ...]
    key: tuple[int, ...]
    headers: tuple[Header, ...]

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"

    def row(self, values: Values) -> Json:
        """Raises UnreadableValue."""
        return {
            column.name: json_value(value, column.type_id) for column, value in zip(self.columns, values, strict=True)
        }

    def key_of(self, values: Sequence[Value]) -> Json | None:
        """None for a table without a key. Raises UnreadableValue."""
        if any(values[i] is UNCHANGED for i in self.key):
            raise UnreadableValue(f"the key of a row of {self.name} is not in the log")
        return {self.columns[i].name: json_value(values[i], self.columns[i].type_id) for i in self.key} or None


def table_shape(
    prefix: str, schema: str, table: str, columns: tuple[RelationColumn, ...], key: Sequence[str]
) -> RowShape:
    """``key``: names of columns, all of them the table's."""
    digest = hashlib.sha256(encoded([[column.name, column.type_id] for column in columns])).hexdigest()[:16]
    names = [column.name for column in columns]
    return RowShape(
        prefix=prefix,
        schema=schema,
        table=table,
        topic=legal_topic(f"{prefix}.{schema}.{table}"),
        columns=columns,
        key=tuple(sorted(names.index(name) for name in key)),
        headers=(Header(SCHEMA_HEADER, digest.encode()),),
    )


def source_of(shape: RowShape, database: str, lsn: Lsn, commit_ms: int, xid: int | None) -> Json:
    """Where a row comes from. ``xid``: None for a row of a snapshot."""
    return {
        "connector": "postgresql",
        "name": shape.prefix,
        "ts_ms": commit_ms,
        "snapshot": "true" if xid is None else "false",
        "db": database,
        "schema": shape.schema,
        "table": shape.table,
        "txId": xid,
        "lsn": lsn,
    }
