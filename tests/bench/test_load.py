"""Claims about ready-made requests: they wait for a partition's leader, and never measure an error."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from einmal.bench import load, records
from einmal.bench.load import BenchRefused, Connection
from einmal.bench.server import FreshBrokers
from einmal.bench.topics import BenchTopics
from tests.suite.patience import patient


def test_requests_wait_until_the_broker_leads_the_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_UNTIL_LED_S", patient(10))
    with FreshBrokers().running() as broker:
        batch, count = load.batch(records.varied(100), 1_000)
        with (
            BenchTopics(broker.bootstrap_servers) as topics,
            closing(Connection(broker.bootstrap_servers)) as connection,
        ):
            request = load.produce_request(topics.prefix + "later", 0, batch)
            with pytest.raises(BenchRefused, match="UNKNOWN_TOPIC_OR_PARTITION"):
                load.produce_many(connection, request, 1, 1)
            waiting = threading.Thread(target=load.warm_up, args=(connection, request, 20, 5))
            waiting.start()
            later = topics.create("later")
            waiting.join(patient(30))
            _seconds, size = load.fetch_all(connection, later, 21 * count)
            assert size == 21 * len(batch)


def test_a_partition_that_is_never_led_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_UNTIL_LED_S", 0.1)
    with FreshBrokers().running() as broker, closing(Connection(broker.bootstrap_servers)) as connection:
        request = load.produce_request("missing", 0, load.batch(records.equal(100), 100)[0])
        with pytest.raises(BenchRefused, match="^Produce: UNKNOWN_TOPIC_OR_PARTITION$"):
            load.warm_up(connection, request, 1, 1)


def test_other_errors_are_refused_at_once() -> None:
    with FreshBrokers().running() as broker:
        batch, _count = load.batch(records.varied(100), 100)
        with (
            BenchTopics(broker.bootstrap_servers) as topics,
            closing(Connection(broker.bootstrap_servers)) as connection,
        ):
            broken = load.produce_request(topics.create("topic"), 0, batch[:-1] + bytes([batch[-1] ^ 1]))
            with pytest.raises(BenchRefused, match="^Produce: CORRUPT_MESSAGE$"):
                load.warm_up(connection, broken, 1, 1)
