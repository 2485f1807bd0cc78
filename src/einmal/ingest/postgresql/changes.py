"""The decoded stream as records: whole transactions, in the order of their commits. Pure.

Invariants:

1. *A transaction is whole.* Its changes come between its Begin and its Commit, and a stream ends behind a Commit. The
   caller makes everything of one call one Kafka transaction.
2. *Nothing is ingested twice.* A transaction that lies before the position is skipped, whatever the slot repeats.
3. *The order is that of the commits.* Commit records that do not ascend are no stream of one server.

Records of one key are in this order in their partition. A change of the key ends the old key's records and begins the
new key's, as in Debezium: a delete of the old one, its tombstone, and a create of the new one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from einmal.ingest.postgresql.envelope import (
    NEW_KEY_HEADER,
    OLD_KEY_HEADER,
    Json,
    RowShape,
    encoded,
    source_of,
    timestamp_ms,
)
from einmal.ingest.postgresql.lsn import Lsn, lsn_text
from einmal.ingest.postgresql.outbox import OutboxTable
from einmal.ingest.postgresql.pgoutput import (
    UNCHANGED,
    BeginTransaction,
    CommitTransaction,
    DeletedRow,
    EmittedMessage,
    InsertedRow,
    MalformedMessage,
    RelationMessage,
    TruncatedTables,
    UpdatedRow,
    Values,
    decode_message,
)
from einmal.ingest.postgresql.position import StreamPosition
from einmal.ingest.postgresql.tables import AnnouncedTables
from einmal.ingest.source import IngestRecord
from einmal.types import Header

_CHANGES: Final = frozenset(b"IUDT")


@dataclass(slots=True)
class _OpenTransaction:
    begin: BeginTransaction
    is_skipped: bool
    total: int = 0
    by_table: Counter[str] = field(default_factory=Counter)

    @property
    def timestamp(self) -> int:
        return timestamp_ms(self.begin.commit_time_us)

    def next_order(self, table: str) -> Json:
        """Count the next change, and return its order as Debezium numbers them: from 1, among all and among those of
        its table."""
        self.total += 1
        self.by_table[table] += 1
        return {
            "id": f"{self.begin.xid}:{self.begin.final_lsn}",
            "total_order": self.total,
            "data_collection_order": self.by_table[table],
        }


class ChangeStream:
    """One decoding of the slot, from its first transaction on. ``end``: behind the last transaction so far."""

    def __init__(self, tables: AnnouncedTables, position: StreamPosition) -> None:
        tables.restart()
        self._tables = tables
        self._position = position
        self._open: _OpenTransaction | None = None
        self._last = Lsn(0)
        self.end = position

    def records(self, messages: Iterable[tuple[Lsn, bytes]]) -> Iterator[IngestRecord]:
        """``messages``: whole transactions, with LSNs. Raises MalformedMessage, UnreadableValue, SourceRefused."""
        for lsn, data in messages:
            if self._open is not None and self._open.is_skipped and data[:1] and data[0] in _CHANGES:
                continue
            match message := decode_message(data):
                case BeginTransaction():
                    self._begin(message)
                case CommitTransaction():
                    self._commit(message)
                case RelationMessage():
                    self._tables.announce(message, is_repeated=self._open is not None and self._open.is_skipped)
                case InsertedRow() | UpdatedRow() | DeletedRow() | TruncatedTables():
                    yield from self._change(message, lsn)
                case EmittedMessage():
                    raise MalformedMessage("a logical message, which was not asked for")
                # Names of types and of replication origins have no part in records.
        if self._open is not None:
            raise MalformedMessage(f"the stream ends within transaction {self._open.begin.xid}")

    def _begin(self, begin: BeginTransaction) -> None:
        if self._open is not None:
            raise MalformedMessage(f"transaction {begin.xid} begins within {self._open.begin.xid}")
        if begin.final_lsn <= self._last:
            raise MalformedMessage(f"commit {lsn_text(begin.final_lsn)} follows {lsn_text(self._last)}")
        self._last = begin.final_lsn
        self._open = _OpenTransaction(begin, self._position.is_past(begin))

    def _commit(self, commit: CommitTransaction) -> None:
        if self._open is None or self._open.begin.final_lsn != commit.commit_lsn or commit.end_lsn <= commit.commit_lsn:
            raise MalformedMessage(f"commit {lsn_text(commit.commit_lsn)} is not that of the open transaction")
        self._open = None
        if commit.end_lsn > self.end.lsn:
            self.end = self.end.moved(commit.end_lsn)

    def _change(
        self, change: InsertedRow | UpdatedRow | DeletedRow | TruncatedTables, lsn: Lsn
    ) -> Iterator[IngestRecord]:
        if self._open is None:
            raise MalformedMessage("a change outside of a transaction")
        if isinstance(change, TruncatedTables):
            for relation_id in change.relation_ids:
                table = self._tables.of(relation_id)
                if isinstance(table, RowShape) and self._tables.routing.truncates:
                    record = self._record(table, lsn, "t", None, None, None)
                    yield record._replace(skipped_as=f"the TRUNCATE of {table.name}")
            return
        new = None if isinstance(change, DeletedRow) else change.new
        key, old = (None, None) if isinstance(change, InsertedRow) else (change.key, change.old)
        table = self._tables.of(change.relation_id, new, key, old)
        if isinstance(table, OutboxTable):
            yield from self._event(table, change)
        elif isinstance(change, InsertedRow):
            yield self._record(table, lsn, "c", change.new, None, change.new)
        elif isinstance(change, DeletedRow):
            yield from self._deleted(table, lsn, change, ())
        else:
            yield from self._updated(table, lsn, change)

    def _updated(self, table: RowShape, lsn: Lsn, change: UpdatedRow) -> Iterator[IngestRecord]:
        before = change.key if change.old is None else change.old
        new = change.new if before is None else _completed(change.new, before)
        old_key = None if before is None else table.key_of(before)
        new_key = table.key_of(new)
        # As text: 0.0 and -0.0 are equal, and two keys of the topic.
        if before is None or encoded(old_key) == encoded(new_key):
            yield self._record(table, lsn, "u", new, self._before(table, change), new)
            return
        yield from self._deleted(table, lsn, change, (Header(NEW_KEY_HEADER, encoded(new_key)),))
        yield self._record(table, lsn, "c", new, None, new, (Header(OLD_KEY_HEADER, encoded(old_key)),))

    def _deleted(
        self, table: RowShape, lsn: Lsn, change: UpdatedRow | DeletedRow, headers: tuple[Header, ...]
    ) -> Iterator[IngestRecord]:
        values = change.key if change.old is None else change.old
        assert values is not None
        record = self._record(table, lsn, "d", values, self._before(table, change), None, headers)
        yield record
        if self._tables.routing.tombstones and record.key is not None:
            yield record._replace(value=None)

    def _before(self, table: RowShape, change: UpdatedRow | DeletedRow) -> Json | None:
        if change.old is not None:
            return table.row(change.old)
        return None if change.key is None else table.key_of(change.key)

    def _record(
        self,
        table: RowShape,
        lsn: Lsn,
        op: str,
        keyed: Values | None,
        before: Json | None,
        after: Values | None,
        headers: tuple[Header, ...] = (),
    ) -> IngestRecord:
        """``keyed``: the row that has the record's key."""
        transaction = self._open
        assert transaction is not None
        begin = transaction.begin
        value = {
            "before": before,
            "after": None if after is None else table.row(after),
            "source": source_of(table, self._tables.database, lsn, transaction.timestamp, begin.xid),
            "op": op,
            "transaction": transaction.next_order(table.name),
        }
        key = None if keyed is None else table.key_of(keyed)
        return IngestRecord(
            topic=table.topic,
            value=encoded(value),
            key=None if key is None else encoded(key),
            headers=table.headers + headers,
            timestamp=transaction.timestamp,
        )

    def _event(self, table: OutboxTable, change: InsertedRow | UpdatedRow | DeletedRow) -> Iterator[IngestRecord]:
        """Only an insert is an event; a delete tidies up."""
        assert self._open is not None
        if isinstance(change, InsertedRow):
            yield table.event(change.new, self._open.timestamp)
        elif isinstance(change, UpdatedRow):
            self._tables.count_update(table.name)


def _completed(new: Values, before: Values) -> Values:
    """Values that were not touched, from the old row or, of its key, from the old key. A null there is a column that
    the log lacks, also in what is sent as the whole row of a partition: a value that is null is sent."""
    return tuple(
        old if value is UNCHANGED and old is not None else value for value, old in zip(new, before, strict=True)
    )


def snapshot_record(
    tables: AnnouncedTables, table: RowShape | OutboxTable, values: Values, lsn: Lsn, taken_ms: int
) -> IngestRecord:
    """A row as a snapshot shows it; an event where the table is an outbox. Raises UnreadableValue."""
    if isinstance(table, OutboxTable):
        return table.event(values, taken_ms)
    key = table.key_of(values)
    value = {
        "before": None,
        "after": table.row(values),
        "source": source_of(table, tables.database, lsn, taken_ms, None),
        "op": "r",
        "transaction": None,
    }
    return IngestRecord(
        topic=table.topic,
        value=encoded(value),
        key=None if key is None else encoded(key),
        headers=table.headers,
        timestamp=taken_ms,
    )
