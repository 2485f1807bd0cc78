"""Measurements of one cluster, one after another and at once, as of a user's own that stays."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from einmal.bench import cases, topics
from einmal.bench.cases import MeasuredBroker
from einmal.bench.load import BenchRefused
from einmal.bench.pipeline_cases import PipelineCases
from einmal.bench.run import run
from einmal.bench.server import FreshBrokers
from einmal.bench.topics import BenchTopics
from einmal.local.processes import LocalCluster


@pytest.fixture(autouse=True)
def long_time_outs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no broker that does not answer."""
    monkeypatch.setattr(topics, "_TIMEOUT_S", 300.0)


@pytest.mark.long
def test_a_second_measurement_finds_nothing_of_the_first_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "CODECS", ("none", "lz4"))
    names = ["single", "transactions", "client"]
    with FreshBrokers().running() as broker:
        target = MeasuredBroker(broker.bootstrap_servers)
        for _ in range(2):
            measured = run(names, target=target, scale=0.01, pipeline=PipelineCases(), say=lambda _text: None)
            figures = list(measured)
            assert len(figures) == 6 + 2 * 2 * 5
            assert all(figure.value > 0 for figure in figures if "CPU" not in figure.name)
        assert not _topics(broker)


def test_two_measurements_at_once_share_no_topic() -> None:
    with FreshBrokers().running() as broker, BenchTopics(broker.bootstrap_servers) as one:
        with BenchTopics(broker.bootstrap_servers) as other:
            mine, others = one.create("topic", 2), other.create("topic", 2)
            assert mine != others
        assert _topics(broker) == {mine: 2}, "the other has deleted only its own"


def test_topics_that_cannot_be_deleted_do_not_hide_an_earlier_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = BenchTopics("127.0.0.1:1")
    monkeypatch.setattr(topics, "close", _refuse)
    with pytest.raises(BenchRefused, match="the query failed"), topics:
        raise BenchRefused("the query failed")
    with pytest.raises(BenchRefused, match="DeleteTopics"), topics:
        pass


def _refuse() -> None:
    raise BenchRefused("DeleteTopics: _TIMED_OUT")


def _topics(broker: LocalCluster) -> dict[str, int]:
    """Their partitions, without the broker's own topics."""
    found = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=120).topics
    return {name: len(topic.partitions) for name, topic in found.items() if not name.startswith("__")}
