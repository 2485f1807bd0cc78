"""Compare the database with the topic: ``ACCOUNT BALANCE WALLET`` lines, and the totals.

Reads only committed records. While the transfers run, the topic may be one transfer behind the database.
"""

import os
import sqlite3
import sys
from collections import Counter
from contextlib import closing

from examples.transfers.transfers import TOPIC

from einmal.client import Consumer


def wallets(brokers: str) -> Counter[str]:
    """What was paid into the wallet of each account."""
    found: Counter[str] = Counter()
    with Consumer({"bootstrap.servers": brokers, "auto.offset.reset": "earliest"}) as consumer:
        keys = consumer.partitions_for_topic(TOPIC)
        consumer.assign(keys)
        ends = consumer.end_offsets(*keys)
        while any(consumer.position(key) < ends[key] for key in keys):
            for record in consumer.poll(200):
                found[(record.key or b"").decode()] += int(record.value or b"")
    return found


def main() -> None:
    paid = wallets(os.environ.get("KAFKA_BROKERS", "localhost:9092"))
    with closing(sqlite3.connect(sys.argv[1])) as database:
        balances = dict(database.execute("SELECT name, balance FROM accounts ORDER BY name"))
        made, refused = database.execute("SELECT sum(amount > 0), sum(amount = 0) FROM transfers").fetchone()
    for account, balance in balances.items():
        print(account, balance, paid[account])
    in_database, in_topic = sum(balances.values()), sum(paid.values())
    print(
        f"made {made}, refused {refused}: {in_database} in accounts + {in_topic} in wallets = {in_database + in_topic}"
    )


if __name__ == "__main__":
    main()
