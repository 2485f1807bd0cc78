"""Produce the rows of an outbox table, each exactly once: the position in the table is a record of each transaction.

1. ``init_transactions`` fences the relay before this one, and ends its last transaction: committed or aborted.
2. Only then is the position read. Nobody can change it any more without this relay's epoch.
3. Rows behind the position, and the new position, are one transaction.

``--at-least-once`` is what many relays do, for comparison: produce, then mark the position in the database.
"""

import argparse
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing

from examples.outbox.shop import connect
from examples.program import run

from einmal.client import Consumer, Producer, TopicPartition

POSITIONS = TopicPartition("shop-outbox-positions", 0)
"""Compacted: the last position of each relay is kept."""
_ROWS = 100
_IDLE_S = 0.05

Row = tuple[int, str, str, str]


def servers() -> dict[str, str]:
    return {"bootstrap.servers": os.environ.get("KAFKA_BROKERS", "127.0.0.1:9092")}


def committed_position(name: str) -> int:
    """The last outbox id that a transaction of this relay has committed; 0: none."""
    position = 0
    with Consumer({**servers(), "isolation.level": "read_committed"}) as consumer:
        consumer.assign([POSITIONS])
        consumer.seek_to_beginning(POSITIONS)
        end = consumer.end_offsets(POSITIONS)[POSITIONS]
        while consumer.position(POSITIONS) < end:
            for record in consumer.poll(1_000):
                if record.key == name.encode():
                    position = json.loads(record.value or b"0")
    return position


def rows_behind(database: sqlite3.Connection, position: int, *, ends: bool) -> Iterator[list[Row]]:
    """Rows in the order of their ids, as they come. ``ends``: with the last one that is there."""
    while True:
        query = "SELECT id, topic, key, value FROM outbox WHERE id > ? ORDER BY id LIMIT ?"
        rows = database.execute(query, (position, _ROWS)).fetchall()
        if rows:
            yield rows
            position = rows[-1][0]
        elif ends:
            return
        else:
            time.sleep(_IDLE_S)


def relay(database: sqlite3.Connection, name: str, *, ends: bool) -> None:
    with Producer({**servers(), "transactional.id": name}) as producer:
        producer.init_transactions()
        for rows in rows_behind(database, committed_position(name), ends=ends):
            with producer.transaction() as transaction:
                for _, topic, key, value in rows:
                    transaction.send(topic, value, key=key)
                position, *_ = rows[-1]
                transaction.send(POSITIONS.topic, json.dumps(position), key=name, partition=POSITIONS.partition)


def relay_at_least_once(database: sqlite3.Connection, *, ends: bool) -> None:
    database.execute("CREATE TABLE IF NOT EXISTS relayed (position INTEGER NOT NULL)")
    (position,) = database.execute("SELECT coalesce(max(position), 0) FROM relayed").fetchone()
    with Producer(servers()) as producer:
        for rows in rows_behind(database, position, ends=ends):
            for _, topic, key, value in rows:
                producer.send(f"{topic}-at-least-once", value, key=key)
            producer.flush()
            # A relay that dies here has produced the rows, and will produce them again.
            database.execute("INSERT INTO relayed VALUES (?)", (rows[-1][0],))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database")
    parser.add_argument("--name", default="shop-relay", help="The transactional.id.")
    parser.add_argument("--at-least-once", action="store_true")
    parser.add_argument("--ends", action="store_true", help="End when every row that is there is relayed.")
    options = parser.parse_args()
    with closing(connect(options.database)) as database:
        if options.at_least_once:
            relay_at_least_once(database, ends=options.ends)
        else:
            relay(database, options.name, ends=options.ends)


if __name__ == "__main__":
    run(main)
