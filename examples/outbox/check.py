"""Compare the events of a topic with the orders of the database, which is the truth.

Reads the topic from stdin, as ``einmal topic consume --format json`` prints it.
"""

import argparse
import json
import sqlite3
import sys
from collections import Counter, defaultdict
from itertools import pairwise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database")
    database = sqlite3.connect(parser.parse_args().database)
    orders = {row[0]: row for row in database.execute("SELECT number, customer, cents FROM orders")}
    events = [json.loads(json.loads(line)["value"]) for line in sys.stdin]
    times = Counter(event["number"] for event in events)
    lost = sum(number not in times for number in orders)
    repeated = sum(count - 1 for count in times.values())
    wrong = sum((event["number"], event["customer"], event["cents"]) != orders.get(event["number"]) for event in events)
    by_customer = defaultdict(list)
    for event in events:
        by_customer[event["customer"]].append(event["number"])
    disorder = sum(before > after for numbers in by_customer.values() for before, after in pairwise(numbers))
    print(
        f"{len(orders):,} orders, {len(events):,} events: {lost} lost, {repeated} repeated, {wrong} wrong, "
        f"{disorder} out of a customer's order"
    )
    sys.exit(1 if lost or repeated or wrong or disorder else 0)


if __name__ == "__main__":
    main()
