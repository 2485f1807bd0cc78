"""Generate a synthetic stream of card payments with known anomalies from a seed. No card is real.

Writes ``CARD PAYMENT`` lines, the payment as JSON, in order of arrival: some payments arrive late. With ``--anomalies``
it writes the generated anomalies instead. The same seed produces the same lines.
"""

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

BEGIN = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
LENGTH = timedelta(hours=3)
LATENESS_MAX = timedelta(seconds=90)
CARDS = 24
MERCHANTS = ("bakery", "books", "cinema", "fuel", "groceries", "pharmacy", "trains")
BURSTS = 5
OUTLIERS = 6


@dataclass(frozen=True)
class Payment:
    card: str
    merchant: str
    cents: int
    at: datetime

    def __str__(self) -> str:
        fields = {"card": self.card, "merchant": self.merchant, "cents": self.cents, "at": self.at.isoformat()}
        return f"{self.card} {json.dumps(fields)}"


@dataclass(frozen=True)
class Anomaly:
    """``reason``: many payments in a minute from ``at`` on, or one payment at ``at`` of an amount far from usual."""

    card: str
    reason: str
    at: datetime

    def __str__(self) -> str:
        return f"{self.at:%H:%M:%S} {self.card} {self.reason}"


class Stream:
    """Every card pays every few minutes, around its usual amount; a few cards deviate once."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._usual = {f"card-{number:02}": self._random.randrange(500, 8_000) for number in range(CARDS)}
        self.anomalies: list[Anomaly] = []
        """In order of time."""
        self.payments = self._made()
        """In order of arrival."""

    def _made(self) -> list[Payment]:
        made = [payment for card in self._usual for payment in self._ordinary(card)]
        suspects = self._random.sample(list(self._usual), BURSTS + OUTLIERS)
        made += [payment for card in suspects[:BURSTS] for payment in self._burst(card)]
        made += [self._outlier(card) for card in suspects[BURSTS:]]
        self.anomalies.sort(key=lambda anomaly: anomaly.at)
        arrival = {id(each): each.at + self._random.random() * LATENESS_MAX for each in made}
        return sorted(made, key=lambda each: arrival[id(each)])

    def _ordinary(self, card: str) -> Iterator[Payment]:
        at = BEGIN
        while (at := at + timedelta(seconds=self._random.randrange(60, 240))) < BEGIN + LENGTH:
            yield self._payment(card, at, self._random.uniform(0.5, 2.0))

    def _burst(self, card: str) -> Iterator[Payment]:
        at = self._some_time()
        self.anomalies.append(Anomaly(card, "many payments", at))
        for _ in range(24):
            yield self._payment(
                card, at + timedelta(seconds=self._random.randrange(60)), self._random.uniform(0.2, 0.6)
            )

    def _outlier(self, card: str) -> Payment:
        at = self._some_time()
        self.anomalies.append(Anomaly(card, "large amount", at))
        return self._payment(card, at, self._random.uniform(40, 60))

    def _payment(self, card: str, at: datetime, of_usual: float) -> Payment:
        return Payment(card, self._random.choice(MERCHANTS), round(self._usual[card] * of_usual), at)

    def _some_time(self) -> datetime:
        """Late enough to have payments to compare with, and early enough that its window closes."""
        return BEGIN + timedelta(seconds=self._random.randrange(15 * 60, int(LENGTH.total_seconds()) - 30 * 60))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--anomalies", action="store_true", help="List the generated anomalies instead of the payments."
    )
    options = parser.parse_args()
    stream = Stream(options.seed)
    for line in stream.anomalies if options.anomalies else stream.payments:
        print(line)


if __name__ == "__main__":
    main()
