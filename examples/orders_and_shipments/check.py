"""Compare the answers with a recount of the orders and shipments, in plain Python.

Reads both output topics from stdin, as ``einmal topic consume --format json`` prints them. An answer in
the wrong topic, with another time, or torn, is wrong.
"""

import argparse
import json
from collections import Counter
from datetime import datetime, timedelta

from examples.orders_and_shipments.generate import Shop
from examples.program import difference, lines, objects, run

SHIPPED_WITHIN = timedelta(hours=1)
LATE = timedelta(minutes=10)

Answer = tuple[int, datetime, datetime | None]
"""Order, when it was ordered, when it was shipped; None: not in time."""


def expected(shop: Shop) -> list[Answer]:
    """Of all orders but those whose shipment may still arrive in time: which is certain by the watermark."""
    shipments = {event.order_id: event.at for event in shop.shipments}
    watermark = min(max(event.at for event in events) for events in (shop.orders, shop.shipments)) - LATE
    answers: list[Answer] = []
    for order in shop.orders:
        shipped_at = shipments.get(order.order_id)
        if shipped_at is not None and shipped_at <= order.at + SHIPPED_WITHIN:
            answers.append((order.order_id, order.at, shipped_at))
        elif order.at + SHIPPED_WITHIN < watermark:
            answers.append((order.order_id, order.at, None))
    return answers


def answer_of(value: str | None) -> Answer | None:
    """None: it is no answer, or a torn one."""
    try:
        answer = json.loads(value or "")
        shipped_at = answer.get("shipped_at")
        return (
            answer["order_id"],
            datetime.fromisoformat(answer["ordered_at"]),
            None if shipped_at is None else datetime.fromisoformat(shipped_at),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    shop = Shop(parser.parse_args().seed)
    records, torn = objects(lines())
    found: Counter[tuple[object, Answer | None]] = Counter(
        (record.get("topic"), answer_of(record.get("value"))) for record in records
    )
    found[None, None] += torn
    wanted = Counter(("orders-overdue" if answer[2] is None else "orders-shipped", answer) for answer in expected(shop))
    lost, repeated, wrong = difference(wanted, found)
    print(f"{wanted.total():,} orders, {found.total():,} answers: {lost} lost, {repeated} repeated, {wrong} wrong")
    return 1 if lost or repeated or wrong else 0


if __name__ == "__main__":
    run(main)
