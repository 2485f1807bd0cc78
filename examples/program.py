"""The frame of the examples' programs: input, errors in one line, and second runs that are refused.

Exit status of a checker: 0 if all is right, 1 if something is lost, repeated, torn, late or wrong, 2 if it could not be
run: a service does not answer, an input is missing or empty.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from einmal.client import Consumer, ConsumerRecord, KafkaError

FRESH = "For fresh data: stop the broker, run `rm -r build/examples`, and follow the README again from `einmal start`."


class Difference(NamedTuple):
    """``strange``: found, and not expected at all: nobody has written it, or it is torn."""

    lost: int
    repeated: int
    strange: int


def difference(expected: Counter[Any], found: Counter[Any]) -> Difference:
    """Every occurrence counts: a loss and a repeat do not cancel."""
    surplus = found - expected
    repeated = sum(count for each, count in surplus.items() if each in expected)
    return Difference((expected - found).total(), repeated, surplus.total() - repeated)


def run(main: Callable[[], int | None], services: Mapping[type[Exception], str] | None = None) -> NoReturn:
    """Run a program, and exit with its status. ``services``: errors of other services, each with its way out."""
    advice: dict[type[Exception], str] = {KafkaError: "", **(services or {})}
    try:
        sys.exit(main())
    except tuple(advice) as error:
        way = next(way for kind, way in advice.items() if isinstance(error, kind))
        fail(f"{' '.join(str(error).split())} {way}")


def fail(text: str) -> NoReturn:
    """Report why the program cannot be run, and exit."""
    print(f"error: {text.strip()}", file=sys.stderr)
    sys.exit(2)


def lines() -> list[str]:
    """Those of stdin. There must be some: a comparison with nothing is right whatever was lost."""
    if sys.stdin.isatty():
        fail("stdin is a terminal; this program reads the output of the command before it: see the README.")
    found = sys.stdin.readlines()
    if not found:
        fail("stdin is empty; the README's command before this one writes it.")
    return found


def record_values(printed: Iterable[str]) -> list[str | None]:
    """Of records as ``einmal topic consume --format json`` prints them. None: there is none, or the line is torn."""
    found = []
    for line in printed:
        record = _object(line)
        found.append(None if record is None else record.get("value"))
    return found


def objects(texts: Iterable[str | None]) -> tuple[list[dict[str, Any]], int]:
    """JSON objects, and the number of texts that are none: torn ones."""
    parsed = [_object(text) for text in texts]
    whole = [each for each in parsed if each is not None]
    return whole, len(parsed) - len(whole)


def _object(text: str | None) -> dict[str, Any] | None:
    try:
        parsed = json.loads(text or "")
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def records(servers: str, topic: str, isolation: str = "read_committed") -> list[ConsumerRecord]:
    """All records of a topic, each partition in its order. Raises KafkaError."""
    found: list[ConsumerRecord] = []
    with Consumer({"bootstrap.servers": servers, "isolation.level": isolation}) as consumer:
        partitions = consumer.partitions_for_topic(topic)
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(*partitions)
        while any(consumer.position(each) < ends[each] for each in partitions):
            found += consumer.poll(500)
    return sorted(found, key=lambda record: record.partition)


def database(path: str | Path) -> sqlite3.Connection:
    """Opened for reading: a path that was mistyped becomes an error, not an empty database."""
    try:
        return sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)
    except sqlite3.OperationalError as error:
        fail(f"{path}: {error}; the README's commands before this one create it.")


def refuse_second_run(servers: str, topics: Sequence[str], paths: Sequence[str | Path] = ()) -> None:
    """Exit if there are records or files of an earlier run: this one would look as if it had repeated them."""
    used = [f"{path} exists" for path in paths if Path(path).exists()]
    with Consumer({"bootstrap.servers": servers}) as consumer:
        for topic in topics:
            partitions = consumer.partitions_for_topic(topic)
            if consumer.beginning_offsets(*partitions) != consumer.end_offsets(*partitions):
                used.append(f"topic {topic} at {servers} is not empty")
    if used:
        fail(f"this example has run before: {'; '.join(used)}. {FRESH}")
