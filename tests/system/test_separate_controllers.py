"""Claims about three brokers that have controllers of their own: two of three die at once, by kill -9, under load.

Each of the three is the one that is left once, and each of the controllers dies meanwhile.
"""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from einmal.types import ErrorCode
from tests.interop import raw
from tests.interop.cluster import Cluster
from tests.interop.einmal_broker import EinmalBroker
from tests.interop.raw import Connection, Identity
from tests.interop.topics import Broker
from tests.ports import loopback_ports
from tests.system.clients import (
    PATIENCE_S,
    Client,
    Part,
    everybody_gets_something_done,
    finish,
    judge,
    load_on,
    location,
    no_transaction_is_left_open,
    read_all,
    text,
    until,
)
from tests.system.load import PARTITIONS, PLAIN, TOPICS, TRANSACTIONS

pytestmark = [pytest.mark.system, pytest.mark.slow]

BROKERS: Final = (1, 2, 3)
CONTROLLERS: Final = (101, 102, 103)
_LOAD: Final = (
    Part("idempotent", 0),
    Part("idempotent", 1, "einmal"),
    Part("transactional", 0),
    Part("transactional", 1, "einmal"),
    Part("copier", 0),
    Part("copier", 1, "einmal"),
    Part("reader", 1, "einmal"),
)
_SMALL_LOAD: Final = (
    Part("idempotent", 0, "einmal"),
    Part("transactional", 0),
    Part("copier", 0, "einmal"),
    Part("reader", 0),
)
_ROUNDS: Final = 3
"""A follower that has taken so many later records of a partition knows the high watermark that was before."""
_REFUSED_S: Final = 1.5
_NOBODY: Final = Identity(-1, -1)


def separate_cluster(directory: Path) -> tuple[Cluster, dict[int, EinmalBroker]]:
    """The brokers and the controllers, not started. A write with acks=all needs two of the brokers."""
    ports = dict(zip(CONTROLLERS, loopback_ports(len(CONTROLLERS)), strict=True))
    quorum = {
        "controller.quorum.voters": ",".join(f"{each}@127.0.0.1:{port}" for each, port in ports.items()),
        "controller.listener.names": "CONTROLLER",
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.num.partitions": "3",
        # The survivor, if it stands still for seconds before the others die, is not to have left its partitions.
        "broker.session.timeout.ms": "15000",
    }
    controllers = {
        each: EinmalBroker(
            directory / str(each),
            {
                **quorum,
                "node.id": str(each),
                "process.roles": "controller",
                "listeners": f"CONTROLLER://127.0.0.1:{port}",
            },
            node_id=each,
        )
        for each, port in ports.items()
    }
    brokers = {
        each: EinmalBroker(
            directory / str(each),
            {**quorum, "node.id": str(each), "process.roles": "broker", "listeners": f"PLAINTEXT://127.0.0.1:{port}"},
            node_id=each,
        )
        for each, port in zip(BROKERS, loopback_ports(len(BROKERS)), strict=True)
    }
    return Cluster(brokers), controllers


def refusal(broker: Broker, partition: int) -> ErrorCode:
    """What a write with acks=all is answered."""
    batch = raw.make_batch(_NOBODY, -1, ["refused"], transactional=False)
    topics = [{"name": "refused", "partition_data": [{"index": partition, "records": batch}]}]
    with Connection(*broker) as connection:
        told = connection.call(raw.PRODUCE, 9, transactional_id=None, acks=-1, timeout=5_000, topic_data=topics)
    code: ErrorCode = told.responses[0].partition_responses[0].error_code
    return code


def acknowledged(clients: list[Client]) -> dict[tuple[str, int, int] | str, str]:
    """Acknowledged records: values by their offset, or by themselves in transactions."""
    found: dict[tuple[str, int, int] | str, str] = {}
    for client in clients:
        lines = client.so_far()
        if client.role == "idempotent":
            found |= {(PLAIN, line["partition"], line["offset"]): line["value"] for line in lines if "offset" in line}
        elif client.role == "transactional":
            committed = {line["transaction"] for line in lines if line.get("outcome") == "committed"}
            values = [line["values"] for line in lines if "values" in line and line["transaction"] in committed]
            found |= {value: value for each in values for value in each}
    return found


def all_can_be_read(bootstrap: str, wanted: dict[tuple[str, int, int] | str, str]) -> None:
    """By a new reader that sees only what is committed. Raises AssertionError."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "survivor", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, index, 0) for topic in (PLAIN, TRANSACTIONS) for index in range(PARTITIONS)])
    missing = dict(wanted)
    deadline = time.monotonic() + PATIENCE_S
    while missing:
        assert time.monotonic() < deadline, f"{len(missing)} of {len(wanted)} cannot be read: {list(missing)[:5]}"
        for message in consumer.consume(1_000, 0.2):
            if message.error() is None:
                value, place = text(message), location(message)
                assert missing.pop(place if place[0] == PLAIN else value, value) == value, place
    consumer.close()


def every_partition_grows(cluster: Cluster) -> None:
    """A committed record comes to each partition of what the writers write."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "survivor"})
    places = [TopicPartition(topic, index) for topic in (PLAIN, TRANSACTIONS) for index in range(PARTITIONS)]

    end: dict[int, int] = {}

    def is_told(index: int) -> bool:
        try:
            end[index] = consumer.get_watermark_offsets(places[index], timeout=PATIENCE_S)[1]
        except KafkaException:
            # Its leader has just changed.
            return False
        return True

    def ends() -> list[int]:
        for index in range(len(places)):
            until(partial(is_told, index))
        return [end[index] for index in range(len(places))]

    before = ends()
    until(lambda: all(then < now for then, now in zip(before, ends(), strict=True)))
    consumer.close()


def nothing_is_acknowledged(clients: list[Client]) -> bool:
    """For a while."""
    before = acknowledged(clients)
    time.sleep(_REFUSED_S)
    return acknowledged(clients) == before


def lose_two(cluster: Cluster, controllers: dict[int, EinmalBroker], clients: list[Client], survivor: int) -> float:
    """Both others die; nothing is lost, nothing accepted; one comes back. Returns how long service took to return."""
    victims = [each for each in BROKERS if each != survivor]
    controller = controllers[CONTROLLERS[survivor - 1]]
    settled = acknowledged(clients)
    assert settled
    everybody_gets_something_done(clients)
    for _ in range(_ROUNDS):
        every_partition_grows(cluster)
    for topic in TOPICS:
        cluster.wait_until_in_sync(topic, range(PARTITIONS))
    for each in victims:
        cluster.kill(each)
    controller.kill()
    left = cluster.nodes[survivor]

    def leads(partition: int) -> bool:
        return cluster.leader("refused", partition) == survivor

    def refuses(partition: int) -> bool:
        return refusal(Broker(left.host, left.port), partition) is ErrorCode.not_enough_replicas

    for partition in range(PARTITIONS):
        until(partial(leads, partition))
        until(partial(refuses, partition))
    all_can_be_read(left.bootstrap, settled)
    # Clients may still report what was acknowledged before; a broker that acknowledges alone would continue.
    until(lambda: nothing_is_acknowledged(clients), lambda: "one broker acknowledges alone")
    assert nothing_is_acknowledged(clients), "one broker acknowledges alone"
    controller.start()
    began = time.monotonic()
    cluster.start_node(victims[survivor % 2])
    everybody_gets_something_done(clients)
    silence = time.monotonic() - began
    cluster.start_node(victims[1 - survivor % 2])
    for topic in TOPICS:
        cluster.wait_until_in_sync(topic, range(PARTITIONS))
    return silence


@pytest.mark.parametrize(
    ("survivors", "load"),
    [(BROKERS[:1], _SMALL_LOAD), pytest.param(BROKERS, _LOAD, marks=pytest.mark.long)],
    ids=["one", "each"],
)
def test_two_of_three_brokers_may_die_and_service_returns_with_the_second(
    tmp_path: Path, survivors: tuple[int, ...], load: tuple[Part, ...]
) -> None:
    cluster, controllers = separate_cluster(tmp_path)
    silences = []
    try:
        for node in (*controllers.values(), *cluster.nodes.values()):
            node.launch()
        for node in (*controllers.values(), *cluster.nodes.values()):
            node.wait_until_ready()
        for topic in (*TOPICS, "refused"):
            cluster.create_topic(topic, PARTITIONS)
        with load_on(cluster.bootstrap, tmp_path, load) as clients:
            for survivor in survivors:
                everybody_gets_something_done(clients)
                silences.append(lose_two(cluster, controllers, clients, survivor))
            everybody_gets_something_done(clients)
            reports = finish(clients)
        no_transaction_is_left_open(lambda topic, index: _address(cluster, cluster.leader(topic, index)))
        values = read_all(cluster.bootstrap)
    finally:
        for node in (*cluster.nodes.values(), *controllers.values()):
            node.kill()
    figures: dict[str, Any] = {"rounds": len(silences), **judge(values, reports)}
    figures["everybody_again_s"] = [round(each, 2) for each in silences]
    (tmp_path / "figures.json").write_text(json.dumps(figures))
    print(json.dumps(figures))
    assert figures["transactions"]["committed"] > 0


def _address(cluster: Cluster, node_id: int) -> Broker:
    return Broker(cluster.nodes[node_id].host, cluster.nodes[node_id].port)
