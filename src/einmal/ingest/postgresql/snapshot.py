"""The rows that the tables of a publication have, joined to the stream of a slot without a gap or a duplicate.

Theory of operation. A slot sends the transactions whose commit records lie behind its own position. A snapshot taken
later sees some of them already. So the stream is read from the slot's position, and transactions that the snapshot
sees are skipped by their ids (``position``). Nothing has to be exported, kept, or dropped: a snapshot that was
interrupted is taken again, as another one.

Every transaction in front of the slot's position has to be visible in the snapshot. Visible is not what is in the log,
but what has left the server's list of running transactions, which a commit does after it has written its record, and
later where a synchronous standby is slow. Therefore the snapshot waits until every transaction has ended that had an id
when the slot existed: those in front of the slot's position are among them.

A crash of the server undoes what is not on its disk, and gives the ids of such transactions out again. The stream would
skip the new ones, which have the ids of those that the snapshot sees. Therefore the log up to the snapshot has to be
on disk before its rows are ingested.

Rewritten and truncated tables look empty to a snapshot from before. So the tables are locked first, in the mode of a
query: in REPEATABLE READ the first statement that is not LOCK takes the snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from psycopg import sql

from einmal.ingest.postgresql.changes import snapshot_record
from einmal.ingest.postgresql.lsn import LOG_END, Lsn, end_of_records, parse_lsn
from einmal.ingest.postgresql.pgoutput import RelationColumn
from einmal.ingest.postgresql.position import DatabaseSnapshot, parse_snapshot
from einmal.ingest.postgresql.session import SourceSession
from einmal.ingest.postgresql.tables import KEY_FROM_CATALOG, AnnouncedTables, CatalogTable, KnownKey, known_key
from einmal.ingest.source import IngestRecord, SourceFailed, SourceRefused

_CURSOR: Final = "einmal_snapshot"
_NAMED_MAX: Final = 8
_ALTERED: Final = {"d": "DEFAULT", "f": "FULL"}
_TAKING: Final = "taking a snapshot"
_KEY: Final = """
    SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_index i
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
    WHERE i.indrelid = c.oid AND CASE c.relreplident
        WHEN 'i' THEN i.indisreplident WHEN 'd' THEN i.indisprimary AND i.indimmediate ELSE i.indisprimary END
"""
_TABLES: Final = f"""
    SELECT c.oid::bigint, n.nspname::text, c.relname::text, c.relkind = 'p', p.rowfilter, coalesce(({_KEY}), '{{}}'),
        c.relreplident::text,
        array_agg(a.attname::text ORDER BY a.attnum), array_agg(a.atttypid::bigint ORDER BY a.attnum)
    FROM pg_publication_tables p
    JOIN pg_namespace n ON n.nspname = p.schemaname
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
    LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND a.attname = ANY (p.attnames)
        AND (a.attgenerated = '' OR current_setting('server_version_num')::int >= 180000)
    WHERE p.pubname = %s
    GROUP BY c.oid, n.nspname, c.relname, c.relkind, c.relreplident, p.rowfilter ORDER BY 2, 3
"""
"""Generated columns are listed there, but are not in the stream before PostgreSQL 18."""
_KEYED: Final = """
    SELECT coalesce(sum(hashtextextended(concat_ws(' ', c.oid, c.relreplident, c.relnamespace, c.relname, i.indexrelid,
        i.indkey), 0)), 0)::text
    FROM pg_class c LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
    WHERE (c.relreplident IN ('f', 'n') OR c.relispartition) AND c.relkind IN ('r', 'p')
"""
_OTHER_IDENTITIES: Final = """
    SELECT c.oid::regclass::text, c.relreplident::text,
        array_agg(leaf.oid::regclass::text ORDER BY leaf.oid::regclass::text)
    FROM pg_publication pub
    JOIN pg_publication_tables p ON p.pubname = pub.pubname
    JOIN pg_namespace n ON n.nspname = p.schemaname
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename AND c.relkind = 'p' AND c.relreplident <> 'n'
    CROSS JOIN pg_partition_tree(c.oid) tree
    JOIN pg_class leaf ON leaf.oid = tree.relid AND tree.isleaf AND leaf.relkind = 'r'
    WHERE pub.pubname = %s AND pub.pubviaroot AND leaf.relreplident NOT IN ('f', c.relreplident)
    GROUP BY c.oid, c.relreplident ORDER BY 1
"""
_WAITED_FOR: Final = """
    SELECT string_agg(who, ', ') FROM (
        SELECT 'pid ' || pid AS who, backend_xid AS xid FROM pg_stat_activity WHERE backend_xid IS NOT NULL
        UNION ALL SELECT 'prepared transaction ' || quote_literal(gid), transaction FROM pg_prepared_xacts
    ) running WHERE age(xid) > age(%s::text::xid)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """``row_filter``: an SQL expression. ``key``: columns of the replica identity, or of the primary key; the
    publication's list of columns may lack some."""

    relation_id: int
    schema: str
    table: str
    is_partitioned: bool
    row_filter: str | None
    key: tuple[str, ...]
    columns: tuple[RelationColumn, ...]
    replica_identity: str = "d"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def has_whole_key(self) -> bool:
        return set(self.key).issubset(self.names)

    def published_key(self) -> tuple[str, ...]:
        """The key as the stream has it. Raises SourceRefused."""
        if self.replica_identity in KEY_FROM_CATALOG and not self.has_whole_key:
            raise SourceRefused(
                f"the publication's list of columns of {self.schema}.{self.table} lacks its key, {', '.join(self.key)}",
                f'add it to the list, or declare a key of columns that it has: message.key.columns = "{self.schema}.'
                f'{self.table}:COLUMN,..."',
            )
        return tuple(name for name in self.key if name in self.names)

    def identifier(self) -> sql.Composed:
        """As FROM and LOCK take it: without tables that inherit, which are published by themselves."""
        name = sql.Identifier(self.schema, self.table)
        return sql.SQL("{}").format(name) if self.is_partitioned else sql.SQL("ONLY {}").format(name)

    def query(self) -> sql.Composed:
        columns = sql.SQL(", ").join(map(sql.Identifier, self.names))
        query = sql.SQL("SELECT {} FROM {}").format(columns, self.identifier())
        # The server's own text of the publication's row filter.
        return query if self.row_filter is None else query + sql.SQL(f" WHERE {self.row_filter}")


def published_tables(session: SourceSession, publication: str) -> tuple[PublishedTable, ...]:
    rows = session.rows("reading the publication", _TABLES, (publication,))
    return tuple(
        PublishedTable(
            relation_id=relation_id,
            schema=schema,
            table=table,
            is_partitioned=is_partitioned,
            row_filter=row_filter,
            key=tuple(key),
            columns=tuple(
                RelationColumn(name, type_id, -1, name in key)
                for name, type_id in zip(names, types, strict=True)
                if name is not None
            ),
            replica_identity=replica_identity,
        )
        for relation_id, schema, table, is_partitioned, row_filter, key, replica_identity, names, types in rows
    )


def keyed_tables(session: SourceSession) -> str:
    """Differs where there are other partitions or tables whose key is not in the log, or other keys of them: their
    columns, which the log does have, are what takes the catalog a second to find for a thousand tables."""
    ((digest,),) = session.rows("reading the catalog", _KEYED)
    return str(digest)


def check_partitions(session: SourceSession, publication: str) -> None:
    """Raises SourceRefused where a partition that is published as its root has another replica identity: the log has
    the old rows by the partition's, and they are sent as if they were by the root's, with nulls for what is missing."""
    for root, identity, partitions in session.rows("reading the publication", _OTHER_IDENTITIES, (publication,)):
        named = ", ".join(partitions[:_NAMED_MAX]) + (", ..." if len(partitions) > _NAMED_MAX else "")
        altered = _ALTERED.get(identity, "FULL")
        raise SourceRefused(
            f"{len(partitions)} partitions of {root} have another replica identity than {root}, as which they are "
            f"published (publish_via_partition_root): {named}; old rows would have nulls instead of values",
            f"ALTER TABLE {partitions[0]} REPLICA IDENTITY {altered}, for each of them, and for a new partition in the "
            "transaction that creates it",
        )


class CatalogKeys(NamedTuple):
    """``lsn``: an end of the log after they were read."""

    keys: dict[int, KnownKey]
    lsn: Lsn


def catalog_keys(session: SourceSession, publication: str, tables: AnnouncedTables) -> CatalogKeys:
    """Return the keys of the published tables whose key is not in the log, as they are now, by OID."""
    keys = {
        table.relation_id: known_key(table.columns, table.key)
        for table in published_tables(session, publication)
        if table.has_whole_key and tables.needs_catalog(table.schema, table.table, table.replica_identity, table.names)
    }
    ((lsn,),) = session.rows("reading the publication", "SELECT pg_current_wal_insert_lsn()::text")
    return CatalogKeys(keys, parse_lsn(lsn))


def newest_transaction(session: SourceSession) -> int:
    """An id above those of all transactions so far."""
    ((xid,),) = session.rows(_TAKING, "SELECT pg_current_xact_id()::text::bigint")
    return int(xid)


def waited_for(session: SourceSession, newest: int) -> str | None:
    """Who still runs with an id up to ``newest``; None: nobody, so that a snapshot sees their commits."""
    ((oldest,),) = session.rows(_TAKING, "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
    if oldest > newest:
        return None
    ((who,),) = session.rows(_TAKING, _WAITED_FOR, (str((newest + 1) % (1 << 32)),))
    return str(who or "a transaction that is ending")


class TableSnapshot:
    """The rows of all published tables, in one transaction of the session, which ends with them."""

    def __init__(self, session: SourceSession, publication: str, tables: AnnouncedTables) -> None:
        """Raises SourceFailed, also where tables were changed meanwhile; SourceRefused."""
        self._session = session
        self._tables = tables
        self._published = published_tables(session, publication)
        session.begin(_TAKING, "REPEATABLE READ READ ONLY")
        if self._published:
            names = sql.SQL(", ").join(table.identifier() for table in self._published)
            session.execute(_TAKING, sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(names))
        ((visible, taken_ms, lsn, _, segment_bytes, page_bytes),) = session.rows(
            _TAKING,
            "SELECT pg_current_snapshot()::text, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint, "
            f"{LOG_END}",
        )
        self.taken: DatabaseSnapshot = parse_snapshot(visible, parse_lsn(lsn))
        self._end = end_of_records(parse_lsn(lsn), segment_bytes, page_bytes)
        self._taken_ms = int(taken_ms)
        if published_tables(session, publication) != self._published:
            session.rollback()
            raise SourceFailed(f"tables of publication {publication!r} were changed while the snapshot began")

    def is_lasting(self) -> bool:
        """Whether a crash of the server undoes nothing that the snapshot sees."""
        ((flushed,),) = self._session.rows(_TAKING, "SELECT pg_current_wal_flush_lsn()::text")
        return parse_lsn(flushed) >= self._end

    def records(self) -> Iterator[IngestRecord]:
        """Raises UnreadableValue, too."""
        for published in self._published:
            shape = self._tables.shape(published.schema, published.table, published.columns, self._key(published))
            self._session.declare(_TAKING, _CURSOR, published.query())
            for row in self._session.fetch(_TAKING, _CURSOR, is_binary=False):
                values = tuple([None if value is None else value.decode() for value in row])
                yield snapshot_record(self._tables, shape, values, Lsn(self.taken.lsn), self._taken_ms)
            self._session.execute(_TAKING, sql.SQL("CLOSE {}").format(sql.Identifier(_CURSOR)))
        self._session.commit(_TAKING)

    def _key(self, published: PublishedTable) -> tuple[str, ...]:
        """Raises SourceRefused."""
        table = f"{published.schema}.{published.table}"
        if table in self._tables.routing.outbox:
            # The key of an event is a column of its own.
            return ()
        declared = self._tables.declared_key(table, published.names)
        return published.published_key() if declared is None else declared


def catalog_table(session: SourceSession, relation_id: int) -> CatalogTable | None:
    """A table as it is now; None if it was dropped."""
    columns = session.rows(
        "looking up a primary key",
        "SELECT a.attname::text, a.atttypid::bigint, i.indrelid IS NOT NULL FROM pg_attribute a LEFT JOIN pg_index i"
        " ON i.indrelid = a.attrelid AND i.indisprimary AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])"
        " WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped"
        " AND (a.attgenerated = '' OR current_setting('server_version_num')::int >= 180000) ORDER BY a.attnum",
        (relation_id,),
    )
    if not columns:
        return None
    return CatalogTable(
        tuple(name for name, _, _ in columns),
        tuple(type_id for _, type_id, _ in columns),
        tuple(name for name, _, is_key in columns if is_key),
    )
