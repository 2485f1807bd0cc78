"""A database that keeps its own history, and the comparison of topics with it.

Every transaction first increments the number in ``ledger``, whose row it then holds until its end. So the numbers are
in the order of the commits. Triggers write each change to ``history``, in the same transaction, with the key under the
name that its column has then. The snapshot shows one number: all transactions up to it must be in the snapshot, and
each later one, whole, in the stream.
"""

from __future__ import annotations

import json
import random
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import psycopg

from einmal.client import NewTopic
from tests.sinks.postgres.server import PostgresServer

ALTERED: Final = {"c": "FULL", "d": "DEFAULT", "e": "FULL"}
"""Tables whose key is renamed, and that are dropped, created again and truncated, with their replica identities."""
TABLES: Final = ("a", "b", *ALTERED)
COMPACTED: Final = ("d", "e")
"""Tables whose topics take no record without a key."""
_COUNTS: Final = {"ledger": 1, "a": 3, "b": 2, "c": 3, "d": 2, "e": 2}
TOPICS: Final = [
    NewTopic(
        f"shop.public.{name}",
        num_partitions=count,
        # Without losing a version.
        configs={"cleanup.policy": "compact", "min.compaction.lag.ms": "86400000"} if name in COMPACTED else {},
    )
    for name, count in _COUNTS.items()
]
SCHEMA: Final = """
    CREATE TABLE ledger (id int PRIMARY KEY, n bigint NOT NULL);
    INSERT INTO ledger VALUES (1, 0);
    CREATE TABLE a (id int PRIMARY KEY, v text, n bigint NOT NULL);
    CREATE TABLE b (LIKE a INCLUDING ALL);
    CREATE TABLE history
        (position bigserial, n bigint, name text, op text, old_key jsonb, new_key jsonb, row jsonb);
    CREATE FUNCTION key_of(t oid) RETURNS text LANGUAGE sql AS $$
        SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
        WHERE i.indrelid = t AND i.indisprimary
    $$;
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE k text := key_of(TG_RELID); o jsonb; r jsonb;
    BEGIN
        IF TG_OP IN ('UPDATE', 'DELETE') THEN o := to_jsonb(OLD); END IF;
        IF TG_OP IN ('UPDATE', 'INSERT') THEN r := to_jsonb(NEW); END IF;
        INSERT INTO history (n, name, op, old_key, new_key, row) VALUES ((SELECT n FROM ledger), TG_TABLE_NAME, TG_OP,
            CASE WHEN o IS NOT NULL THEN jsonb_build_object(k, o->k) END,
            CASE WHEN r IS NOT NULL THEN jsonb_build_object(k, r->k) END, r);
        RETURN NULL;
    END $$;
    CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON a FOR EACH ROW EXECUTE FUNCTION note();
    CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON b FOR EACH ROW EXECUTE FUNCTION note();
    CREATE PUBLICATION einmal_publication FOR TABLE ledger, a, b;
"""
_LAYOUTS: Final = (
    "id int PRIMARY KEY, v text, n bigint NOT NULL",
    "v text, code int PRIMARY KEY, n bigint NOT NULL",
)
_KEYS: Final = 200
_TRUNCATES: Final = 0.02
_NEXT: Final = "UPDATE ledger SET n = n + 1"


class Event(NamedTuple):
    """A change, as history and topics both have it. ``key``: None of a truncate; ``row``: None of that and a delete."""

    table: str
    op: str
    key: dict[str, Any] | None
    row: dict[str, Any] | None


class Stored(NamedTuple):
    """A record of a topic. ``transaction``: producer id and epoch of its Kafka transaction; ``value``: None of a
    tombstone."""

    place: str
    transaction: tuple[int, int]
    key: dict[str, Any] | None
    value: dict[str, Any] | None


class Writers:
    """Transactions at random, through every outage, until ``stop``."""

    def __init__(self, server: PostgresServer, seed: int, count: int = 2) -> None:
        self._server = server
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(random.Random(seed + i),)) for i in range(count)]
        for each in self._threads:
            each.start()

    def stop(self) -> None:
        self._stop.set()
        for each in self._threads:
            each.join(300)
            assert not each.is_alive()

    def _run(self, chance: random.Random) -> None:
        while not self._stop.wait(0.05):
            with suppress(psycopg.Error), self._server.connect() as connection:
                while not self._stop.wait(chance.choice((0.0, 0.01, 0.03))):
                    _transact(connection, chance)


def _transact(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    connection.execute("BEGIN")
    connection.execute(_NEXT)
    for _ in range(chance.randint(0, 4)):
        _change(connection, chance)
        if chance.random() < 0.2:
            connection.execute("SAVEPOINT s")
            _change(connection, chance)
            connection.execute("ROLLBACK TO s")
    connection.execute("ROLLBACK" if chance.random() < 0.1 else "COMMIT")


def _change(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    table, key, other = chance.choice(TABLES), chance.randrange(_KEYS), chance.randrange(_KEYS)
    text = chance.choice((None, "ä", 'quoted "text"', "x" * 300))
    if table in ALTERED and chance.random() < _TRUNCATES:
        connection.execute(f"TRUNCATE {table}")
        return
    name = key_column(connection, table)
    match chance.randrange(6):
        case 0:
            statement = f"DELETE FROM {table} WHERE {name} = {key}"
        case 1:
            free = f"NOT EXISTS (SELECT FROM {table} WHERE {name} = {other})"
            statement = (
                f"UPDATE {table} SET {name} = {other}, n = (SELECT n FROM ledger) WHERE {name} = {key} AND {free}"
            )
        case _:
            statement = (
                f"INSERT INTO {table} ({name}, v, n) SELECT {key}, %s, n FROM ledger"
                f" ON CONFLICT ({name}) DO UPDATE SET v = excluded.v, n = excluded.n"
            )
            connection.execute(statement, (text,))
            return
    connection.execute(statement)


def key_column(connection: psycopg.Connection[Any], table: str) -> str:
    """As it is called now: the transaction holds the ledger, which every transaction changes first."""
    found = connection.execute("SELECT key_of(%s::regclass)", (table,)).fetchone()
    assert found is not None
    return str(found[0])


def create(connection: psycopg.Connection[Any], table: str, layout: str = _LAYOUTS[0]) -> None:
    """One of the tables that are altered."""
    connection.execute(f"CREATE TABLE {table} ({layout})")
    connection.execute(f"ALTER TABLE {table} REPLICA IDENTITY {ALTERED[table]}")
    for what in ("INSERT OR UPDATE OR DELETE ON {} FOR EACH ROW", "TRUNCATE ON {}"):
        name = "note" if "ROW" in what else "note_truncate"
        connection.execute(f"CREATE TRIGGER {name} AFTER {what.format(table)} EXECUTE FUNCTION note()")
    connection.execute(f"ALTER PUBLICATION einmal_publication ADD TABLE {table}")


def alter(server: PostgresServer, table: str, chance: random.Random) -> str:
    """What was done. A change of the table follows in a transaction of its own: with a replica identity that is no
    key, what the table was between two alterations is known only by a change that the log has of that time."""
    what = chance.choice(("rename", "drop", "column"))
    with server.connect() as connection:
        with connection.transaction():
            connection.execute(_NEXT)
            name = key_column(connection, table)
            match what:
                case "rename":
                    connection.execute(f"ALTER TABLE {table} RENAME {name} TO key_{chance.randrange(1_000_000)}")
                case "drop":
                    connection.execute(f"DROP TABLE {table}")
                    create(connection, table, chance.choice(_LAYOUTS))
                case "column":
                    connection.execute(
                        f"ALTER TABLE {table} ADD COLUMN added_{chance.randrange(1_000_000)} int DEFAULT 1"
                    )
        with connection.transaction():
            connection.execute(_NEXT)
            key = key_column(connection, table)
            connection.execute(
                f"INSERT INTO {table} ({key}, v, n) SELECT {chance.randrange(_KEYS)}, 'altered', n FROM ledger"
                f" ON CONFLICT ({key}) DO UPDATE SET v = excluded.v, n = excluded.n"
            )
    return what


def insert_many(server: PostgresServer, rows: int) -> None:
    """A large transaction."""
    with server.connect() as connection, connection.transaction():
        connection.execute(_NEXT)
        connection.execute(
            "INSERT INTO b (id, v, n) SELECT first + i, 'large', n FROM ledger, generate_series(1, %s::int) i,"
            " (SELECT greatest(max(id), 1000000) AS first FROM b) found",
            (rows,),
        )


def add_column(server: PostgresServer) -> None:
    with server.connect() as connection:
        found = connection.execute("SELECT count(*) FROM pg_attribute WHERE attrelid = 'a'::regclass").fetchone()
        assert found is not None
        (count,) = found
        connection.execute(f"ALTER TABLE a ADD COLUMN added_{count} int DEFAULT {count}")


# --- the comparison ---------------------------------------------------------------------------------------------------


def problems(server: PostgresServer, records: Iterable[Stored]) -> Iterator[str]:
    """What is lost, twice, torn or out of order on the topics."""
    history = _history(server)
    snapshot: list[Stored] = []
    streamed: dict[str, list[Stored]] = defaultdict(list)
    last: dict[str, tuple[int, int]] = {}
    places: dict[tuple[str, str], str] = {}
    before: Stored | None = None
    for each in records:
        if each.key is not None:
            topic = each.place.rpartition("-")[0]
            if places.setdefault((topic, json.dumps(each.key)), each.place) != each.place:
                yield f"{each.key} is in two partitions of {topic}"
        if each.value is None:
            if before is None or before.place != each.place or before.key != each.key or _op(before) != "d":
                yield f"a tombstone of {each.key} in {each.place} follows no delete"
        elif each.value["op"] == "r":
            snapshot.append(each)
            if each.place in last:
                yield f"{each.place}: a row of the snapshot follows the stream"
        else:
            streamed[each.value["transaction"]["id"]].append(each)
            order = _commit_lsn(each.value["transaction"]["id"]), each.value["transaction"]["total_order"]
            if order <= last.get(each.place, (0, 0)):
                yield f"{each.place}: {order} follows {last[each.place]}"
            last[each.place] = order
        if each.value is not None and before is not None and _op(before) == "d":
            yield f"{before.place}: a delete of {before.key} without a tombstone"
        before = each
    if before is not None and _op(before) == "d":
        yield f"{before.place}: a delete of {before.key} without a tombstone"
    numbers = [
        each.value["after"]["n"] for each in snapshot if each.value and each.place.startswith("shop.public.ledger")
    ]
    if len(numbers) != 1:
        yield f"{len(numbers)} rows of the ledger in the snapshot"
        return
    yield from _snapshot_problems(snapshot, history, numbers[0])
    yield from _stream_problems(streamed, history, numbers[0])


def _snapshot_problems(snapshot: list[Stored], history: Mapping[int, list[Event]], number: int) -> Iterator[str]:
    rows: dict[tuple[str, Any], Any] = {}
    for n in range(number + 1):
        for event in history.get(n, ()):
            if event.op == "t":
                rows = {place: row for place, row in rows.items() if place[0] != event.table}
            else:
                rows[event.table, _key_value(event.key)] = event.row
    expected = sorted((table, key) for (table, key), row in rows.items() if row is not None)
    found = sorted(
        (each.value["source"]["table"], _key_value(each.key))
        for each in snapshot
        if each.value and each.value["source"]["table"] != "ledger"
    )
    if found != expected:
        yield f"the snapshot at {number} has {len(found)} rows, not {len(expected)}"
    for each in snapshot:
        assert each.value is not None
        place = (each.value["source"]["table"], _key_value(each.key))
        # A column that was added since has its default.
        if place in rows and rows[place] is not None and not rows[place].items() <= each.value["after"].items():
            yield f"the snapshot has {each.value['after']}, not {rows[place]}"
    if len({each.transaction for each in snapshot}) > 1:
        yield "the snapshot is torn"


def _stream_problems(
    streamed: Mapping[str, list[Stored]], history: Mapping[int, list[Event]], number: int
) -> Iterator[str]:
    numbers = []
    for identifier in sorted(streamed, key=_commit_lsn):
        records = sorted(streamed[identifier], key=lambda each: _value(each)["transaction"]["total_order"])
        if len({each.transaction for each in records}) > 1:
            yield f"transaction {identifier} is torn over several of Kafka's"
        (n, *others) = [
            _value(each)["after"]["n"] for each in records if _value(each)["source"]["table"] == "ledger"
        ] or [-1]
        if others or n < 0:
            yield f"transaction {identifier} has {len(others) + 1 if n >= 0 else 0} changes of the ledger"
        numbers.append(n)
        found = [
            Event(_value(each)["source"]["table"], _value(each)["op"], each.key, _value(each)["after"])
            for each in records
            if _value(each)["source"]["table"] != "ledger"
        ]
        changes = [each for each in history.get(n, []) if each.op != "t" or each.table not in COMPACTED]
        if found != changes:
            yield f"transaction {identifier}, number {n}, is {found[:3]}..., not {changes[:3]}..."
    expected = list(range(number + 1, max(history) + 1))
    if numbers != expected:
        missing, surplus = sorted({*expected} - {*numbers})[:5], sorted({*numbers} - {*expected})[:5]
        yield f"{len(numbers)} transactions instead of {len(expected)}: missing {missing}, surplus {surplus}"


def _history(server: PostgresServer) -> dict[int, list[Event]]:
    """By number, up to the last transaction."""
    found: dict[int, list[Event]] = defaultdict(list)
    for n, table, op, old, new, row in server.rows(
        "SELECT n, name, op, old_key, new_key, row FROM history ORDER BY position"
    ):
        match op:
            case "TRUNCATE":
                found[n].append(Event(table, "t", None, None))
            case "DELETE":
                found[n].append(Event(table, "d", old, None))
            case "UPDATE" if old == new:
                found[n].append(Event(table, "u", new, row))
            case _:
                found[n] += [Event(table, "d", old, None)] * (op == "UPDATE") + [Event(table, "c", new, row)]
    ((last,),) = server.rows("SELECT n FROM ledger")
    found[last] = found.get(last, [])
    return found


def stored(place: str, transaction: tuple[int, int], key: bytes | None, value: bytes | None) -> Stored:
    return Stored(place, transaction, json.loads(key or b"null"), None if value is None else json.loads(value))


def _value(record: Stored) -> dict[str, Any]:
    assert record.value is not None
    return record.value


def _key_value(key: dict[str, Any] | None) -> Any:
    """Whatever its column was called."""
    return None if key is None else next(iter(key.values()), None)


def _op(record: Stored) -> str | None:
    return None if record.value is None else record.value["op"]


def _commit_lsn(identifier: str) -> int:
    return int(identifier.split(":")[1])
