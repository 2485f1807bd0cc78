"""Claims about what Prometheus reads of a pipeline, held against what the broker has."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from einmal.client import Producer
from einmal.pipeline.events import Event, OutputWritten
from einmal.spark import OptionError, PipelineRefused
from einmal.spark.operate.metrics import ADDRESS, served, stop_pushing
from einmal.spark.operate.watch import Watch
from einmal.spark.protocol.queries import queries_of
from tests.spark.pipelines import Pipeline
from tests.spark.topics import create, fill, numbers
from tests.suite.otlp_receiver import receiving
from tests.suite.shared import unique

pytestmark = pytest.mark.spark

_SOON_S = 300.0
_ANY_PORT = "127.0.0.1:0"
Figures = dict[tuple[str, str], float]
"""By name, and the label beside the pipeline's (or "")."""


@pytest.fixture(scope="module")
def served_address(spark: Any) -> Iterator[str]:
    """A process serves what a setting asks for once, and until it ends."""
    queries = queries_of(spark)
    before = queries.observers
    spark.conf.set(ADDRESS, _ANY_PORT)
    (url,) = served(spark)
    yield url
    for each in [each for each in queries.observers if each not in before]:
        queries.remove_observer(each)
        assert isinstance(each, Watch)
        each.close()


@pytest.fixture
def address(spark: Any, served_address: str) -> Iterator[str]:
    spark.conf.set(ADDRESS, _ANY_PORT)
    yield served_address
    spark.conf.unset(ADDRESS)


def scraped(address: str, pipeline: str) -> Figures:
    with urlopen(address, timeout=60.0) as answer:
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            if labels.pop("pipeline") == pipeline:
                found[sample.name.removeprefix("einmal_pipeline_"), "".join(labels.values())] = sample.value
    return found


def awaited(address: str, pipeline: str, **wanted: float) -> Figures:
    """The figures once those without a label are as wanted."""
    deadline = time.monotonic() + _SOON_S
    while True:
        figures = scraped(address, pipeline)
        if all(figures.get((name, "")) == value for name, value in wanted.items()):
            return figures
        assert time.monotonic() < deadline, figures
        time.sleep(0.05)


def test_what_is_scraped_while_a_pipeline_runs_is_what_the_topics_hold(
    spark: Any, bootstrap: str, tmp_path: Path, address: str
) -> None:
    pipeline = Pipeline(bootstrap, str(tmp_path), unique("metrics"))
    create(bootstrap, pipeline.source_topic, pipeline.topic)
    fill(bootstrap, pipeline.source_topic, range(25))
    opened: list[float] = []

    def look(event: Event) -> None:
        """In the middle of a transaction, after its events have been handled."""
        if isinstance(event, OutputWritten) and event.batch_id == 2:
            while not opened or opened[-1] == 0.0:
                opened.append(scraped(address, pipeline.name)["open_transaction_seconds", ""])
                assert len(opened) < 4_000, opened
                time.sleep(0.05)

    writer = pipeline.writer(spark).trigger(processingTime="100 milliseconds").listener(look)
    query = writer.start()
    try:
        figures = awaited(address, pipeline.name, input_records_total=25)
        assert opened[-1] > 0.0
        # Batch 0 is empty, then 10, 10 and 5 records.
        assert figures["output_records_total", ""] == 25 == len(numbers(bootstrap, pipeline.topic))
        assert figures["batches_total", "written"] == figures["transactions_total", "commit"] == 4
        assert figures["transactions_total", "abort"] == figures["restarts_total", ""] == 0
        assert (figures["last_batch_id", ""], figures["running", ""]) == (3, 1)
        assert figures["lag_records", pipeline.source_topic] == 0
        assert figures["batch_duration_seconds_count", ""] == figures["batch_duration_seconds_bucket", "+Inf"] == 4
        phases = {label: value for (name, label), value in figures.items() if name == "phase_seconds_total"}
        assert all(value > 0 for value in phases.values()), phases
        assert sum(phases.values()) == pytest.approx(figures["batch_duration_seconds_sum", ""])
        # Somebody else's transaction: what is behind it is not there to be read, so no lag.
        with Producer({"bootstrap.servers": bootstrap, "transactional.id": unique("upstream")}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(pipeline.source_topic, "25", partition=0)
            producer.flush()
            assert scraped(address, pipeline.name)["lag_records", pipeline.source_topic] == 0
            producer.commit_transaction()
        # A record and its marker.
        figures = awaited(address, pipeline.name, input_records_total=27)
        assert figures["output_records_total", ""] == 26
    finally:
        query.stop()
    figures = awaited(address, pipeline.name, running=0)
    assert figures["open_transaction_seconds", ""] == 0
    assert not [name for name, _ in figures if name == "lag_records"], "nobody measures it any more"


def test_a_query_that_is_started_again_leaves_no_connection_open(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = unique("again")
    create(bootstrap, topic)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    monkeypatch.setattr("einmal.spark.operate.watch.sources", lambda _frame: [("kafka", options)])
    watch, before = Watch(), threading.active_count()
    try:
        for _ in range(3):
            watch.starting("again", None)  # type: ignore[arg-type]
            (pipeline,) = watch.pipelines()
            assert pipeline.ends.not_older_than(0, ({topic: {"0": 0}},)) is not None
        deadline = time.monotonic() + _SOON_S
        while threading.active_count() > before + 1:
            assert time.monotonic() < deadline, threading.enumerate()
            time.sleep(0.05)
    finally:
        watch.close()


def test_an_address_that_cannot_be_had_is_refused_before_anything_runs(spark: Any, address: str) -> None:
    spark.conf.set(ADDRESS, address.removeprefix("http://").removesuffix("/metrics"))
    with pytest.raises(PipelineRefused, match="Address already in use"):
        served(spark)
    spark.conf.set(ADDRESS, "localhost:http")
    with pytest.raises(OptionError, match="HOST:PORT"):
        served(spark)


def test_pipelines_push_what_is_served_where_the_variables_ask_for_it(
    spark: Any, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(bootstrap, str(tmp_path), unique("pushed"))
    create(bootstrap, pipeline.source_topic, pipeline.topic)
    fill(bootstrap, pipeline.source_topic, range(5))
    of_pipeline = {"pipeline": pipeline.name}
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
        query = pipeline.writer(spark).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
            push = receiver.await_push(
                lambda push: (
                    push.value("einmal_pipeline_output_records_total", **of_pipeline) == 5
                    and push.value("einmal_pipeline_running", **of_pipeline) == 0
                )
            )
        finally:
            query.stop()
            stop_pushing()
        behind = {"pipeline": pipeline.name, "topic": pipeline.source_topic}
        assert push.value("einmal_pipeline_lag_records", **behind) is None
        assert receiver.await_push().value("einmal_pipeline_lag_records", **behind) == 0
