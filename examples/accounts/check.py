"""Replay the events, and compare the tables with the replay: an independent count, without Spark.

Reads the events from stdin, as ``einmal topic consume --format json`` prints them. With ``--draw`` the output is a
picture, as SVG.
"""

import argparse
from collections import Counter

from examples.accounts.bank import Event
from examples.accounts.database import WAYS_OUT, connect
from examples.program import difference, fail, lines, objects, record_values, run
from examples.svg import BLUE, FAINT, RED, Drawing

_ROW = 18
_LEFT, _RIGHT = 100, 660

Entry = tuple[int, str, int]
"""Event, account, and change in cents."""


def replayed(printed: list[str]) -> list[Entry]:
    """Of every event its entries. Nothing can be compared with a replay that lacks torn events."""
    parsed, torn = objects(record_values(printed))
    try:
        events = [Event(**each) for each in parsed]
    except TypeError:
        torn += 1
    if torn:
        fail("the input has events that are torn: cut off, or without their fields.")
    return [(event.id, account, cents) for event in events for account, cents in event.entries]


def compared(
    entries: list[Entry], counters: dict[str, tuple[int, int]], balances: dict[str, int], expected: list[Entry]
) -> bool:
    """Print the comparison of the three tables with the entries of a replay; whether the tables are right."""
    lost, repeated, strange = difference(Counter(expected), Counter(entries))
    sums = {account: _sums(expected, account) for account in {account for _, account, _ in expected}}
    wrong_counters = sum(counters.get(account) != sums.get(account) for account in sums.keys() | counters.keys())
    cents = {account: sum_ for account, (_, sum_) in sums.items()}
    wrong_balances = sum(balances.get(account) != cents.get(account) for account in cents.keys() | balances.keys())
    print(f"{len(expected):,} entries: {lost} lost, {repeated} repeated, {strange} of no event")
    print(f"{len(sums)} counters, by increments: {wrong_counters} wrong")
    print(f"{len(sums)} balances, by snapshots: {wrong_balances} wrong")
    return not (lost or repeated or strange or wrong_counters or wrong_balances)


def is_right(expected: list[Entry]) -> bool:
    with connect() as connection:
        # One snapshot for all: pipelines may be running.
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        entries = connection.execute("SELECT event, account, cents FROM entries").fetchall()
        counters = connection.execute("SELECT account, entries, cents FROM counters").fetchall()
        balances = dict(connection.execute("SELECT account, cents FROM balances").fetchall())
    return compared(entries, {account: (count, cents) for account, count, cents in counters}, balances, expected)


def _sums(entries: list[Entry], account: str) -> tuple[int, int]:
    changes = [cents for _, each, cents in entries if each == account]
    return len(changes), sum(changes)


def picture(expected: list[Entry]) -> Drawing:
    with connect() as connection:
        balances = connection.execute("SELECT account, cents FROM balances ORDER BY account").fetchall()
    if not balances:
        fail("there are no balances: run the pipelines first.")
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draw", action="store_true")
    options = parser.parse_args()
    expected = replayed(lines())
    if options.draw:
        print(picture(expected))
        return 0
    return 0 if is_right(expected) else 1


if __name__ == "__main__":
    run(main, WAYS_OUT)
