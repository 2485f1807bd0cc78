"""Compare the events of a topic with the orders of the database, which is the truth.

Reads the topic from stdin, as ``einmal topic consume --format json`` prints it.
"""

import argparse
from collections import Counter, defaultdict
from contextlib import closing
from itertools import pairwise

from examples.program import database, difference, fail, lines, objects, record_values, run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database")
    with closing(database(parser.parse_args().database)) as shop:
        orders = Counter(shop.execute("SELECT number, customer, cents FROM orders").fetchall())
    if not orders:
        fail("the shop has no orders: there is nothing to compare.")
    parsed, torn = objects(record_values(lines()))
    events = [tuple(event.get(name) for name in ("number", "customer", "cents")) for event in parsed]
    lost, repeated, wrong = difference(orders, Counter(events))
    by_customer = defaultdict(list)
    for number, customer, _ in events:
        if isinstance(number, int):
            by_customer[customer].append(number)
    disorder = sum(before > after for numbers in by_customer.values() for before, after in pairwise(numbers))
    print(
        f"{orders.total():,} orders, {len(events) + torn:,} events: {lost} lost, {repeated} repeated, "
        f"{wrong + torn} wrong, {disorder} out of a customer's order"
    )
    return 1 if lost or repeated or wrong or torn or disorder else 0


if __name__ == "__main__":
    run(main)
