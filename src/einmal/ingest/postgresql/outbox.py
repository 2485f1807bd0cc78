"""An outbox: a table whose inserted rows are events. Pure.

A service writes an event in the transaction of the change that it is about, and may delete it at once: the insert is in
the log of the database. Columns and headers are those of Debezium's outbox event router.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from einmal.ingest.postgresql.envelope import legal_topic
from einmal.ingest.postgresql.pgoutput import RelationColumn, Unchanged, Value
from einmal.ingest.postgresql.values import UnreadableValue
from einmal.ingest.source import IngestRecord, SourceRefused
from einmal.types import Header

COLUMNS: Final = ("id", "aggregatetype", "aggregateid", "type", "payload")
TOPIC: Final = "outbox.event.{aggregatetype}"
_AGGREGATE: Final = "{aggregatetype}"
_BYTEA: Final = 17


@dataclass(frozen=True, slots=True)
class OutboxTable:
    """``indexes``: of ``COLUMNS`` in the table. ``template``: of the topic's name."""

    name: str
    template: str
    indexes: tuple[int, ...]
    payload_type: int

    def event(self, values: Sequence[Value], timestamp: int | None) -> IngestRecord:
        """The record of an inserted row. Raises UnreadableValue."""
        identifier, aggregate, key, kind, payload = (values[index] for index in self.indexes)
        return IngestRecord(
            topic=legal_topic(self.template.replace(_AGGREGATE, _text(aggregate) or "null")),
            value=self._payload(payload),
            key=_bytes(key),
            headers=(Header("id", _bytes(identifier)), Header("type", _bytes(kind))),
            timestamp=timestamp,
        )

    def _payload(self, payload: Value) -> bytes | None:
        text = _text(payload)
        if text is None or self.payload_type != _BYTEA:
            return None if text is None else text.encode()
        try:
            return bytes.fromhex(text.removeprefix("\\x"))
        except ValueError as error:
            raise UnreadableValue(f"payload of {self.name}: {error}") from error


def template_problem(template: str) -> str | None:
    """Return what is wrong with a template of topics' names: an event must not choose an internal topic by its
    aggregate."""
    before, placeholder, _ = template.partition(_AGGREGATE)
    if placeholder and (not before or legal_topic(before) != before or before.startswith("__")):
        return f"{template!r} must begin with a prefix of its own before {_AGGREGATE}, such as {TOPIC}"
    if not placeholder and (not template or legal_topic(template) != template):
        return f"{template!r} is neither the name of a topic nor has {_AGGREGATE}"
    return None


def outbox_table(name: str, columns: Sequence[RelationColumn], template: str) -> OutboxTable:
    """Raises SourceRefused."""
    names = [column.name for column in columns]
    missing = [column for column in COLUMNS if column not in names]
    if missing:
        raise SourceRefused(
            f"the outbox {name} has no column {', '.join(missing)}; it has {', '.join(names)}",
            f"an outbox has the columns {', '.join(COLUMNS)}, and the publication's column list must have them; "
            "or leave the table out of the outbox tables: its changes are ingested then",
        )
    indexes = tuple(names.index(column) for column in COLUMNS)
    return OutboxTable(name, template, indexes, columns[indexes[-1]].type_id)


def _text(value: Value) -> str | None:
    if isinstance(value, bytes | Unchanged):
        raise UnreadableValue("a value of an inserted row that is not text")
    return value


def _bytes(value: Value) -> bytes | None:
    text = _text(value)
    return None if text is None else text.encode()
