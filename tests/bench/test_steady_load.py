from types import SimpleNamespace
from typing import Any

import pytest

from einmal.bench import steady_load
from einmal.bench.contenders import AT_LEAST_ONCE, CONNECTOR, EXACTLY_ONCE
from einmal.bench.load import BenchRefused
from einmal.pipeline.errors import PipelineFailed


def test_latency_shows_the_ratio_of_p50_and_of_p99(monkeypatch: pytest.MonkeyPatch) -> None:
    slowest = {EXACTLY_ONCE: 300.0, AT_LEAST_ONCE: 200.0, CONNECTOR: 150.0}
    monkeypatch.setattr(steady_load, "_latencies", lambda _, name, *__: [slowest[name] * n / 200 for n in range(201)])
    contenders: Any = SimpleNamespace(names=list(slowest))
    figures = steady_load.latency(contenders, "now", {}, 1.0, lambda _text: None)
    found = {figure.name: figure.value for figure in figures}
    assert found["latency, now, exactly_once_v2: p99"] == pytest.approx(297_000)
    for percentile in ("p50", "p99"):
        assert found[f"latency, now, {percentile}, exactly_once_v2 : at_least_once"] == pytest.approx(1.5)
        assert found[f"latency, now, {percentile}, exactly_once_v2 : spark's kafka connector"] == pytest.approx(2)


class Ended:
    isActive = False

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def awaitTermination(self) -> None:
        if self._error is not None:
            raise self._error


def test_records_of_a_query_that_has_ended_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady_load, "_CHECK_S", 0.0)
    with pytest.raises(PipelineFailed, match="the cluster is gone"):
        steady_load._wait(lambda: False, Ended(PipelineFailed("the cluster is gone")), "no record has arrived")
    with pytest.raises(BenchRefused, match="no record has arrived, and the query has ended"):
        steady_load._wait(lambda: False, Ended(None), "no record has arrived")
