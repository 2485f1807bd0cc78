"""Write orders in the first cluster: each is a record of its own and one to four items, in one transaction."""

import argparse
import json
import os
import random
import time

from examples.program import run

from einmal.client import KafkaError, Producer

ORDERS, ITEMS, BILLS = "moved-orders", "moved-items", "moved-bills"
FIRST = os.environ.get("KAFKA_BROKERS", "127.0.0.1:9092")
SECOND = os.environ.get("SECOND_BROKERS", "127.0.0.1:9192")
_PAUSE_S = 0.02


def items_of(number: int) -> list[int]:
    """The prices of an order's items, in cents: the same for everybody who asks."""
    chance = random.Random(number)
    return [chance.randint(100, 9_999) for _ in range(chance.randint(1, 4))]


def place(producer: Producer, number: int) -> None:
    prices = items_of(number)
    with producer.transaction() as transaction:
        transaction.send(ORDERS, json.dumps({"order": number, "items": len(prices)}), key=str(number))
        for index, cents in enumerate(prices):
            transaction.send(
                ITEMS, json.dumps({"order": number, "item": index, "cents": cents}), key=f"{number}-{index}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=2_000)
    orders = parser.parse_args().orders
    with Producer({"bootstrap.servers": FIRST, "transactional.id": "moved-shop"}) as producer:
        # Raises if there is no broker at all; later, an order is placed again until it is in.
        producer.init_transactions()
        for number in range(1, orders + 1):
            while True:
                try:
                    place(producer, number)
                    break
                except KafkaError as error:
                    print(f"order {number} is placed again: {error}")
            time.sleep(_PAUSE_S)


if __name__ == "__main__":
    run(main)
