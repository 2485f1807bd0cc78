"""Count orders, items and bills in both clusters, independently of everything else.

The records of a partition are compared as lists: the copies with the originals, and the bills of both clusters, one
after the other, with the orders.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Mapping

from examples.program import fail, objects, records, run
from examples.two_clusters.shop import BILLS, FIRST, ITEMS, ORDERS, SECOND, items_of

Topic = Mapping[int, list[str]]
"""Values by partition."""


def values(servers: str, topic: str) -> Topic:
    found = defaultdict(list)
    for record in records(servers, topic):
        found[record.partition].append((record.value or b"").decode(errors="replace"))
    return found


def numbers(topic: Topic) -> list[int | None]:
    """The order that each record is of; None: it is torn."""
    found, torn = objects(_all(topic))
    return [each.get("order") for each in found] + [None] * torn


def _all(topic: Topic) -> list[str]:
    return [value for partition in sorted(topic) for value in topic[partition]]


def torn(orders: Topic, items: Topic) -> int:
    """Orders that have not exactly the items that the shop has written with them."""
    parts: dict[int | None, Counter[tuple[int, int]]] = defaultdict(Counter)
    for item in objects(_all(items))[0]:
        parts[item.get("order")][item.get("item", -1), item.get("cents", -1)] += 1
    return sum(parts[number] != _parts(number) for number in {*numbers(orders), *parts})


def _parts(number: int | None) -> Counter[tuple[int, int]]:
    return Counter() if number is None else Counter(enumerate(items_of(number)))


def billed(orders: Topic, first: Topic, second: Topic) -> tuple[int, int, int]:
    """Orders without a bill; bills too many, or of no order; partitions whose bills are not in the orders' order."""
    expected, found = Counter(_all(orders)), Counter(_all(first) + _all(second))
    late = 0
    if expected == found:
        partitions = orders.keys() | first.keys() | second.keys()
        late = sum([*first.get(each, []), *second.get(each, [])] != orders.get(each, []) for each in partitions)
    return (expected - found).total(), (found - expected).total(), late


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    orders, items = values(FIRST, ORDERS), values(FIRST, ITEMS)
    if not orders:
        fail(f"topic {ORDERS} is empty: there is nothing to compare.")
    copies, copied_items = values(SECOND, f"A.{ORDERS}"), values(SECOND, f"A.{ITEMS}")
    first, second = values(FIRST, BILLS), values(SECOND, BILLS)
    differ = sum(copy != original for copy, original in ((copies, orders), (copied_items, items)))
    torn_orders = torn(copies, copied_items)
    never, twice, late = billed(orders, first, second)
    print(
        f"{len(_all(orders)):,} orders, {len(_all(copies)):,} copied: {differ} topics differ, {torn_orders} torn; "
        f"{never} never billed, {twice} billed twice or wrong, {late} partitions billed out of order"
    )
    print(f"{len(_all(first)):,} bills in the first cluster, {len(_all(second)):,} in the second")
    return 1 if differ or torn_orders or never or twice or late else 0


if __name__ == "__main__":
    run(main)
