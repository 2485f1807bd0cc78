"""Count orders, items and bills in both clusters, independently of everything else."""

import json
import sys
from collections import Counter

from examples.two_clusters.shop import BILLS, FIRST, ITEMS, ORDERS, SECOND, items_of

from einmal.client import Consumer


def values(servers: str, topic: str) -> list[dict[str, int]]:
    """All committed records of a topic, with the partition and the order that they have there."""
    found = []
    with Consumer({"bootstrap.servers": servers, "isolation.level": "read_committed"}) as consumer:
        partitions = consumer.partitions_for_topic(topic)
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(*partitions)
        while any(consumer.position(each) < ends[each] for each in partitions):
            found += [(record.partition, json.loads(record.value or b"{}")) for record in consumer.poll(500)]
    return [value for _, value in sorted(found, key=lambda each: each[0])]


def main() -> None:
    orders, items = values(FIRST, ORDERS), values(FIRST, ITEMS)
    copies, copied_items = values(SECOND, f"A.{ORDERS}"), values(SECOND, f"A.{ITEMS}")
    bills = Counter(bill["order"] for servers in (FIRST, SECOND) for bill in values(servers, BILLS))
    differ = sum(copies != orders for copies, orders in ((copies, orders), (copied_items, items)))
    parts = Counter(item["order"] for item in copied_items)
    torn = sum(parts[order["order"]] != len(items_of(order["order"])) for order in copies)
    never = sum(order["order"] not in bills for order in orders)
    twice = sum(count > 1 for count in bills.values())
    moved = len(values(SECOND, BILLS))
    print(
        f"{len(orders):,} orders, {len(copies):,} copied: {differ} topics differ, {torn} torn; "
        f"{never} never billed, {twice} billed twice"
    )
    print(f"{sum(bills.values()) - moved:,} bills in the first cluster, {moved:,} in the second")
    sys.exit(1 if differ or torn or never or twice else 0)


if __name__ == "__main__":
    main()
