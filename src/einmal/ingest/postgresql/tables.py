"""Tables of the stream as they are announced, and what differs from the last announcement. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from einmal.ingest.postgresql.envelope import RowShape, table_shape
from einmal.ingest.postgresql.outbox import TOPIC, OutboxTable, outbox_table
from einmal.ingest.postgresql.pgoutput import MalformedMessage, RelationColumn, RelationMessage
from einmal.ingest.source import SourceNotice

_KEY_FROM_CATALOG: Final = "fn"
"""Replica identities whose columns are not a key: all columns, or none."""
_SCHEMA_CHANGE: Final = "schema change"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Where rows go. ``prefix``: the first part of topics' names (``topic.prefix``). ``outbox``: tables of events, as
    ``schema.table``. ``tombstones``: a deleted row's record is followed by a null value, for compaction."""

    prefix: str
    outbox: frozenset[str] = frozenset()
    outbox_topic: str = TOPIC
    tombstones: bool = True


@dataclass(slots=True)
class AnnouncedTables:
    """``primary_key``: names of its columns by the OID of a table, as they are now; asked for where the replica
    identity is no key. ``database``: its name."""

    routing: Routing
    primary_key: Callable[[int], Sequence[str]]
    database: str = ""
    _announced: dict[int, tuple[int, RowShape | OutboxTable]] = field(default_factory=dict)
    """The number of columns, and how rows are encoded."""
    _last: dict[int, RelationMessage] = field(default_factory=dict)
    _notices: list[SourceNotice] = field(default_factory=list)

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
        """The table of a change; ``rows``: its values. Raises MalformedMessage."""
        if relation_id not in self._announced:
            raise MalformedMessage(f"a change of table {relation_id}, which was not announced")
        columns, shape = self._announced[relation_id]
        if any(row is not None and len(row) != columns for row in rows):
            raise MalformedMessage(f"a row of {shape.name} without its {columns} columns")
        return shape

    def take_notices(self) -> list[SourceNotice]:
        notices, self._notices = self._notices, []
        return notices

    def note(self, notice: SourceNotice) -> None:
        self._notices.append(notice)

    def _key(self, message: RelationMessage) -> Sequence[str]:
        if message.replica_identity not in _KEY_FROM_CATALOG:
            return [each.name for each in message.columns if each.in_identity]
        key = self.primary_key(message.relation_id)
        # The catalog may be ahead of the stream.
        return key if {each.name for each in message.columns}.issuperset(key) else ()


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
    return {each.name: f"(type {each.type_id})" for each in message.columns}
