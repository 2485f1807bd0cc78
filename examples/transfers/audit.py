"""Compare the database with the topic: ``ACCOUNT BALANCE WALLET`` lines, and the totals.

Reads only committed records. While the transfers run, the topic may be one transfer behind the database: that is a
difference, too. Differences go to stderr, and the exit status is 1 then.
"""

import argparse
import os
import sys
from collections import Counter, defaultdict
from contextlib import closing

from examples.program import database, difference, fail, records, run
from examples.transfers.transfers import ACCOUNTS, BALANCE, TOPIC


def payments(brokers: str) -> dict[str, list[str]]:
    """What was paid into the wallet of each account, in the order of the topic."""
    found = defaultdict(list)
    for record in records(brokers, TOPIC):
        found[(record.key or b"").decode()].append((record.value or b"").decode())
    return found


def wallets(brokers: str) -> Counter[str]:
    """The sum in the wallet of each account. A payment that is no number is none."""
    return Counter({account: _sum(amounts) for account, amounts in payments(brokers).items()})


def _sum(amounts: list[str]) -> int:
    return sum(int(amount) for amount in amounts if amount.isdecimal())


def differences(made: dict[str, list[str]], paid: dict[str, list[str]]) -> list[str]:
    """Between the transfers of each account in the database and in the topic, both in their order."""
    found = []
    for account in sorted(made.keys() | paid.keys()):
        expected, seen = made.get(account, []), paid.get(account, [])
        lost, repeated, strange = difference(Counter(expected), Counter(seen))
        if lost or repeated or strange:
            found.append(f"{account}: {lost} lost, {repeated} repeated, {strange} that the database has not")
        elif expected != seen:
            found.append(f"{account}: payments are out of order")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database", help="The one of the transfers.")
    path = parser.parse_args().database
    paid = payments(os.environ.get("KAFKA_BROKERS", "localhost:9092"))
    with closing(database(path)) as bank:
        balances = dict(bank.execute("SELECT name, balance FROM accounts ORDER BY name"))
        transfers = bank.execute("SELECT account, amount FROM transfers ORDER BY number").fetchall()
    if not transfers:
        fail(f"{path} has no transfers: there is nothing to compare.")
    made = defaultdict(list)
    for account, amount in transfers:
        if amount:
            made[account].append(str(amount))
    sums = {account: _sum(paid.get(account, [])) for account in paid.keys() | balances.keys()}
    for account, balance in balances.items():
        print(account, balance, sums[account])
    count, refused = sum(map(len, made.values())), sum(not amount for _, amount in transfers)
    in_database, in_topic = sum(balances.values()), sum(sums.values())
    total = in_database + in_topic
    print(f"made {count}, refused {refused}: {in_database} in accounts + {in_topic} in wallets = {total}")
    found = differences(made, paid)
    if balances != {account: BALANCE - _sum(made[account]) for account in ACCOUNTS}:
        found.append("the accounts have not what the database's own transfers have left")
    for each in found:
        print(each, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    run(main)
