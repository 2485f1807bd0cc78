"""Count the carts by price, in every topic and every database, and compare them. Reads the log alone, not Spark.

With ``--draw`` the output is a picture, as SVG.
"""

import argparse
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby

from examples.lookup.pipeline import BROKERS, CARTS, TABLE, WAYS, Way
from examples.program import database, fail, records, run
from examples.svg import BLUE, GREEN, GREY, RED, Drawing

PRICES = ("31", "33")


@dataclass(frozen=True)
class Found:
    """Carts by price. ``tried``: of all attempts, also of those that were aborted."""

    way: Way
    tried: Counter[str]
    topic: Counter[str]
    database: Counter[str] | None
    problems: tuple[str, ...]


def values(topic: str, isolation: str = "read_committed") -> list[str]:
    return [(record.value or b"").decode(errors="replace") for record in records(BROKERS, topic, isolation)]


def rows(way: Way) -> list[str]:
    with closing(database(way.database)) as opened:
        return [row for (row,) in opened.execute(f"SELECT cart_and_price FROM {TABLE}")]


def by_price(priced: list[str]) -> Counter[str]:
    return Counter(each.rpartition(" ")[2] for each in priced)


def find(way: Way, carts: list[str]) -> Found:
    topic = values(way.topic)
    in_database = rows(way) if way.has_database else None
    tried = by_price(values(way.topic, "read_uncommitted"))
    return compared(way, carts, tried, topic, in_database)


def compared(way: Way, carts: list[str], tried: Counter[str], topic: list[str], in_database: list[str] | None) -> Found:
    problems = []
    for where, priced in (("topic", topic), ("database", in_database)):
        if priced is None:
            continue
        if sorted(each.rpartition(" ")[0] for each in priced) != sorted(carts):
            problems.append(f"{way.name}: the {where} has not each cart once")
        if len(by_price(priced)) > 1:
            problems.append(f"{way.name}: the {where} mixes prices of two attempts")
        if strange := sorted(by_price(priced).keys() - set(PRICES)):
            problems.append(f"{way.name}: the {where} has prices that were never set: {', '.join(strange)}")
    if way.is_one_commit and in_database is not None and sorted(topic) != sorted(in_database):
        problems.append(f"{way.name}: topic and database differ, although they are one commit")
    prices = None if in_database is None else by_price(in_database)
    return Found(way, tried, by_price(topic), prices, tuple(problems))


def text(counts: Counter[str] | None) -> str:
    return "-" if counts is None else ", ".join(f"{count} at {price}" for price, count in sorted(counts.items()))


def report(all_found: list[Found]) -> None:
    print(f"{'':10}{'topic, all attempts':25}{'topic, committed':20}database")
    for found in all_found:
        print(f"{found.way.name:10}{text(found.tried):25}{text(found.topic):20}{text(found.database):15}".rstrip())
    if problems := [problem for found in all_found for problem in found.problems]:
        print("\n".join(problems))
        return
    differ = [found.way.name for found in all_found if found.database is not None and found.database != found.topic]
    print(f"each sink has each cart once, at one price; topic and database differ: {', '.join(differ) or 'nowhere'}")


def picture(all_found: list[Found]) -> Drawing:
    drawing = Drawing(790, 70 + 70 * len(all_found), "The price when the pipeline was killed was 31, then it was 33")
    left, width = 170, 170
    for column, title in enumerate(("topic, all attempts", "topic, committed", "database")):
        drawing.text(left + column * (width + 16), 58, title, fill=GREY)
    for row, found in enumerate(all_found):
        top = 70 + row * 70
        drawing.text(16, top + 22, found.way.name, size=14)
        drawing.text(16, top + 40, f"killed at {found.way.killed_at.__name__}", size=10, fill=GREY)
        differs = found.database is not None and found.database != found.topic
        for column, counts in enumerate((found.tried, found.topic, found.database)):
            x = float(left + column * (width + 16))
            for price, several in groupby(sorted(counts.elements()) if counts else ()):
                share = width / 2 if column == 0 and len(found.tried) == 2 else width
                drawing.bar(x, top + 6, share - 2, 38, BLUE if price == PRICES[0] else GREEN)
                drawing.text(
                    x + share / 2, top + 30, f"{len(list(several))} at {price}", anchor="middle", fill="#ffffff"
                )
                x += share
        if differs:
            drawing.text(left + 3 * width + 44, top + 30, "differ", anchor="start", fill=RED)
    return drawing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draw", action="store_true")
    options = parser.parse_args()
    carts = values(CARTS)
    if not carts:
        fail(f"topic {CARTS} is empty: there is nothing to compare.")
    all_found = [find(way, carts) for way in WAYS]
    if options.draw:
        print(picture(all_found))
    else:
        report(all_found)
    return 1 if any(found.problems for found in all_found) else 0


if __name__ == "__main__":
    run(main, {sqlite3.OperationalError: "Run the pipelines first: see the README."})
