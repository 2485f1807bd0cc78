"""Run the cases against one broker, one of our own or any that speaks Kafka's protocol; or kill brokers of three."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from einmal.bench.cases import CASES, MEGABYTE, Figure, MeasuredBroker
from einmal.bench.failover import failover
from einmal.bench.load import BenchRefused
from einmal.bench.pipeline_cases import PipelineCases
from einmal.bench.server import BrokerProcess

STARTS: Final = 5
ROUNDS_BESIDE: Final = 3
"""Rounds of each case on each of two brokers, in turn."""
FAILOVER: Final = "failover"
PIPELINE: Final = "pipeline"


def run(
    names: Sequence[str],
    *,
    target: MeasuredBroker,
    scale: float,
    properties: Sequence[str],
    pipeline: PipelineCases,
    say: Callable[[str], None],
    beside: MeasuredBroker | None = None,
) -> Iterator[Figure]:
    """The figures, as they come. ``target`` without an address: a fresh broker; its start and memory are measured too,
    unless another broker is measured ``beside`` it.

    "failover" is measured on a fresh cluster, alone; "pipeline" alone too. Raises BenchRefused, BrokerDidNotStart.
    """
    # Only here: the extra may be missing.
    from confluent_kafka import KafkaException

    try:
        yield from _chosen(names, target, scale, properties, pipeline, say, beside)
    except KafkaException as error:
        raise BenchRefused(f"{error.args[0].name()}: {error.args[0].str()}") from error


def _chosen(
    names: Sequence[str],
    target: MeasuredBroker,
    scale: float,
    properties: Sequence[str],
    pipeline: PipelineCases,
    say: Callable[[str], None],
    beside: MeasuredBroker | None,
) -> Iterator[Figure]:
    if list(names) == [FAILOVER]:
        yield from failover(scale, properties, say)
        return
    if list(names) == [PIPELINE]:
        yield from _pipeline(target.bootstrap, scale, properties, pipeline, say)
        return
    if beside is not None:
        with ExitStack() as stack:
            if not target.bootstrap:
                fresh = stack.enter_context(BrokerProcess(*properties))
                target = replace(target, bootstrap=fresh.bootstrap_servers)
            for name in names:
                yield from _beside(name, target, beside, scale, say)
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


def _beside(
    name: str, target: MeasuredBroker, beside: MeasuredBroker, scale: float, say: Callable[[str], None]
) -> Iterator[Figure]:
    """Medians; the broker that begins changes with each round."""
    values: dict[str, tuple[list[float], list[float]]] = {}
    found: dict[str, Figure] = {}
    for round_number in range(ROUNDS_BESIDE):
        for which, broker in ((0, target), (1, beside))[:: -1 if round_number % 2 else 1]:
            say(f"measuring {name}, round {round_number + 1}: {broker.bootstrap}")
            for figure in CASES[name](broker, scale):
                found.setdefault(figure.name, figure)
                values.setdefault(figure.name, ([], []))[which].append(figure.value)
    for label, figure in found.items():
        ours, theirs = map(statistics.median, values[label])
        yield Figure(label, ours, figure.unit, beside=theirs)


def _pipeline(
    bootstrap: str,
    scale: float,
    properties: Sequence[str],
    cases: PipelineCases,
    say: Callable[[str], None],
) -> Iterator[Figure]:
    # Only here: Spark is not needed for anything else.
    from einmal.bench.pipeline import pipeline

    if bootstrap:
        yield from pipeline(bootstrap, scale, cases, say)
        return
    with BrokerProcess(*properties) as broker:
        yield from pipeline(broker.bootstrap_servers, scale, cases, say)
