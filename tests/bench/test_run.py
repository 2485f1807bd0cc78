"""Claims about rounds: two brokers take turns, and a figure is the median of its rounds."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import pytest

from einmal.bench import cases, run
from einmal.bench.cases import CASES, Figure, MeasuredBroker
from einmal.bench.pipeline_cases import PipelineCases
from einmal.bench.server import FreshBrokers

OURS, THEIRS = MeasuredBroker("ours:1"), MeasuredBroker("theirs:1")


def measured(monkeypatch: pytest.MonkeyPatch, beside: MeasuredBroker | None) -> tuple[list[str], list[Figure]]:
    """The order of the brokers, and the figures of a case of 1, 9 and 2 records/s; of the other broker twice that."""
    turns: list[str] = []

    def case(target: MeasuredBroker, _scale: float) -> Iterator[Figure]:
        value = (1.0, 9.0, 2.0)[turns.count(target.bootstrap)]
        turns.append(target.bootstrap)
        yield Figure("rate", value if target is OURS else 2 * value, "records/s", 5)
        yield Figure("price", value, "%")
        if target is OURS:
            yield Figure("broker CPU", value, "s per million records")

    monkeypatch.setitem(CASES, "single", case)
    found = run.run(["single"], target=OURS, scale=1, pipeline=PipelineCases(), say=lambda _text: None, beside=beside)
    return turns, list(found)


def test_figures_of_one_broker_are_medians_of_three_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, figures = measured(monkeypatch, None)
    assert turns == ["ours:1"] * 3
    assert [(figure.name, figure.value, figure.budget, figure.ratio) for figure in figures] == [
        ("rate", 2, 5, None),
        ("price", 2, None, None),
        ("broker CPU", 2, None, None),
    ]


def test_two_brokers_take_turns_and_have_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, figures = measured(monkeypatch, THEIRS)
    assert turns == ["ours:1", "theirs:1", "theirs:1", "ours:1", "ours:1", "theirs:1"]
    # Of a broker on another machine nobody knows the CPU time.
    assert [(figure.name, figure.value, figure.beside, figure.ratio) for figure in figures] == [
        ("rate", 2, 4, 0.5),
        ("price", 2, 2, None),
    ]


def test_equal_records_are_measured_only_by_name() -> None:
    assert set(CASES) - set(cases.DEFAULT) == {"equal"}


@pytest.mark.time_limit(120)
@pytest.mark.long
def test_three_fresh_brokers_are_measured_over_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "CODECS", ("lz4",))
    monkeypatch.setattr(cases, "RECORD_SIZES", (100,))
    monkeypatch.setattr(cases, "BATCH_SIZES", (16_000,))
    monkeypatch.setattr(run, "ROUNDS", 1)
    fresh = FreshBrokers(count=3, over_tls=True)
    names = ["client", "throughput"]
    figures = list(run.run(names, target=fresh, scale=0.01, pipeline=PipelineCases(), say=lambda _text: None))
    assert [figure.name for figure in figures] == [
        "100 B, lz4: produce",
        "100 B, lz4: broker CPU",
        "100 B, lz4: consume",
        "100 B, lz4: latency at 10,000/s, p50",
        "100 B, lz4: latency at 10,000/s, p99",
        "produce 16 KB batches of 100 B records",
        "fetch 16 KB batches of 100 B records",
    ]
    assert all(figure.value > 0 for figure in figures if "CPU" not in figure.name)


def test_fresh_brokers_over_tls_show_a_certificate() -> None:
    with FreshBrokers(over_tls=True).running() as cluster:
        host, port = cluster.bootstrap_servers.split(":")
        assert ssl.get_server_certificate((host, int(port))).startswith("-----BEGIN CERTIFICATE-----")
