"""The table that is written to, as the catalog describes it: its columns, its kind, its unique keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg import sql

from einmal.postgresql.names import TableName
from einmal.sinks.postgres.session import Session

_PARTITIONS: Final = (
    "WITH RECURSIVE tree AS (SELECT inhrelid AS relid FROM pg_inherits JOIN pg_class ON oid = inhparent"
    " WHERE inhparent = {} AND relkind = 'p'"
    " UNION ALL SELECT i.inhrelid FROM tree JOIN pg_inherits i ON i.inhparent = tree.relid) SELECT relid FROM tree"
)
"""All partitions below a table. ``pg_partition_tree`` would lock each of them until the end of the transaction."""
_TABLE: Final = sql.SQL(
    "SELECT c.oid::bigint, n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence::text, c.relhasrules,"
    # A partition that is no ordinary, logged table.
    " (SELECT ARRAY[p.oid::regclass::text, p.relkind::text, p.relpersistence::text]"
    f"  FROM ({_PARTITIONS.format('c.oid')}) t JOIN pg_class p ON p.oid = t.relid"
    "  WHERE p.relkind <> 'p' AND (p.relkind <> 'r' OR p.relpersistence <> 'p') ORDER BY 1 LIMIT 1)"
    " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)"
)
_COLUMNS: Final = sql.SQL(
    # A domain is stored as itself, and fits what its base type fits.
    "WITH RECURSIVE bases AS ("
    " SELECT a.attnum, t.oid, t.typtype, t.typbasetype, a.atttypmod AS mod FROM pg_attribute a"
    "  JOIN pg_type t ON t.oid = a.atttypid WHERE a.attrelid = %(table)s AND a.attnum > 0 AND NOT a.attisdropped"
    " UNION ALL SELECT b.attnum, t.oid, t.typtype, t.typbasetype, d.typtypmod FROM bases b"
    "  JOIN pg_type d ON d.oid = b.oid JOIN pg_type t ON t.oid = b.typbasetype WHERE b.typtype = 'd')"
    " SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), t.typname::text, t.typcategory::text,"
    " e.typcategory::text, b.mod, a.attnotnull OR d.typnotnull, a.atthasdef, a.attidentity::text, a.attgenerated::text,"
    " d.typtype = 'd', coalesce(c.name, ''),"
    # A default class of operators for a B-tree: its own, or that of a type that it is stored as.
    " EXISTS (SELECT FROM pg_opclass o JOIN pg_am m ON m.oid = o.opcmethod AND m.amname = 'btree' WHERE o.opcdefault"
    "  AND (o.opcintype = e.oid OR o.opcintype IN (SELECT k.casttarget FROM pg_cast k WHERE k.castsource = e.oid"
    "  AND k.castmethod = 'b' AND k.castcontext = 'i') OR o.opcintype = CASE e.typtype WHEN 'e' THEN 'anyenum'::regtype"
    "  WHEN 'r' THEN 'anyrange'::regtype WHEN 'm' THEN 'anymultirange'::regtype WHEN 'c' THEN 'record'::regtype END))"
    " FROM pg_attribute a JOIN bases b ON b.attnum = a.attnum AND b.typtype <> 'd' JOIN pg_type t ON t.oid = b.oid"
    " JOIN pg_type d ON d.oid = a.atttypid"
    " JOIN pg_type e ON e.oid = CASE WHEN t.typcategory = 'A' AND t.typelem <> 0 THEN t.typelem ELSE t.oid END"
    " LEFT JOIN LATERAL (SELECT format('%%I.%%I', n.nspname, c.collname) AS name FROM pg_collation c"
    "  JOIN pg_namespace n ON n.oid = c.collnamespace WHERE c.oid = a.attcollation AND c.collname <> 'default') c"
    " ON true"
    " WHERE a.attrelid = %(table)s ORDER BY a.attnum"
)
_KEYS: Final = sql.SQL(
    "SELECT array_agg(a.attname::text ORDER BY a.attname), i.indpred IS NOT NULL, x.relname::text,"
    " i.indrelid = %(table)s"
    " FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid"
    " CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, number)"
    " JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum"
    f" WHERE (i.indrelid = %(table)s OR i.indrelid IN ({_PARTITIONS.format('%(table)s::oid')}))"
    " AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indexprs IS NULL"
    " AND k.number <= i.indnkeyatts GROUP BY i.indexrelid, x.relname, i.indrelid, i.indpred IS NOT NULL"
)
_KINDS: Final = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table, whose server commits by itself",
    "S": "a sequence",
    "c": "a composite type",
    "i": "an index",
    "I": "an index",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """``definition``: the type as DDL has it. ``base``: its name in the catalog, under all domains; ``modifier``: of
    that, -1 for none; ``category``: pg_type.typcategory; ``is_domain``: it may have constraints of its own;
    ``collation``: as DDL has it, empty for the database's; ``is_ordered``: its values can be compared."""

    name: str
    definition: str
    base: str
    category: str
    element_category: str
    modifier: int
    is_required: bool
    has_default: bool
    identity: str
    generated: str
    is_domain: bool
    collation: str = ""
    is_ordered: bool = True

    @property
    def is_written(self) -> bool:
        """Whether an INSERT may have a value for it."""
        return not self.generated and self.identity != "a"

    @property
    def may_be_absent(self) -> bool:
        return not self.is_required or self.has_default or bool(self.identity) or bool(self.generated)


@dataclass(frozen=True, slots=True)
class TableShape:
    """``keys``: the columns of each unique index without a condition; ``partial_keys``: of each one with one;
    ``indexes``: the columns of all of these by the index's name, in partitions, too."""

    name: TableName
    columns: tuple[TableColumn, ...]
    problem: str
    keys: tuple[frozenset[str], ...]
    partial_keys: tuple[frozenset[str], ...]
    indexes: Mapping[str, frozenset[str]]

    @property
    def id(self) -> sql.Identifier:
        assert self.name.schema is not None
        return sql.Identifier(self.name.schema, self.name.name)

    def find(self, name: str) -> TableColumn | None:
        """The column of this name, else the only one that differs in case alone."""
        exact = [column for column in self.columns if column.name == name]
        near = [column for column in self.columns if column.name.lower() == name.lower()]
        return exact[0] if exact else near[0] if len(near) == 1 else None


def find_table(session: Session, name: TableName) -> TableShape | None:
    """In the open transaction; None where there is none. Raises Failed."""
    what = f"looking for {name}"
    row = session.execute(what, _TABLE, (name.in_quotes,)).fetchone()
    if row is None:
        return None
    oid, schema, table, kind, persistence, has_rules, partition = row
    columns = session.execute(what, _COLUMNS, {"table": oid}).fetchall()
    keys = session.execute(what, _KEYS, {"table": oid}).fetchall()
    return TableShape(
        name=TableName(schema, table),
        columns=tuple(
            TableColumn(
                name=column[0],
                definition=column[1],
                base=column[2],
                category=column[3],
                element_category=column[4],
                modifier=column[5],
                is_required=bool(column[6]),
                has_default=column[7],
                identity=column[8],
                generated=column[9],
                is_domain=column[10],
                collation=column[11],
                is_ordered=column[12],
            )
            for column in columns
        ),
        problem=_problem(kind, persistence, has_rules, partition),
        keys=tuple(frozenset(names) for names, is_partial, _, is_whole in keys if is_whole and not is_partial),
        partial_keys=tuple(frozenset(names) for names, is_partial, _, is_whole in keys if is_whole and is_partial),
        indexes={index: frozenset(names) for names, _, index, _ in keys},
    )


def _problem(kind: str, persistence: str, has_rules: bool, partition: Sequence[str] | None = None) -> str:
    if partition is not None:
        return f"has the partition {partition[0]}, which {_problem(partition[1], partition[2], False)}"
    if kind in _KINDS:
        return f"is {_KINDS[kind]}"
    if persistence == "t":
        return "is a temporary table"
    if persistence == "u":
        return "is UNLOGGED: a crash of the server would empty it, and leave the commit record"
    if has_rules:
        return "has rules, which may write other rows than those that are counted"
    return ""
