"""The command side of a small bank: it decides which commands become events. Pure; events are all that is kept.

Writes ``ACCOUNT EVENT`` lines, the event as JSON, in the order in which they happened. The same seed produces the same
lines.
"""

import argparse
import json
import random
from collections import defaultdict
from dataclasses import asdict, dataclass

ACCOUNTS = 24
COMMANDS = 4_000


@dataclass(frozen=True)
class Event:
    """Something that has happened: ``deposited`` to, ``withdrawn`` from, or ``transferred`` from an account ``to``
    another one."""

    id: int
    type: str
    account: str
    cents: int
    to: str | None = None

    @property
    def entries(self) -> list[tuple[str, int]]:
        """Which account changes by how much."""
        if self.type == "deposited":
            return [(self.account, self.cents)]
        if self.type == "withdrawn":
            return [(self.account, -self.cents)]
        assert self.to is not None
        return [(self.account, -self.cents), (self.to, self.cents)]


class Bank:
    """Its balances follow from its events: no command may overdraw an account."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.refused = 0
        self._balances: defaultdict[str, int] = defaultdict(int)

    def handle(self, kind: str, account: str, cents: int, to: str | None = None) -> None:
        """Turn a command into an event, or refuse it."""
        if kind != "deposited" and self._balances[account] < cents:
            self.refused += 1
            return
        event = Event(len(self.events) + 1, kind, account, cents, to)
        self.events.append(event)
        for changed, by in event.entries:
            self._balances[changed] += by


def bank_of(seed: int) -> Bank:
    chance, bank = random.Random(seed), Bank()
    accounts = [f"account-{number:02}" for number in range(ACCOUNTS)]
    for _ in range(COMMANDS):
        account, to = chance.sample(accounts, 2)
        kind = chance.choices(("deposited", "withdrawn", "transferred"), (3, 2, 5))[0]
        bank.handle(kind, account, chance.randrange(1, 20_000), to if kind == "transferred" else None)
    return bank


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    for event in bank_of(parser.parse_args().seed).events:
        print(event.account, json.dumps(asdict(event)))


if __name__ == "__main__":
    main()
