"""Replay the events, and compare the tables with the replay: an independent count, without Spark.

Reads the events from stdin, as ``einmal topic consume --format json`` prints them. With ``--draw`` the output is a
picture, as SVG.
"""

import argparse
import json
import sys
from collections import Counter

from examples.accounts.bank import Event
from examples.accounts.database import connect
from examples.svg import BLUE, FAINT, RED, Drawing

_ROW = 18
_LEFT, _RIGHT = 100, 660


def replayed(lines: list[str]) -> list[tuple[int, str, int]]:
    """Event, account and change, for each entry."""
    events = [Event(**json.loads(json.loads(line)["value"])) for line in lines]
    return [(event.id, account, cents) for event in events for account, cents in event.entries]


def report(expected: list[tuple[int, str, int]]) -> bool:
    """Print the comparison; whether the tables are right."""
    with connect() as connection:
        # One snapshot for all: pipelines may be running.
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        entries = Counter(connection.execute("SELECT event, account, cents FROM entries").fetchall())
        counters = dict(_by_account(connection.execute("SELECT account, entries, cents FROM counters").fetchall()))
        balances = dict(connection.execute("SELECT account, cents FROM balances").fetchall())
    wanted = Counter(expected)
    lost, repeated = (wanted - entries).total(), (entries - wanted).total()
    of_account = {account: _sums(expected, account) for account in {account for _, account, _ in expected}}
    wrong_counters = sum(counters.get(account) != sums for account, sums in of_account.items())
    wrong_balances = sum(balances.get(account) != cents for account, (_, cents) in of_account.items())
    print(f"{len(expected):,} entries: {lost} lost, {repeated} repeated")
    print(f"{len(of_account)} counters, by increments: {wrong_counters} wrong")
    print(f"{len(of_account)} balances, by snapshots: {wrong_balances} wrong")
    return not (lost or repeated or wrong_counters or wrong_balances)


def _by_account(rows: list[tuple[str, int, int]]) -> list[tuple[str, tuple[int, int]]]:
    return [(account, (entries, cents)) for account, entries, cents in rows]


def _sums(entries: list[tuple[int, str, int]], account: str) -> tuple[int, int]:
    changes = [cents for _, each, cents in entries if each == account]
    return len(changes), sum(changes)


def picture(expected: list[tuple[int, str, int]]) -> Drawing:
    with connect() as connection:
        balances = connection.execute("SELECT account, cents FROM balances ORDER BY account").fetchall()
    most = max(cents for _, cents in balances)
    drawing = Drawing(720, 84 + _ROW * len(balances), f"{len(expected):,} entries: the view and a replay of the events")
    for row, (account, cents) in enumerate(balances):
        y, length = 50 + _ROW * row, (_RIGHT - _LEFT) / most
        _, replay = _sums(expected, account)
        drawing.text(_LEFT - 8, y + 12, account, anchor="end")
        drawing.line(_LEFT, y + 8, _RIGHT, y + 8, FAINT)
        drawing.bar(_LEFT, y + 2, round(cents * length, 1), _ROW - 6, BLUE)
        drawing.dots([(_LEFT + replay * length, y + 8)], size=7, fill=RED)
        drawing.text(_RIGHT + 12, y + 12, f"{cents / 100:,.2f}", size=9)
    y = 50 + _ROW * len(balances) + 14
    drawing.bar(_LEFT, y, 14, 10, BLUE)
    drawing.text(_LEFT + 20, y + 9, "balance in PostgreSQL")
    drawing.dots([(_LEFT + 190, y + 5)], size=7, fill=RED)
    drawing.text(_LEFT + 200, y + 9, "sum of a replay")
    return drawing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draw", action="store_true")
    options = parser.parse_args()
    expected = replayed(sys.stdin.readlines())
    if options.draw:
        print(picture(expected))
        return
    sys.exit(0 if report(expected) else 1)


if __name__ == "__main__":
    main()
