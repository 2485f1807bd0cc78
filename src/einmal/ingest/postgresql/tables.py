"""Tables of the stream as they are announced, and what differs from the last announcement. Pure."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from einmal.ingest.postgresql.envelope import RowShape, table_shape
from einmal.ingest.postgresql.outbox import TOPIC, OutboxTable, outbox_table
from einmal.ingest.postgresql.pgoutput import MalformedMessage, RelationColumn, RelationMessage
from einmal.ingest.source import SourceNotice, SourceRefused

KEY_FROM_CATALOG: Final = "fn"
"""Replica identities whose columns are not a key: all columns, or none."""
_SCHEMA_CHANGE: Final = "schema change"
_OUTBOX_UPDATED: Final = "updated event"


class KnownKey(NamedTuple):
    """Which columns of a table were its key, by name and index, while it had certain columns. ``names`` and ``types``:
    digests of these: a position has those of all tables, and each commit has the position."""

    names: str
    types: str
    key: tuple[int, ...]
    key_names: tuple[str, ...]


class CatalogTable(NamedTuple):
    """A table as it is now: its columns in order, without generated ones, and those of its primary key."""

    columns: tuple[str, ...]
    types: tuple[int, ...]
    key: tuple[str, ...]

    def explains(self, names: Sequence[str]) -> bool:
        """Whether a published table with these columns can be this one. A publication may have a list of columns."""
        remaining = iter(self.columns)
        return all(name in remaining for name in names) and set(self.key).issubset(names)

    def known_key(self) -> KnownKey:
        indexes = tuple(sorted(map(self.columns.index, self.key)))
        names = tuple(self.columns[index] for index in indexes)
        return KnownKey(_digest(self.columns), _digest(self.types), indexes, names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Where rows go. ``prefix``: the first part of topics' names (``topic.prefix``). ``outbox``: tables of events, as
    ``schema.table``. ``tombstones``: a deleted row's record is followed by a null value, for compaction. ``keys``:
    declared columns of the record key, by table (``message.key.columns``): of several, those that the table had at the
    time count. ``truncates``: TRUNCATE is an event."""

    prefix: str
    outbox: frozenset[str] = frozenset()
    outbox_topic: str = TOPIC
    tombstones: bool = True
    keys: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    truncates: bool = True

    def declared(self, table: str, columns: Iterable[str]) -> list[tuple[str, ...]]:
        """The declared keys of a table while it has these columns. One that is part of another one is left out: where
        both fit, the longer one would never count."""
        names = set(columns)
        fitting = [key for key in self.keys.get(table, ()) if names.issuperset(key)]
        return [key for key in fitting if not any(set(key) < set(other) for other in fitting)]


@dataclass(slots=True)
class AnnouncedTables:
    """``catalog``: a table as it is now, by its OID; asked for where the replica identity is no key. ``database``: its
    name.

    Such a key is not in the log, and the catalog may be ahead of the log: a column was renamed, or the table dropped,
    while its earlier changes were not read yet. So the position keeps ``known``: the last key of each of these tables
    that was certain.
    """

    routing: Routing
    catalog: Callable[[int], CatalogTable | None]
    database: str = ""
    known: Mapping[int, KnownKey] = field(default_factory=dict)
    _announced: dict[int, tuple[int, RowShape | OutboxTable]] = field(default_factory=dict)
    """The number of columns, and how rows are encoded."""
    _last: dict[int, RelationMessage] = field(default_factory=dict)
    _unknown: dict[int, SourceRefused] = field(default_factory=dict)
    """Why the key of an announced table is not known."""
    _notices: list[SourceNotice] = field(default_factory=list)
    _updated: Counter[str] = field(default_factory=Counter)
    """Updates of events, by outbox."""
    _without_declared: set[str] = field(default_factory=set)
    """Reported tables, which have no declared key."""

    def restart(self) -> None:
        """A new decoding: the server announces each table again before its first change."""
        self._announced.clear()

    def announce(self, message: RelationMessage, *, is_repeated: bool) -> None:
        """``is_repeated``: before changes that are skipped. Raises SourceRefused for an outbox without its columns."""
        last = self._last.get(message.relation_id, message)
        if last != message and not is_repeated:
            self._notices.append(_notice(last, message))
        self._last[message.relation_id] = last if is_repeated else message
        shape = self.shape(message.schema, message.table, message.columns, self._key(message))
        self._announced[message.relation_id] = (len(message.columns), shape)

    def shape(
        self, schema: str, table: str, columns: tuple[RelationColumn, ...], key: Sequence[str]
    ) -> RowShape | OutboxTable:
        """Raises SourceRefused."""
        name = f"{schema}.{table}"
        if name in self.routing.outbox:
            return outbox_table(name, columns, self.routing.outbox_topic)
        return table_shape(self.routing.prefix, schema, table, columns, key)

    def of(self, relation_id: int, *rows: Sequence[object] | None) -> RowShape | OutboxTable:
        """The table of a change; ``rows``: its values. Raises MalformedMessage, and SourceRefused where the table's key
        is not known."""
        if (error := self._unknown.get(relation_id)) is not None:
            raise error
        if relation_id not in self._announced:
            raise MalformedMessage(f"a change of table {relation_id}, which was not announced")
        columns, shape = self._announced[relation_id]
        if any(row is not None and len(row) != columns for row in rows):
            raise MalformedMessage(f"a row of {shape.name} without its {columns} columns")
        return shape

    def take_notices(self) -> list[SourceNotice]:
        """Return those since the last call."""
        notices, self._notices = self._notices, []
        updated, self._updated = self._updated, Counter()
        return notices + [
            SourceNotice(
                _OUTBOX_UPDATED,
                table,
                f"the outbox {table} was updated ({count:,} rows): an event is what was inserted",
            )
            for table, count in updated.items()
        ]

    def count_update(self, outbox: str) -> None:
        """Count an update of an event, which is none itself."""
        self._updated[outbox] += 1

    def declared_key(self, table: str, names: Sequence[str]) -> tuple[str, ...] | None:
        """The declared key of a table while it has these columns. Raises SourceRefused where there are several."""
        keys = self.routing.declared(table, names)
        if len(keys) > 1:
            raise SourceRefused(
                f"message.key.columns declares {_alternatives(keys)} of {table}, whose columns at the time were "
                f"{', '.join(names)}: which of them is the key is not known",
                "leave out all but the key that it had with these columns; where an earlier change needs another one, "
                "max.batch.size = 1 ingests everything before this change first",
            )
        return keys[0] if keys else None

    def needs_catalog(self, schema: str, table: str, replica_identity: str, columns: Iterable[str]) -> bool:
        """Whether the key of a table with these columns is neither in the log nor declared."""
        name = f"{schema}.{table}"
        is_given = name in self.routing.outbox or self.routing.declared(name, columns)
        return replica_identity in KEY_FROM_CATALOG and not is_given

    def _key(self, message: RelationMessage) -> Sequence[str]:
        """Where it is not known, the table's next change is refused: one that was ingested before does not need it."""
        self._unknown.pop(message.relation_id, None)
        if f"{message.schema}.{message.table}" in self.routing.outbox:
            # The key of an event is a column of its own.
            return ()
        names = [column.name for column in message.columns]
        try:
            if (declared := self._declared(message, names)) is not None:
                return declared
            if message.replica_identity not in KEY_FROM_CATALOG:
                return [column.name for column in message.columns if column.in_identity]
            key = self._explained(message, names)
        except SourceRefused as error:
            self._unknown[message.relation_id] = error
            return ()
        self.known = {**self.known, message.relation_id: known_key(message.columns, key)}
        return key

    def _declared(self, message: RelationMessage, names: list[str]) -> Sequence[str] | None:
        """None: no key is declared for a table with these columns. Raises SourceRefused."""
        table = f"{message.schema}.{message.table}"
        if table not in self.routing.keys:
            return None
        declared = self.declared_key(table, names)
        if declared is None:
            if table not in self._without_declared:
                text = f"{table} has no {_alternatives(self.routing.keys[table])} (message.key.columns)"
                self._notices.append(SourceNotice("declared key", table, f"{text}: its own key is used"))
                self._without_declared.add(table)
            return None
        self._without_declared.discard(table)
        identity = {column.name for column in message.columns if column.in_identity}
        if message.replica_identity not in KEY_FROM_CATALOG and not identity.issuperset(declared):
            raise SourceRefused(
                f"message.key.columns declares {', '.join(declared)} of {table}, which the log lacks of deleted "
                f"rows: their replica identity has other columns ({', '.join(sorted(identity)) or 'none'})",
                "leave the table out of message.key.columns, or declare columns of the replica identity; what is "
                f"written after ALTER TABLE {table} REPLICA IDENTITY FULL can have any key",
            )
        return declared

    def _explained(self, message: RelationMessage, names: list[str]) -> Sequence[str]:
        """The key of a table that the log announces with these columns."""
        known = self.known.get(message.relation_id)
        if known is not None and known.names == _digest(names):
            return known.key_names
        now = self.catalog(message.relation_id)
        if now is not None and now.explains(names):
            return now.key
        types = _digest(column.type_id for column in message.columns)
        for candidate in (known, None if now is None else now.known_key()):
            if candidate is not None and set(candidate.key_names).issubset(names):
                return candidate.key_names
            if candidate is not None and candidate.types == types:
                # Columns were renamed, and nothing else.
                return [names[index] for index in candidate.key]
        table = f"{message.schema}.{message.table}"
        declared = self.routing.keys.get(table, ())
        without = f", without the declared {_alternatives(declared)}" if declared else ""
        raise SourceRefused(
            f"the key of {table} is not known for changes that it had with the columns {', '.join(names)}{without}: "
            "its replica identity is no key, and the table was altered or dropped since, or the publication's list of "
            "columns lacks the key",
            f'declare it under the names of these columns: message.key.columns = "{_declaration(table, declared)}"; a '
            f'table whose columns had several names is there several times, "{table}:BEFORE;{table}:AFTER"; REPLICA '
            "IDENTITY DEFAULT has the key in the log",
        )


def _declaration(table: str, declared: Iterable[Sequence[str]]) -> str:
    """Return the value of message.key.columns with one more key of the table."""
    return ";".join([*(f"{table}:{','.join(key)}" for key in declared), f"{table}:COLUMN,..."])


def _alternatives(keys: Iterable[Sequence[str]]) -> str:
    return " or ".join(", ".join(key) for key in keys)


def known_key(columns: Sequence[RelationColumn], key: Sequence[str]) -> KnownKey:
    """The key of a table while it has these columns."""
    types = tuple(column.type_id for column in columns)
    return CatalogTable(tuple(column.name for column in columns), types, tuple(key)).known_key()


def _digest(values: Iterable[str | int]) -> str:
    """Return the digest of a sequence. Two that are compared are of one table: 48 bits suffice."""
    data = "\0".join(map(str, values)).encode()
    return base64.b64encode(hashlib.blake2b(data, digest_size=6).digest()).decode()


def _notice(last: RelationMessage, now: RelationMessage) -> SourceNotice:
    before, after = _described(last), _described(now)
    changes = [f"column {name} {kind} added" for name, kind in after.items() if name not in before]
    changes += [f"column {name} dropped" for name in before if name not in after]
    changes += [
        f"column {name} is {kind}, was {before[name]}"
        for name, kind in after.items()
        if name in before and before[name] != kind
    ]
    if (last.schema, last.table) != (now.schema, now.table):
        changes.append(f"it was {last.schema}.{last.table}: its records go to another topic")
    if last.replica_identity != now.replica_identity:
        changes.append(f"replica identity {now.replica_identity!r}, was {last.replica_identity!r}")
    if not changes:
        changes.append("columns are in another order, or another key")
    name = f"{now.schema}.{now.table}"
    return SourceNotice(_SCHEMA_CHANGE, name, f"{name} has changed: {'; '.join(changes)}")


def _described(message: RelationMessage) -> Mapping[str, str]:
    return {column.name: f"(type {column.type_id})" for column in message.columns}
