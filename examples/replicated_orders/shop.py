"""Enter, bill, change and cancel orders in the shop's database, each in one transaction, until SIGTERM.

It knows nothing of topics. The server must be there at the beginning. While it is gone later the shop waits, and
continues with what the database has then.
"""

import argparse
import random
import signal
import threading
from typing import Any

import psycopg
from examples.program import run
from examples.replicated_orders.databases import SHOP, WAYS_OUT, connect

_PAUSE_S = 0.05
_PRODUCTS = ("tea", "coffee", "cup", "kettle", "filter")


def enter(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    (order,) = connection.execute("SELECT coalesce(max(id), 0) + 1 FROM orders").fetchone() or (1,)
    customer = f"customer-{chance.randint(1, 20):02}"
    connection.execute("INSERT INTO orders VALUES (%s, %s, 'entered', now())", (order, customer))
    for item in range(1, chance.randint(2, 5)):
        row = (order, item, chance.choice(_PRODUCTS), chance.randint(1, 9), chance.randint(100, 9_999) / 100)
        connection.execute("INSERT INTO order_items VALUES (%s, %s, %s, %s, %s)", row)


def change(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    """Bill an order, change the quantities of its items, or cancel it."""
    one = "(SELECT id FROM orders ORDER BY md5(id || %s) LIMIT 1)"
    text, kind = str(chance.random()), chance.choices(("bill", "quantity", "cancel"), (6, 3, 2))[0]
    if kind == "bill":
        connection.execute(f"UPDATE orders SET state = 'billed' WHERE id = {one}", (text,))
    elif kind == "quantity":
        connection.execute(f"UPDATE order_items SET quantity = quantity + 1 WHERE order_id = {one}", (text,))
    else:
        (order,) = connection.execute(f"SELECT {one}", (text,)).fetchone() or (None,)
        connection.execute("DELETE FROM order_items WHERE order_id = %s", (order,))
        connection.execute("DELETE FROM orders WHERE id = %s", (order,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    chance, stopping = random.Random(parser.parse_args().seed), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    connect(SHOP).close()
    while not stopping.is_set():
        try:
            with connect(SHOP) as connection:
                while not stopping.wait(_PAUSE_S):
                    chance.choices((enter, change), (3, 2))[0](connection, chance)
                    connection.commit()
        except psycopg.OperationalError:
            stopping.wait(0.5)


if __name__ == "__main__":
    run(main, WAYS_OUT)
