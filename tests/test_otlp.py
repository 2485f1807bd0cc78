"""Claims about metrics that are pushed: when, to whom, and that they are those of /metrics."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from einmal import otlp
from einmal.event_log import event_of
from tests.cli.broker_process import BrokerProcess
from tests.suite.otlp_receiver import Receiver, attributes, receiving

ENDPOINT, METRICS_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """Named by the variables."""
    with receiving() as receiver:
        monkeypatch.setenv(ENDPOINT, receiver.endpoint)
        monkeypatch.setenv(INTERVAL, "100")
        yield receiver


@pytest.fixture
def events(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """The names of what ``otlp`` logs."""
    seen: list[str] = []

    class Names(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(event_of(record))

    handler, logger = Names(), logging.getLogger(otlp.__name__)
    with caplog.at_level(logging.INFO, otlp.__name__):
        logger.addHandler(handler)
        yield seen
        logger.removeHandler(handler)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({ENDPOINT: ""}, None),
        ({ENDPOINT: " http://a:4318 "}, "http://a:4318"),
        ({ENDPOINT: "http://a:4318", METRICS_ENDPOINT: "http://b:4318/v1/metrics"}, "http://b:4318/v1/metrics"),
        ({ENDPOINT: "http://a:4318", METRICS_ENDPOINT: ""}, "http://a:4318"),
        ({ENDPOINT: "http://a:4318", "OTEL_SDK_DISABLED": "TRUE"}, None),
        ({ENDPOINT: "http://a:4318", "OTEL_SDK_DISABLED": "no"}, "http://a:4318"),
        ({ENDPOINT: "http://a:4318", "OTEL_METRICS_EXPORTER": "none"}, None),
        ({ENDPOINT: "http://a:4318", "OTEL_METRICS_EXPORTER": "prometheus"}, None),
        ({ENDPOINT: "http://a:4318", "OTEL_METRICS_EXPORTER": "console, otlp"}, "http://a:4318"),
        ({ENDPOINT: "http://a:4318", "OTEL_METRICS_EXPORTER": ""}, "http://a:4318"),
    ],
)
def test_metrics_are_pushed_where_the_variables_name_a_receiver(
    variables: dict[str, str], expected: str | None
) -> None:
    assert otlp.receiver(variables) == expected


def test_names_labels_and_numbers_are_those_of_prometheus() -> None:
    registry = CollectorRegistry()
    Counter("records", "Records copied.", ["flow"], registry=registry).labels("a->b").inc(7)
    Gauge("open", "Transactions that are open.", registry=registry).set(-1.5)
    ended = Histogram("ended_seconds", "Ends.", ["phase"], buckets=(1, 5), registry=registry).labels("markers")
    for seconds in (0.5, 0.5, 3, 9):
        ended.observe(seconds)
    found: dict[str, Any] = {metric.name: metric for metric in otlp.otlp_metrics(registry.collect(), 1, 2)}
    assert set(found) == {"records_total", "open", "ended_seconds"}
    counter, gauge, histogram = (found[name].data for name in ("records_total", "open", "ended_seconds"))
    assert [(point.attributes, point.value) for point in counter.data_points] == [({"flow": "a->b"}, 7)]
    assert (counter.is_monotonic, counter.data_points[0].start_time_unix_nano) == (True, 1)
    assert [(point.attributes, point.value) for point in gauge.data_points] == [({}, -1.5)]
    (point,) = histogram.data_points
    assert (point.attributes, point.count, point.sum) == ({"phase": "markers"}, 4, 13)
    assert (point.explicit_bounds, point.bucket_counts) == ([1, 5], [2, 1, 1])
    assert found["open"].description == "Transactions that are open."


def test_a_summary_is_pushed_as_its_quantiles_its_sum_and_its_count() -> None:
    page = (
        "# TYPE times summary\n"
        'times{request="Fetch",quantile="0.5"} 3\ntimes_sum{request="Fetch"} 12\ntimes_count{request="Fetch"} 4\n'
    )
    found: dict[str, Any] = {
        metric.name: metric.data for metric in otlp.otlp_metrics(text_string_to_metric_families(page), 1, 2)
    }
    assert found.keys() == {"times", "times_sum", "times_count"}
    assert [hasattr(found[name], "is_monotonic") for name in ("times", "times_sum", "times_count")] == [
        False,
        True,
        True,
    ]
    assert found["times"].data_points[0].attributes == {"request": "Fetch", "quantile": "0.5"}


def test_a_process_pushes_again_and_again_and_what_it_has_at_its_end(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test,service.instance.id=theirs")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc")
    registry = CollectorRegistry()
    counter = Counter("records", "Records copied.", registry=registry)
    push = otlp.wanted_push("einmal-mirror", instance="ours")
    assert push is not None
    assert push.described == f"pushed to {receiver.endpoint} every 0.1 s"
    push.start(registry.collect)
    receiver.await_push(lambda pushed: pushed.value("records_total") == 0)
    counter.inc()
    first = receiver.await_push(lambda pushed: pushed.value("records_total") == 1)
    assert (first.path, first.headers["authorization"]) == ("/v1/metrics", "Bearer abc")
    named = {name: first.resource[name] for name in ("service.name", "service.instance.id", "deployment.environment")}
    # What a user names precedes.
    assert named == {
        "service.name": "einmal-mirror",
        "service.instance.id": "theirs",
        "deployment.environment": "test",
    }
    counter.inc()
    push.close()
    assert receiver.pushes[-1].value("records_total") == 2
    assert not [thread for thread in threading.enumerate() if thread.name == "otlp"]


def test_a_receiver_that_refuses_is_reported_once_and_again_when_it_takes_them(
    receiver: Receiver, events: list[str]
) -> None:
    receiver.status = 404
    push = otlp.wanted_push("einmal-mirror")
    assert push is not None
    push.start(CollectorRegistry().collect)
    for count in range(1, 4):
        receiver.await_push(lambda _pushed, count=count: len(receiver.pushes) > count)  # type: ignore[misc]
    receiver.status = 200
    wanted = len(receiver.pushes) + 3
    receiver.await_push(lambda _pushed: len(receiver.pushes) >= wanted)
    push.close()
    assert events == ["metrics_not_pushed", "metrics_pushed"]


@pytest.mark.parametrize(
    ("rejected", "message", "expected"),
    [
        (3, "too many labels", "3 data points are rejected: too many labels"),
        (2, "", "2 data points are rejected"),
        (0, "slow down", "slow down"),
    ],
)
def test_what_a_receiver_rejects_of_a_push_that_it_takes_is_reported_once(
    receiver: Receiver, events: list[str], caplog: pytest.LogCaptureFixture, rejected: int, message: str, expected: str
) -> None:
    receiver.answer.partial_success.rejected_data_points = rejected
    receiver.answer.partial_success.error_message = message
    push = otlp.wanted_push("einmal-mirror")
    assert push is not None
    push.start(CollectorRegistry().collect)
    receiver.await_push(lambda _pushed: len(receiver.pushes) > 1)
    receiver.answer.Clear()
    wanted = len(receiver.pushes) + 3
    receiver.await_push(lambda _pushed: len(receiver.pushes) >= wanted)
    push.close()
    assert events == ["metrics_rejected", "metrics_pushed"]
    (line,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert line == f"metrics are pushed to {receiver.endpoint}, which does not take all of them: {expected}"


def test_what_cannot_be_collected_is_reported_and_pushed_later(receiver: Receiver, events: list[str]) -> None:
    registry = CollectorRegistry()
    failures = [RuntimeError("not now")]

    def collect() -> object:
        if failures:
            raise failures.pop()
        return registry.collect()

    push = otlp.wanted_push("einmal-mirror")
    assert push is not None
    push.start(collect)  # type: ignore[arg-type]
    receiver.await_push()
    push.close()
    assert events == ["metrics_not_pushed", "metrics_pushed"]


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc is not supported"),
        (
            "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
            "http/json",
            "http/json is not supported: name a receiver of http/protobuf",
        ),
        (INTERVAL, "60s", "OTEL_METRIC_EXPORT_INTERVAL is a number of milliseconds from 100, not '60s'"),
        (INTERVAL, "99", "from 100, not '99'"),
        (INTERVAL, "-1", "from 100, not '-1'"),
    ],
)
def test_variables_that_cannot_be_followed_are_reported_and_stop_no_process(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    receiver: Receiver,
    variable: str,
    value: str,
    expected: str,
) -> None:
    monkeypatch.setenv(variable, value)
    assert otlp.wanted_push("einmal-mirror") is None
    (line,) = (record.getMessage() for record in caplog.records if record.name == otlp.__name__)
    assert line.startswith(f"no metrics are pushed to {receiver.endpoint}: ")
    assert expected in line


def test_no_secret_of_the_variables_is_shown(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENDPOINT, receiver.endpoint.replace("//", "//user:hunter2@"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization: Bearer hunter2")
    receiver.status = 401
    push = otlp.wanted_push("einmal-mirror")
    assert push is not None
    push.start(CollectorRegistry().collect)
    push.close()
    lines = [record.getMessage() for record in caplog.records if record.name == otlp.__name__]
    assert lines[0] == "a header is not name=value, URL-encoded (a variable OTEL_*)"
    assert lines[1].startswith(f"no metrics are pushed to {receiver.endpoint}: ")
    assert "hunter2" not in f"{push.described} {push.endpoint} {lines}"


@pytest.mark.parametrize(
    ("variable", "value"), [("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"), ("OTEL_EXPORTER_OTLP_COMPRESSION", "zip")]
)
def test_variables_that_the_exporter_refuses_are_reported_and_its_defaults_hold(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    receiver: Receiver,
    variable: str,
    value: str,
) -> None:
    monkeypatch.setenv(variable, value)
    push = otlp.wanted_push("einmal-mirror")
    assert push is not None
    push.start(CollectorRegistry().collect)
    push.close()
    (line,) = (record.getMessage() for record in caplog.records if record.name == otlp.__name__)
    assert value in line
    assert receiver.pushes


def test_why_a_receiver_cannot_be_asked_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, receiver: Receiver
) -> None:
    """It speaks no TLS."""
    monkeypatch.setenv(ENDPOINT, receiver.endpoint.replace("http:", "https:"))
    push = otlp.wanted_push("einmal-mirror")
    assert push is not None
    push.start(CollectorRegistry().collect)
    push.close()
    (line,) = (record.getMessage() for record in caplog.records if record.name == otlp.__name__)
    assert "SSL" in line


@pytest.mark.system
def test_a_broker_pushes_what_it_serves_and_announces_it(receiver: Receiver, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        broker.wait_until_ready()
        assert f"                pushed to {receiver.endpoint} every 0.1 s" in broker.lines
        pushed = receiver.await_push(lambda each: each.value("kafka_brokers") == 1)
        assert pushed.resource["service.name"] == "einmal-broker"
        assert pushed.resource["service.instance.id"] == broker.bootstrap
        assert pushed.value("kafka_controller_kafkacontroller_activecontrollercount") == 1
        phases = pushed.metrics["einmal_txn_phase_seconds"].histogram.data_points
        assert {attributes(point)["phase"] for point in phases} >= {"markers"}
        status, _errors = broker.stop()
    assert status == 0
