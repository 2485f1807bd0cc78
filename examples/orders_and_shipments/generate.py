"""Generate synthetic orders and shipments from a seed: most are shipped in time, some late, some never.

Writes ``ORDER-ID JSON`` lines of one of the two streams, in order of arrival: some events arrive late. The same seed
produces the same lines.
"""

import argparse
import json
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

BEGIN = datetime(2026, 1, 1, 8, 0, tzinfo=UTC)
LENGTH = timedelta(hours=8)
ORDERS = 1_200
LATE, NEVER = 0.05, 0.03
ARRIVES_LATE_MAX = timedelta(minutes=3)


@dataclass(frozen=True)
class Event:
    """An order, or its shipment."""

    order_id: int
    at: datetime

    def __str__(self) -> str:
        return f"{self.order_id} {json.dumps({'order_id': self.order_id, 'at': self.at.isoformat()})}"


class Shop:
    """``orders`` and ``shipments``, each in order of arrival."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        orders = [Event(10_000 + number, BEGIN + self._up_to(LENGTH)) for number in range(ORDERS)]
        shipments = [Event(each.order_id, each.at + after) for each in orders if (after := self._shipped_after())]
        self.orders = self._arriving(orders)
        self.shipments = self._arriving(shipments)

    def _shipped_after(self) -> timedelta | None:
        chance = self._random.random()
        if chance < NEVER:
            return None
        if chance < NEVER + LATE:
            return timedelta(minutes=70) + self._up_to(timedelta(minutes=50))
        return timedelta(seconds=round(60 * min(58.0, self._random.gammavariate(4.0, 6.0))))

    def _arriving(self, events: list[Event]) -> list[Event]:
        arrivals = {event: event.at + self._up_to(ARRIVES_LATE_MAX) for event in events}
        return sorted(events, key=arrivals.__getitem__)

    def _up_to(self, length: timedelta) -> timedelta:
        return timedelta(seconds=self._random.randrange(int(length.total_seconds())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stream", choices=("orders", "shipments"))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for event in getattr(Shop(options.seed), options.stream):
        print(event)


if __name__ == "__main__":
    main()
