"""A shop that stores each order and the event about it in one transaction of its database. Knows nothing of Kafka.

Every tenth payment is refused: its transaction is rolled back, order and event with it. Orders follow from their
number, so a shop that was killed continues where its database ends.
"""

import argparse
import json
import random
import sqlite3
import time

SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, customer TEXT NOT NULL, cents INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL
);
"""
# AUTOINCREMENT: an id never comes back, also where rows are deleted. One transaction writes at a time, so ids are in
# the order of commits: a reader that has seen one never finds a lower one later.
TOPIC = "shop-orders"
CUSTOMERS = 40
_PAUSE_S = 0.004


class PaymentRefused(Exception):
    pass


def connect(path: str) -> sqlite3.Connection:
    """In autocommit mode; readers and the writer do not wait for each other."""
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(SCHEMA)
    return connection


def order_of(number: int) -> tuple[str, int]:
    """Customer and amount in cents."""
    chance = random.Random(number)
    return f"customer-{chance.randrange(CUSTOMERS):02}", chance.randrange(100, 10_000)


def place(database: sqlite3.Connection, number: int) -> None:
    customer, cents = order_of(number)
    event = json.dumps({"number": number, "customer": customer, "cents": cents})
    database.execute("BEGIN IMMEDIATE")
    try:
        database.execute("INSERT INTO orders VALUES (?, ?, ?)", (number, customer, cents))
        database.execute("INSERT INTO outbox (topic, key, value) VALUES (?, ?, ?)", (TOPIC, customer, event))
        if number % 10 == 0:
            raise PaymentRefused
        database.execute("COMMIT")
    except PaymentRefused:
        database.execute("ROLLBACK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database")
    parser.add_argument("--orders", type=int, default=3_000)
    options = parser.parse_args()
    database = connect(options.database)
    (last,) = database.execute("SELECT coalesce(max(number), 0) FROM orders").fetchone()
    for number in range(last + 1, options.orders + 1):
        place(database, number)
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main()
