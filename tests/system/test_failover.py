"""Claims about three brokers of which one after the other is killed, paused or restarted under load, by its part.

confluent-kafka and our own client write, copy and read throughout (``load.py``). ``EINMAL_KILLS`` is the
number of faults; the default is one round of all of them. With ``EINMAL_TLS`` all connections are encrypted. The same
load on Apache Kafka checks our client alone.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from einmal.wire.record_batch import iter_headers
from tests.interop.apache_kafka import KafkaUnavailable
from tests.interop.cluster import GROUP, TRANSACTION, Cluster, apache_cluster, einmal_cluster
from tests.interop.topics import Broker
from tests.system import secured
from tests.system.clients import (
    ANOMALIES,
    Client,
    Part,
    committed_so_far,
    everybody_gets_something_done,
    finish,
    judge,
    load_on,
    no_transaction_is_left_open,
    read_all,
    until,
)
from tests.system.load import PARTITIONS, PLAIN, TOPICS, TRANSACTIONS
from tests.system.secured import secured_cluster

pytestmark = pytest.mark.slow

SEED: Final = 20_263
_UNREST_S: Final = 0.5
_PAUSE_S: Final = (0.3, 6.0)
"""Shorter and longer than a broker's session."""
_LOAD: Final = (
    Part("idempotent", 0),
    Part("idempotent", 1, "einmal"),
    Part("transactional", 0),
    Part("transactional", 1, "einmal"),
    Part("copier", 0),
    Part("copier", 1, "einmal"),
    Part("reader", 0),
    Part("reader", 1, "einmal"),
)
_OWN_LOAD: Final = (
    Part("idempotent", 0, "einmal"),
    Part("transactional", 0, "einmal"),
    Part("copier", 0, "einmal"),
    Part("reader", 0, "einmal"),
)
_SMALL_LOAD: Final = (
    Part("idempotent", 0),
    Part("transactional", 1, "einmal"),
    Part("copier", 0, "einmal"),
    Part("reader", 0),
)
_ORDERLY_LOAD: Final = (*(part for part in _LOAD if part.role != "copier"), Part("copier", 0, "einmal"))
"""Without the copier of librdkafka, which may wait for ever for a group coordinator that has left: see its module."""

Victim = Callable[[Cluster, random.Random], int]

VICTIMS: Final[dict[str, Victim]] = {
    "leader": lambda cluster, chance: cluster.leader(PLAIN, chance.randrange(PARTITIONS)),
    "follower": lambda cluster, chance: chance.choice(cluster.followers(TRANSACTIONS)),
    "controller": lambda cluster, _: cluster.controller(),
    "transaction coordinator": lambda cluster, _: cluster.coordinator(TRANSACTION, "writer-0"),
    "group coordinator": lambda cluster, _: cluster.coordinator(GROUP, "copier-0"),
}
_CLEAN: Final = "leader, in order"
_PAUSED: Final = "leader, paused"
_TLS_KILLS: Final = 3
STROKES: Final = (*VICTIMS, _CLEAN, _PAUSED)
KILLS: Final = int(os.environ.get("EINMAL_KILLS", str(len(STROKES))))


def strike(cluster: Cluster, clients: list[Client], stroke: str, chance: random.Random) -> float:
    """One fault, and its victim back in the cluster. Returns the longest time in which a client got nothing done."""
    victim = VICTIMS.get(stroke, VICTIMS["leader"])(cluster, chance)
    began = time.monotonic()
    if stroke == _PAUSED:
        cluster.pause(victim)
        time.sleep(chance.uniform(*_PAUSE_S))
        cluster.resume(victim)
        everybody_gets_something_done(clients)
        return time.monotonic() - began
    if stroke == _CLEAN:
        cluster.stop_node(victim)
    else:
        cluster.kill(victim)
    everybody_gets_something_done(clients)
    silence = time.monotonic() - began
    cluster.start_node(victim)
    if chance.random() < 0.5:
        for topic in TOPICS:
            cluster.wait_until_in_sync(topic, range(PARTITIONS))
    return silence


def run(cluster: Cluster, directory: Path, load: tuple[Part, ...], strokes: int) -> dict[str, Any]:
    """So many faults under load, and the verdict. Raises AssertionError."""
    chance = random.Random(SEED)
    silences: dict[str, list[float]] = {}
    cluster.start()
    try:
        for topic in TOPICS:
            cluster.create_topic(topic, PARTITIONS)
        with load_on(cluster.bootstrap, directory, load) as clients:
            for number in range(strokes):
                everybody_gets_something_done(clients)
                time.sleep(chance.uniform(0, _UNREST_S))
                stroke = STROKES[number % len(STROKES)]
                print(f"{time.strftime('%H:%M:%S')} {number + 1} of {strokes}: {stroke}", flush=True)
                silences.setdefault(stroke, []).append(strike(cluster, clients, stroke, chance))
            everybody_gets_something_done(clients)
            until(lambda: committed_so_far(clients) > strokes)
            reports = finish(clients)
        no_transaction_is_left_open(lambda topic, index: _broker(cluster, cluster.leader(topic, index)))
        values = read_all(cluster.bootstrap)
    finally:
        cluster.stop()
    figures = {
        "strokes": {stroke: len(times) for stroke, times in silences.items()},
        **judge(values, reports),
        "everybody_again_s": {
            stroke: {"median": round(statistics.median(times), 2), "max": round(max(times), 2)}
            for stroke, times in silences.items()
        },
    }
    (directory / "figures.json").write_text(json.dumps(figures))
    print(json.dumps(figures))
    print(in_words(figures), flush=True)
    return figures


def in_words(figures: dict[str, Any]) -> str:
    """A table for people: faults and silences by part, then the verdict."""
    lines = [f"{'who':<26}{'strokes':>8}{'all clients go on after, s: median':>37}{'longest':>9}"]
    for stroke, times in figures["everybody_again_s"].items():
        lines.append(f"{stroke:<26}{figures['strokes'][stroke]:>8}{times['median']:>37}{times['max']:>9}")
    outcomes = ", ".join(f"{count:,} {name}" for name, count in figures["transactions"].items())
    lines += [
        f"{'all':<26}{sum(figures['strokes'].values()):>8}",
        f"written   {figures['acknowledged']:,} records acknowledged; transactions: {outcomes}",
        f"copied    {figures['copied']:,} records in {figures['copy_transactions']:,} transactions",
        f"read      {figures['seen_by_the_readers']:,} records while it went on",
        "verdict   " + ", ".join(f"{figures[name]} {name.replace('_', ' ')}" for name in ANOMALIES),
    ]
    return "\n".join(lines)


def _broker(cluster: Cluster, node_id: int) -> Broker:
    return Broker(cluster.nodes[node_id].host, cluster.nodes[node_id].port)


@pytest.mark.system
@pytest.mark.long
def test_three_brokers_lose_nothing_whichever_of_them_is_killed(tmp_path: Path) -> None:
    cluster = secured_cluster(tmp_path / "cluster") if secured.USED else einmal_cluster(tmp_path / "cluster")
    figures = run(cluster, tmp_path, _LOAD, KILLS)
    assert figures["transactions"]["committed"] > KILLS


@pytest.mark.system
@pytest.mark.long
def test_three_brokers_with_tls_between_them_lose_nothing(tmp_path: Path) -> None:
    """Mutual TLS of clients, SASL_SSL between brokers and controllers: a leader, a follower and a controller killed."""
    figures = run(secured_cluster(tmp_path / "cluster"), tmp_path, _SMALL_LOAD, _TLS_KILLS)
    assert figures["transactions"]["committed"] > _TLS_KILLS


@pytest.mark.system
@pytest.mark.parametrize("victims", [(2,), pytest.param((1, 2, 3), marks=pytest.mark.long)], ids=str)
def test_a_controlled_shutdown_interrupts_no_client(tmp_path: Path, victims: tuple[int, ...]) -> None:
    """SIGTERM to each in turn: no call fails, no transaction has to be aborted."""
    # No broker fails here; one that stands still for seconds, as on a busy machine, is not to count as failed.
    cluster = einmal_cluster(tmp_path / "cluster", settings={"broker.session.timeout.ms": "30000"})
    cluster.start()
    try:
        for topic in TOPICS:
            cluster.create_topic(topic, PARTITIONS)
        with load_on(cluster.bootstrap, tmp_path, _ORDERLY_LOAD) as clients:
            for victim in victims:
                everybody_gets_something_done(clients)
                cluster.stop_node(victim)
                everybody_gets_something_done(clients)
                cluster.start_node(victim)
                for topic in TOPICS:
                    cluster.wait_until_in_sync(topic, range(PARTITIONS))
            reports = finish(clients)
        values = read_all(cluster.bootstrap)
    finally:
        cluster.stop()
    judge(values, reports)
    told = [(name, line) for name, report in reports.items() for line in report if "error" in line]
    assert told == []
    # librdkafka raises it at a gap that it has not made, and then may write again what is in the log.
    assert _producer_epochs(tmp_path / "cluster", PLAIN) == {0}


def _producer_epochs(directory: Path, topic: str) -> set[int]:
    return {
        header.producer_epoch
        for path in directory.glob(f"*/data/{topic}-*/*.log")
        for _position, header in iter_headers(path.read_bytes())
    }


@pytest.mark.interop
@pytest.mark.long
def test_our_client_loses_nothing_when_brokers_of_apache_kafka_are_killed(tmp_path: Path) -> None:
    try:
        cluster = apache_cluster(tmp_path / "cluster")
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    figures = run(cluster, tmp_path, _OWN_LOAD, len(STROKES))
    assert figures["transactions"]["committed"] > len(STROKES)
