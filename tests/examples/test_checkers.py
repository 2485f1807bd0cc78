"""Claims about the checkers of the examples: none is green when a record is lost, repeated, torn or late.

The real programs run, on output that is made up. What is late depends on what the output promises: a record behind a
later one, a window of a later time, a row in an older state.
"""

from __future__ import annotations

import io
import json
import random
import runpy
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from examples.accounts.bank import Event, bank_of
from examples.machine_logs.write import line_of
from examples.orders_and_shipments import check as answers
from examples.orders_and_shipments.generate import Shop
from examples.outbox.shop import order_of
from examples.payments import check as alerts
from examples.payments.generate import Stream
from examples.repaired_payments.generate import payments

from einmal.client import Admin, NewTopic, Producer
from einmal.types import TopicPartition
from tests.interop.einmal_broker import EinmalBroker

Lines = list[str]
_PLACES: Final = 4
"""Positions at which each fault is tried."""


@dataclass(frozen=True)
class Case:
    """The right input of a checker, line by line. ``torn``: a line that was cut; ``late``: one that came late."""

    name: str
    lines: Lines
    torn: Callable[[str], str]
    late: Callable[[Lines, int], Lines]
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


def run(
    monkeypatch: pytest.MonkeyPatch, module: str, lines: Iterable[str] = (), arguments: Sequence[str] = ()
) -> int | str | None:
    """The exit status of a program. Nothing but SystemExit may leave it."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    monkeypatch.setattr(sys, "argv", [module, *arguments])
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__")
    return ended.value.code


# --- checkers of stdin ----------------------------------------------------------------------------------------------


def record(topic: str, value: str | None) -> str:
    return json.dumps({"topic": topic, "partition": 0, "offset": 0, "key": None, "value": value})


def cut_value(line: str) -> str:
    """The record is whole, its value is not."""
    found = json.loads(line)
    return json.dumps(found | {"value": found["value"][:-2]})


def cut(line: str) -> str:
    return line[: len(line) // 2]


def moved(lines: Lines, place: int) -> Lines:
    """A record behind all later ones."""
    return [*lines[:place], *lines[place + 1 :], lines[place]]


def changed(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Lines, int], Lines]:
    """The record of another time, in place of the right one."""

    def late(lines: Lines, place: int) -> Lines:
        return [*lines[:place], json.dumps(change(json.loads(lines[place]))), *lines[place + 1 :]]

    return late


def alert_lines() -> Lines:
    names = ("card", "reason", "since", "payments", "largest")
    found = []
    for card, reason, since, *numbers in alerts.expected(Stream(1).payments):
        found.append(json.dumps(dict(zip(names, (card, reason, since.isoformat(), *numbers), strict=True))))
    return found


def next_window(alert: dict[str, Any]) -> dict[str, Any]:
    return alert | {"since": (datetime.fromisoformat(alert["since"]) + timedelta(minutes=10)).isoformat()}


def answer_lines() -> Lines:
    found = []
    for number, ordered, shipped in answers.expected(Shop(1)):
        answer = {"order_id": number, "ordered_at": ordered.isoformat()}
        if shipped is not None:
            answer["shipped_at"] = shipped.isoformat()
        found.append(record("orders-shipped" if shipped else "orders-overdue", json.dumps(answer)))
    return found


def overdue(line: dict[str, Any]) -> dict[str, Any]:
    """The answer before the shipment came; of an overdue order: a shipment after its time."""
    value = json.loads(line["value"])
    if value.pop("shipped_at", None) is None:
        return line | {"topic": "orders-shipped"}
    return line | {"topic": "orders-overdue", "value": json.dumps(value)}


def order_lines() -> Lines:
    found = []
    for number in range(1, 300):
        customer, cents = order_of(number)
        found.append(record("shop-orders", json.dumps({"number": number, "customer": customer, "cents": cents})))
    return found


def shop_database(path: Path) -> str:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("CREATE TABLE orders (number INTEGER PRIMARY KEY, customer TEXT, cents INTEGER)")
        orders = [(number, *order_of(number)) for number in range(1, 300)]
        database.execute("BEGIN")
        database.executemany("INSERT INTO orders VALUES (?, ?, ?)", orders)
        database.execute("COMMIT")
    return str(path)


def count_lines() -> Lines:
    """Three batches of a line each, with the same words."""
    return [f"{word} {count}" for count in (1, 2, 3) for word in ("a", "b", "c", "d", "e")]


CASES: Final = (
    Case("payments", alert_lines(), cut, changed(next_window)),
    Case(
        "machine_logs",
        [record("logs", line_of(name, number)) for name in ("web", "mail", "cron") for number in range(1, 51)],
        cut_value,
        # Between files there is no order: nothing is late but the lines of another run.
        lambda lines, place: [*lines[:place], record("logs", line_of("web", 51 + place)), *lines[place + 1 :]],
        ("--lines", "50"),
    ),
    Case("outbox", order_lines(), cut_value, moved),
    Case(
        "repaired_payments",
        [json.dumps(each) for each in payments(1)],
        lambda line: line[:-1],
        changed(lambda payment: payment | {"cents": payment["cents"] * 10**8}),
    ),
    Case("orders_and_shipments", answer_lines(), cut_value, changed(overdue)),
    Case("word_count", count_lines(), lambda line: line[:-1], moved),
)


@pytest.fixture
def arguments(tmp_path: Path) -> dict[str, tuple[str, ...]]:
    """What some checkers compare with."""
    text = tmp_path / "text"
    text.write_text("a b c d e\n" * 3)
    return {"outbox": (shop_database(tmp_path / "shop.db"),), "word_count": (str(text), "--batch", "1")}


def faults(case: Case) -> Iterator[tuple[str, Lines]]:
    chance, lines = random.Random(case.name), case.lines
    # The last events of the outbox have none of their customers behind them.
    for place in chance.sample(range(len(lines) * 2 // 3), _PLACES):
        yield f"lost {place}", [*lines[:place], *lines[place + 1 :]]
        yield f"repeated at once {place}", [*lines[: place + 1], *lines[place:]]
        yield f"repeated at the end {place}", [*lines, lines[place]]
        yield f"torn {place}", [*lines[:place], case.torn(lines[place]), *lines[place + 1 :]]
        yield f"torn line {place}", [*lines[:place], cut(lines[place]), *lines[place + 1 :]]
        yield f"late {place}", case.late(lines, place)
    yield "all repeated", lines * 2
    yield "half", lines[: len(lines) // 2]
    yield "nothing", []


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_checker_is_green_for_the_right_output_and_red_for_every_fault(
    case: Case, arguments: dict[str, tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, given = f"examples.{case.name}.check", arguments.get(case.name, case.arguments)
    assert run(monkeypatch, module, case.lines, given) == 0
    unseen = [what for what, lines in faults(case) if run(monkeypatch, module, lines, given) not in (1, 2)]
    assert not unseen


def test_a_checker_that_has_nothing_to_compare_is_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = shop_database(tmp_path / "empty.db")
    with closing(sqlite3.connect(empty, isolation_level=None)) as database:
        database.execute("DELETE FROM orders")
    assert run(monkeypatch, "examples.outbox.check", [], [empty]) == 2
    assert run(monkeypatch, "examples.outbox.check", order_lines(), [str(tmp_path / "mistyped.db")]) == 2
    assert not (tmp_path / "mistyped.db").exists()


# --- checkers of PostgreSQL: what they compare ------------------------------------------------------------------------


def test_the_views_of_accounts_are_compared_with_a_replay_of_all_events(capsys: pytest.CaptureFixture[str]) -> None:
    from examples.accounts.check import compared, replayed

    events = [
        record("account-events", json.dumps({"id": each.id, "type": each.type, "account": each.account,
                                             "cents": each.cents, "to": each.to}))
        for each in bank_of(1).events[:200]
    ]  # fmt: skip
    entries = replayed(events)
    counters: dict[str, tuple[int, int]] = {}
    for _, account, cents in entries:
        count, total = counters.get(account, (0, 0))
        counters[account] = (count + 1, total + cents)
    balances = {account: cents for account, (_, cents) in counters.items()}
    assert compared(entries, counters, balances, entries)
    (event, account, cents), others = entries[7], entries[:7] + entries[8:]
    for wrong in (others, [*entries, entries[7]], [*others, (event, account, cents + 1)], [*entries, (9_999, "x", 1)]):
        assert not compared(wrong, counters, balances, entries)
    for count, total in ((counters[account][0] - 1, balances[account]), (counters[account][0], 0)):
        assert not compared(entries, counters | {account: (count, total)}, balances, entries)
    # Of an older batch; of an account that no event names; none.
    for wrong_balances in (balances | {account: balances[account] - cents}, balances | {"x": 0}, {}):
        assert not compared(entries, counters, wrong_balances, entries)
    assert "1 repeated" in capsys.readouterr().out
    for torn in (cut(events[3]), cut_value(events[3]), record("account-events", None)):
        with pytest.raises(SystemExit):
            replayed([*events[:3], torn, *events[4:]])
    assert Event(**json.loads(json.loads(events[0])["value"])).id == 1


# --- checkers of topics ---------------------------------------------------------------------------------------------

Rows = list[tuple[int, str, str]]
"""Partition, key and value of records."""


class Topics:
    """Topics of one cluster, filled anew for each fault."""

    def __init__(self, bootstrap: str, *names: str) -> None:
        self.bootstrap = bootstrap
        self._places = [TopicPartition(name, partition) for name in names for partition in range(2)]
        with Admin({"bootstrap.servers": bootstrap}) as admin:
            admin.create_topics([NewTopic(name, 2) for name in names], if_not_exists=True)

    def fill(self, topics: dict[str, Rows]) -> None:
        with Admin({"bootstrap.servers": self.bootstrap}) as admin:
            admin.delete_records(dict.fromkeys(self._places, -1))
        with Producer({"bootstrap.servers": self.bootstrap}) as producer:
            for topic, rows in topics.items():
                for partition, key, value in rows:
                    producer.send(topic, value, key=key, partition=partition)
            producer.flush()


def row_faults(rows: Rows, place: int) -> Iterator[tuple[str, Rows]]:
    partition, key, value = rows[place]
    before, behind = rows[:place], rows[place + 1 :]
    yield "lost", [*before, *behind]
    yield "repeated at once", [*before, rows[place], *rows[place:]]
    yield "repeated at the end", [*rows, rows[place]]
    yield "torn", [*before, (partition, key, value[:-1]), *behind]
    yield "late", [*before, *behind, rows[place]]


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EinmalBroker]:
    broker = EinmalBroker(tmp_path_factory.mktemp("second"))
    broker.start()
    yield broker
    broker.stop()


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.long
def test_the_check_of_two_clusters_sees_every_fault_in_copies_items_and_bills(
    broker: EinmalBroker, second: EinmalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from examples.two_clusters import shop

    monkeypatch.setattr(shop, "FIRST", broker.bootstrap)
    monkeypatch.setattr(shop, "SECOND", second.bootstrap)
    first = Topics(broker.bootstrap, shop.ORDERS, shop.ITEMS, shop.BILLS)
    other = Topics(second.bootstrap, f"A.{shop.ORDERS}", f"A.{shop.ITEMS}", shop.BILLS)
    orders: Rows = []
    items: Rows = []
    for number in range(1, 11):
        prices = shop.items_of(number)
        orders.append((number % 2, str(number), json.dumps({"order": number, "items": len(prices)})))
        for index, cents in enumerate(prices):
            value = json.dumps({"order": number, "item": index, "cents": cents})
            items.append((number % 2, f"{number}-{index}", value))

    def status(originals: dict[str, Rows], copies: dict[str, Rows]) -> int | str | None:
        first.fill(originals)
        other.fill(copies)
        return run(monkeypatch, "examples.two_clusters.check")

    originals = {shop.ORDERS: orders, shop.ITEMS: items, shop.BILLS: orders[:4]}
    copies = {f"A.{shop.ORDERS}": orders, f"A.{shop.ITEMS}": items, shop.BILLS: orders[4:]}
    assert status(originals, copies) == 0
    unseen = []
    for topics, topic in ((originals, shop.BILLS), *((copies, topic) for topic in copies)):
        for what, rows in row_faults(topics[topic], 1):
            is_original = topics is originals
            if status(originals | ({topic: rows} if is_original else {}),
                      copies | ({} if is_original else {topic: rows})) != 1:  # fmt: skip
                unseen.append((topic, what))
    assert not unseen
    assert status({}, {}) == 2


@pytest.mark.system
@pytest.mark.slow
def test_the_audit_of_transfers_sees_every_fault_in_wallets_and_accounts(
    broker: EinmalBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from examples.transfers import transfers

    monkeypatch.setenv("KAFKA_BROKERS", broker.bootstrap)
    topics, path = Topics(broker.bootstrap, transfers.TOPIC), str(tmp_path / "bank.db")
    bank = transfers.Bank(path)
    prepared = bank.acquire()
    rows: Rows = []
    for number in range(1, 13):
        account = transfers.ACCOUNTS[number % 2]
        bank.debit(number, account, 10 + number, prepared)
        rows.append((number % 2, account, str(10 + number)))
    bank.refuse(13, transfers.ACCOUNTS[0])

    def status(rows: Rows) -> int | str | None:
        topics.fill({transfers.TOPIC: rows})
        return run(monkeypatch, "examples.transfers.audit", [], [path])

    assert status(rows) == 0
    assert not [what for what, wrong in row_faults(rows, 3) if status(wrong) != 1]
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("UPDATE accounts SET balance = balance + 1 WHERE name = ?", (transfers.ACCOUNTS[3],))
    assert status(rows) == 1
    assert run(monkeypatch, "examples.transfers.audit", [], [str(tmp_path / "mistyped.db")]) == 2


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
def test_the_check_of_lookup_sees_every_fault_in_topics_and_databases(
    broker: EinmalBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from examples.lookup import pipeline

    monkeypatch.setattr(pipeline, "BROKERS", broker.bootstrap)
    monkeypatch.chdir(tmp_path)
    carts: Rows = [(number % 2, "", f"cart-{number}") for number in range(1, 7)]
    topics = Topics(broker.bootstrap, pipeline.CARTS, *(way.topic for way in pipeline.WAYS))

    def at(price: int) -> Rows:
        return [(partition, key, f"{cart} {price}") for partition, key, cart in carts]

    def status(in_topics: dict[str, Rows], in_databases: dict[str, Rows]) -> int | str | None:
        topics.fill({pipeline.CARTS: carts, **in_topics})
        for way in pipeline.WAYS:
            way.database.parent.mkdir(parents=True, exist_ok=True)
            way.database.unlink(missing_ok=True)
            with closing(sqlite3.connect(way.database, isolation_level=None)) as database:
                database.execute(f"CREATE TABLE {pipeline.TABLE} (cart_and_price TEXT)")
                rows = [(value,) for _, _, value in in_databases[way.name]]
                database.executemany(f"INSERT INTO {pipeline.TABLE} VALUES (?)", rows)
        return run(monkeypatch, "examples.lookup.check")

    right = {way.topic: at(33) for way in pipeline.WAYS} | {"priced-apart": at(31)}
    databases = {way.name: at(33) for way in pipeline.WAYS}
    assert status(right, databases) == 0
    unseen = []
    for way in pipeline.WAYS:
        # Late is here: of the attempt before.
        for what, rows in [*row_faults(at(33), 2)][:-1] + [("late", [*at(33)[:2], *at(31)[2:3], *at(33)[3:]])]:
            if status(right | {way.topic: rows}, databases) != 1:
                unseen.append((way.topic, what))
            if way.has_database and status(right, databases | {way.name: rows}) != 1:
                unseen.append((way.name, what))
    assert not unseen
    # Two sinks of one commit have the same attempt.
    assert status(right | {"priced-prepared": at(31)}, databases) == 1
    assert run(monkeypatch, "examples.lookup.check") == 1


@pytest.mark.slow
def test_the_check_of_replicated_orders_sees_every_fault_and_an_empty_shop(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two databases of the shared server."""
    from examples.replicated_orders import check, databases

    from tests.sinks.postgres.server import PASSWORD, PostgresServer
    from tests.suite.shared import shared, unique

    server: PostgresServer = shared("postgres")
    names = [unique(name).replace("-", "_") for name in ("shop", "reports")]
    for name in names:
        server.rows(f"CREATE DATABASE {name}")
    shop, reports = (server.url_of(name) for name in names)
    monkeypatch.setattr(databases, "PASSWORD", PASSWORD)
    for module in (databases, check):
        monkeypatch.setattr(module, "SHOP", shop)
        monkeypatch.setattr(module, "REPORTS", reports)
    tables = Path(databases.__file__).with_name("tables.sql").read_text()
    orders = [(number, f"customer-{number % 3}", "billed", "2026-01-01") for number in range(1, 6)]
    items = [(number, item, "tea", 2, "1.50") for number in range(1, 6) for item in (1, 2)]
    for url in (shop, reports):
        with databases.connect(url) as connection:
            connection.execute(tables)

    def status(url: str, *statements: str) -> int | str | None:
        with databases.connect(url) as connection:
            for statement in statements:
                connection.execute(statement)
        return run(monkeypatch, "examples.replicated_orders.check")

    assert run(monkeypatch, "examples.replicated_orders.check") == 2
    for url in (shop, reports):
        with databases.connect(url) as connection, connection.cursor() as cursor:
            cursor.executemany("INSERT INTO orders VALUES (%s, %s, %s, %s)", orders)
            cursor.executemany("INSERT INTO order_items VALUES (%s, %s, %s, %s, %s)", items)
    assert run(monkeypatch, "examples.replicated_orders.check") == 0
    for fault, repair in (
        (
            "DELETE FROM order_items WHERE order_id = 3 AND item = 2",
            "INSERT INTO order_items VALUES (3, 2, 'tea', 2, 1.5)",
        ),
        ("INSERT INTO orders VALUES (9, 'x', 'entered', now())", "DELETE FROM orders WHERE id = 9"),
        ("UPDATE orders SET state = 'entered' WHERE id = 2", "UPDATE orders SET state = 'billed' WHERE id = 2"),
    ):
        assert status(reports, fault) == 1
        assert status(reports, repair) == 0
