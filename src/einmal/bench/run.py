"""Run the cases against one broker, one of our own or any that speaks Kafka's protocol; or kill brokers of three."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from einmal.bench.cases import CASES, MEGABYTE, Figure, MeasuredBroker
from einmal.bench.failover import failover
from einmal.bench.server import BrokerProcess

STARTS = 5
FAILOVER = "failover"
PIPELINE = "pipeline"


def run(
    names: Sequence[str],
    *,
    target: MeasuredBroker,
    scale: float,
    properties: Sequence[str],
    connector: Path | None,
    triggers: Sequence[str],
    say: Callable[[str], None],
) -> Iterator[Figure]:
    """The figures, as they come. ``target`` without an address: a fresh broker; its start and memory are measured too.


    "failover" is measured on a fresh cluster, alone; "pipeline" alone too, with ``connector`` and ``triggers``.
    """
    if list(names) == [FAILOVER]:
        yield from failover(scale, properties, say)
        return
    if list(names) == [PIPELINE]:
        yield from _pipeline(target.bootstrap, scale, properties, connector, triggers, say)
        return
    if target.bootstrap:
        yield from _cases(names, target, scale, say)
        return
    say("starting brokers")
    starts = []
    for _ in range(STARTS):
        with BrokerProcess(*properties) as broker:
            starts.append(broker.start_seconds)
            idle = broker.resident_bytes()
    yield Figure("start to ready, median", statistics.median(starts), "s", 0.5, at_most=True)
    yield Figure("resident memory, idle", idle / MEGABYTE, "MB", 100, at_most=True)
    with BrokerProcess(*properties) as broker:
        yield from _cases(names, replace(target, bootstrap=broker.bootstrap_servers), scale, say)
        yield Figure("resident memory, after the run", broker.resident_bytes() / MEGABYTE, "MB")


def _cases(names: Sequence[str], target: MeasuredBroker, scale: float, say: Callable[[str], None]) -> Iterator[Figure]:
    for name in names:
        say(f"measuring {name}")
        yield from CASES[name](target, scale)


def _pipeline(
    bootstrap: str,
    scale: float,
    properties: Sequence[str],
    connector: Path | None,
    triggers: Sequence[str],
    say: Callable[[str], None],
) -> Iterator[Figure]:
    # Only here: Spark is not needed for anything else.
    from einmal.bench.pipeline import pipeline

    if bootstrap:
        yield from pipeline(bootstrap, scale, connector, triggers, say)
        return
    with BrokerProcess(*properties) as broker:
        yield from pipeline(broker.bootstrap_servers, scale, connector, triggers, say)
