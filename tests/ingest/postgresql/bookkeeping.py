"""A database that keeps its own history, and the comparison of topics with it.

Every transaction first increments the number in ``ledger``, whose row it then holds until its end. So the numbers are
in the order of the commits. Triggers write each change to ``history``, in the same transaction. The snapshot shows one
number: all transactions up to it must be in the snapshot, and each later one, whole, in the stream.
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

from tests.spark.targets.postgres.server import PostgresServer

TABLES: Final = ("a", "b")
TOPICS: Final = {f"shop.public.{name}": partitions for name, partitions in (("ledger", 1), ("a", 3), ("b", 2))}
SCHEMA: Final = """
    CREATE TABLE ledger (id int PRIMARY KEY, n bigint NOT NULL);
    INSERT INTO ledger VALUES (1, 0);
    CREATE TABLE a (id int PRIMARY KEY, v text, n bigint NOT NULL);
    CREATE TABLE b (LIKE a INCLUDING ALL);
    CREATE TABLE history (position bigserial, n bigint, name text, op text, old_id int, row jsonb);
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO history (n, name, op, old_id, row) VALUES ((SELECT n FROM ledger), TG_TABLE_NAME, TG_OP,
            CASE WHEN TG_OP <> 'INSERT' THEN OLD.id END, CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) END);
        RETURN NULL;
    END $$;
    CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON a FOR EACH ROW EXECUTE FUNCTION note();
    CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON b FOR EACH ROW EXECUTE FUNCTION note();
    CREATE PUBLICATION einmal_publication FOR TABLE ledger, a, b;
"""
_KEYS: Final = 200
_NEXT: Final = "UPDATE ledger SET n = n + 1"


class Event(NamedTuple):
    """A change, as history and topics both have it. ``row``: None of a delete."""

    table: str
    op: str
    key: int
    row: dict[str, Any] | None


class Stored(NamedTuple):
    """A record of a topic. ``transaction``: producer id and epoch of its Kafka transaction; ``value``: None of a
    tombstone."""

    place: str
    transaction: tuple[int, int]
    key: dict[str, Any]
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
    match chance.randrange(6):
        case 0:
            statement = f"DELETE FROM {table} WHERE id = {key}"
        case 1:
            free = f"NOT EXISTS (SELECT FROM {table} WHERE id = {other})"
            statement = f"UPDATE {table} SET id = {other}, n = (SELECT n FROM ledger) WHERE id = {key} AND {free}"
        case _:
            statement = (
                f"INSERT INTO {table} (id, v, n) SELECT {key}, %s, n FROM ledger"
                " ON CONFLICT (id) DO UPDATE SET v = excluded.v, n = excluded.n"
            )
            connection.execute(statement, (text,))
            return
    connection.execute(statement)


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
    before: Stored | None = None
    for each in records:
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
    rows: dict[tuple[str, int], Any] = {}
    for n in range(number + 1):
        for event in history.get(n, ()):
            rows[event.table, event.key] = event.row
    expected = sorted((table, key) for (table, key), row in rows.items() if row is not None)
    found = sorted(
        (each.value["source"]["table"], each.key["id"])
        for each in snapshot
        if each.value and each.value["source"]["table"] != "ledger"
    )
    if found != expected:
        yield f"the snapshot at {number} has {len(found)} rows, not {len(expected)}"
    for each in snapshot:
        assert each.value is not None
        place = (each.value["source"]["table"], each.key["id"])
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
            Event(_value(each)["source"]["table"], _value(each)["op"], each.key["id"], _value(each)["after"])
            for each in records
            if _value(each)["source"]["table"] != "ledger"
        ]
        if found != history.get(n, []):
            yield f"transaction {identifier}, number {n}, is {found[:3]}..., not {history.get(n, [])[:3]}..."
    expected = list(range(number + 1, max(history) + 1))
    if numbers != expected:
        missing, surplus = sorted({*expected} - {*numbers})[:5], sorted({*numbers} - {*expected})[:5]
        yield f"{len(numbers)} transactions instead of {len(expected)}: missing {missing}, surplus {surplus}"


def _history(server: PostgresServer) -> dict[int, list[Event]]:
    """By number, up to the last transaction."""
    found: dict[int, list[Event]] = defaultdict(list)
    for n, table, op, old_id, row in server.rows("SELECT n, name, op, old_id, row FROM history ORDER BY position"):
        if op == "DELETE":
            found[n].append(Event(table, "d", old_id, None))
        elif op == "UPDATE" and old_id == row["id"]:
            found[n].append(Event(table, "u", old_id, row))
        else:
            found[n] += [Event(table, "d", old_id, None)] * (op == "UPDATE") + [Event(table, "c", row["id"], row)]
    ((last,),) = server.rows("SELECT n FROM ledger")
    found[last] = found.get(last, [])
    return found


def stored(place: str, transaction: tuple[int, int], key: bytes | None, value: bytes | None) -> Stored:
    return Stored(place, transaction, json.loads(key or b"null"), None if value is None else json.loads(value))


def _value(record: Stored) -> dict[str, Any]:
    assert record.value is not None
    return record.value


def _op(record: Stored) -> str | None:
    return None if record.value is None else record.value["op"]


def _commit_lsn(identifier: str) -> int:
    return int(identifier.split(":")[1])
