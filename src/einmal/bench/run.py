"""Run the cases against brokers, our own or any that speak Kafka's protocol; or kill brokers of three."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from einmal.bench.cases import CASES, MEGABYTE, Case, Figure, MeasuredBroker
from einmal.bench.failover import failover
from einmal.bench.load import BenchRefused
from einmal.bench.pipeline_cases import PipelineCases
from einmal.bench.server import TLS_CLIENTS, FreshBrokers
from einmal.local.processes import LocalCluster

STARTS: Final = 5
ROUNDS: Final = 3
"""Rounds of each case, on two brokers in turn."""
FAILOVER: Final = "failover"
PIPELINE: Final = "pipeline"
CLIENT: Final = "client"
PRICE: Final = "price"


def run(
    names: Sequence[str],
    *,
    target: MeasuredBroker | FreshBrokers,
    scale: float,
    pipeline: PipelineCases,
    say: Callable[[str], None],
    beside: MeasuredBroker | None = None,
    cases: Mapping[str, Case] = CASES,
) -> Iterator[Figure]:
    """The figures, as they come. The start and the memory of one fresh broker are measured too, unless another one is
    measured ``beside`` it.

    "failover" is measured on a fresh cluster, alone; "pipeline" alone too. Raises BenchRefused, BrokerFailed.
    """
    # Only here: the extra may be missing.
    from confluent_kafka import KafkaException

    try:
        if isinstance(target, MeasuredBroker):
            yield from _chosen(names, target, scale, pipeline, say, beside, cases)
        elif list(names) == [FAILOVER]:
            yield from failover(scale, target.properties, say)
        else:
            yield from _on_fresh(names, target, scale, pipeline, say, beside, cases)
    except KafkaException as error:
        raise BenchRefused(f"{error.args[0].name()}: {error.args[0].str()}") from error


def _on_fresh(
    names: Sequence[str],
    fresh: FreshBrokers,
    scale: float,
    pipeline: PipelineCases,
    say: Callable[[str], None],
    beside: MeasuredBroker | None,
    cases: Mapping[str, Case],
) -> Iterator[Figure]:
    has_usage = beside is None and fresh.count == 1 and list(names) != [PIPELINE]
    say("starting brokers")
    if has_usage:
        yield from _starts(fresh)
    with fresh.running() as cluster:
        target = MeasuredBroker(cluster.bootstrap_servers, TLS_CLIENTS if fresh.over_tls else {})
        yield from _chosen(names, target, scale, pipeline, say, beside, cases)
        if has_usage:
            yield Figure("resident memory, after the run", _resident_bytes(cluster) / MEGABYTE, "MB")


def _starts(fresh: FreshBrokers) -> Iterator[Figure]:
    starts = []
    for _ in range(STARTS):
        began = time.perf_counter()
        with fresh.running() as cluster:
            starts.append(time.perf_counter() - began)
            idle = _resident_bytes(cluster)
    yield Figure("start to ready, median", statistics.median(starts), "s", 0.5, at_most=True)
    yield Figure("resident memory, idle", idle / MEGABYTE, "MB", 100, at_most=True)


def _resident_bytes(cluster: LocalCluster) -> int:
    # Only here: the extra may be missing.
    import psutil

    return sum(int(psutil.Process(broker.pid).memory_info().rss) for broker in cluster.brokers.values())


def _chosen(
    names: Sequence[str],
    target: MeasuredBroker,
    scale: float,
    pipeline_cases: PipelineCases,
    say: Callable[[str], None],
    beside: MeasuredBroker | None,
    cases: Mapping[str, Case],
) -> Iterator[Figure]:
    if list(names) == [PIPELINE]:
        # Only here: Spark is not needed for anything else.
        from einmal.bench.pipeline import pipeline

        yield from pipeline(target.bootstrap, scale, pipeline_cases, say)
        return
    for name in names:
        yield from _medians(name, cases[name], [target] if beside is None else [target, beside], scale, say)


def _medians(
    name: str, case: Case, brokers: Sequence[MeasuredBroker], scale: float, say: Callable[[str], None]
) -> Iterator[Figure]:
    """The broker that begins changes with each round."""
    measured: dict[str, list[list[Figure]]] = {}
    for round_number in range(ROUNDS):
        for index, broker in list(enumerate(brokers))[:: -1 if round_number % 2 else 1]:
            say(f"measuring {name}, round {round_number + 1}: {broker.bootstrap}")
            for figure in case(broker, scale):
                measured.setdefault(figure.name, [[] for _ in brokers])[index].append(figure)
    for rounds in measured.values():
        # A broker on another machine has no figure of its CPU time.
        if all(rounds):
            medians = [statistics.median(figure.value for figure in figures) for figures in rounds]
            yield replace(rounds[0][0], value=medians[0], beside=medians[1] if len(medians) > 1 else None)
