"""Pushes the metrics of a process over OTLP/HTTP, where OpenTelemetry's variables (OTEL_*) name a receiver.

The same samples under the same names as at /metrics. Needs the extra otel.
Source: OpenTelemetry's specification of environment variables, and its page on compatibility with Prometheus.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import einmal
from einmal.event_log import EventLog
from einmal.extras import install_command

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Metric as OtlpMetric
    from opentelemetry.sdk.resources import Resource
    from prometheus_client.core import Metric
    from prometheus_client.samples import Sample
    from requests import Response, Session

log = EventLog(__name__)

_EXPORTER_LOG: Final = "opentelemetry.exporter.otlp"
_HEADERS_LOG: Final = "opentelemetry.util.re"
_USER: Final = re.compile(r"(?<=//)[^/@]*@")
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL: Final = "http/protobuf"
_PROVIDERS: Final = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_METRICS_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
)
_INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
_INTERVAL_DEFAULT_MS: Final = 60_000
_INTERVAL_LEAST_MS: Final = 100
_REASONS_MAX: Final = 2
_LAST_SECONDS: Final = 2.0
"""How long the end of a process waits for the last push, and once more for its end."""

Collecting = Callable[[], Iterable["Metric"]]


def receiver(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the address that the variables name, without a password; None: no metrics are to be pushed."""
    exporters = {name.strip() for name in (_first(environ, ("OTEL_METRICS_EXPORTER",)) or "otlp").split(",")}
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or "otlp" not in exporters:
        return None
    endpoint = _first(environ, ENDPOINTS)
    return None if endpoint is None else _USER.sub("", endpoint)


def wanted_push(service: str, *, instance: str | None = None) -> Push | None:
    """Return what pushes to the receiver; None: none is named, or nothing can be pushed to it, which is logged.

    ``service`` and ``instance`` (default: host and process) are the attributes service.name and service.instance.id,
    where the variables have none.
    """
    endpoint = receiver()
    if endpoint is None:
        return None
    protocol = _first(os.environ, _PROTOCOLS) or _PROTOCOL
    if protocol != _PROTOCOL:
        why = f"{_PROTOCOLS[1]}={protocol} is not supported: name a receiver of {_PROTOCOL}"
    else:
        try:
            return Push(endpoint, service, instance or f"{socket.gethostname()}:{os.getpid()}")
        except ModuleNotFoundError as error:
            why = f"{error.name} is not installed: {install_command('otel')}"
        except (OSError, ValueError) as error:
            why = f"{error}: correct the variables OTEL_*"
    log.warning("metrics_not_pushed", "no metrics are pushed to %(endpoint)s: %(why)s", endpoint=endpoint, why=why)
    return None


class Push:
    """Pushes every OTEL_METRIC_EXPORT_INTERVAL milliseconds, and once more at the end."""

    def __init__(self, endpoint: str, service: str, instance: str) -> None:
        """Raises ModuleNotFoundError, OSError and ValueError."""
        import prometheus_client  # noqa: F401 - what is pushed has its types.
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        self.endpoint = endpoint
        self.interval_seconds = _interval_ms(os.environ) / 1000
        self._resource = _resource(service, instance)
        self._started_ns = time.time_ns()
        self._reasons = _Reasons()
        self._rejections = _Rejections()
        self._exporter = OTLPMetricExporter(session=self._rejections.session())
        for reason in self._reasons.taken():
            log.warning("metrics_setting_refused", "%(reason)s (a variable OTEL_*)", reason=reason)
        self._last_event = "metrics_pushed"
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, collect: Collecting) -> None:
        """Push what ``collect`` returns, which is called in a thread of its own."""
        # No process waits for it but in close: a receiver may be slow.
        self._thread = threading.Thread(target=self._run, args=(collect,), name="otlp", daemon=True)
        self._thread.start()

    @property
    def described(self) -> str:
        return f"pushed to {self.endpoint} every {self.interval_seconds:g} s"

    def close(self) -> None:
        """Push for the last time; that ends soon, whatever the receiver does."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(_LAST_SECONDS)
        # It ends the pause before another try.
        self._exporter.shutdown()
        if self._thread is not None:
            self._thread.join(_LAST_SECONDS)
        self._reasons.close()

    def _run(self, collect: Collecting) -> None:
        is_last = False
        while not is_last:
            is_last = self._ending.wait(self.interval_seconds)
            self._push(collect)

    def _push(self, collect: Collecting) -> None:
        from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData, ResourceMetrics, ScopeMetrics
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        try:
            metrics = list(otlp_metrics(collect(), self._started_ns, time.time_ns()))
            scope = ScopeMetrics(InstrumentationScope("einmal", einmal.__version__), metrics, "")
            result = self._exporter.export(MetricsData([ResourceMetrics(self._resource, [scope], "")]))
            reasons = "; ".join(self._reasons.taken())
            why = None if result is MetricExportResult.SUCCESS else reasons or "the receiver does not take them"
        except Exception as error:  # noqa: BLE001 - no failure here stops the process, or the next push.
            why = str(error) or type(error).__name__
        rejected = self._rejections.taken()
        self._report(why, None if why is not None else rejected)

    def _report(self, why: str | None, rejected: str | None) -> None:
        """Log what has changed since the last push: a failure lasts, and is one line. ``rejected``: of a push that was
        taken, which is not repeated (OTLP's specification)."""
        event = (
            "metrics_pushed" if why is rejected is None else "metrics_rejected" if why is None else "metrics_not_pushed"
        )
        if event == self._last_event:
            return
        self._last_event = event
        if why is not None:
            log.warning(
                "metrics_not_pushed",
                "no metrics are pushed to %(endpoint)s: %(why)s; it is tried again",
                endpoint=self.endpoint,
                why=why,
            )
        elif rejected is not None:
            log.warning(
                "metrics_rejected",
                "metrics are pushed to %(endpoint)s, which does not take all of them: %(why)s",
                endpoint=self.endpoint,
                why=rejected,
            )
        else:
            log.info("metrics_pushed", "metrics are pushed to %(endpoint)s again", endpoint=self.endpoint)


class _Rejections:
    """Reads the answers to pushes that were taken, which the exporter does not: a receiver may reject a part."""

    def __init__(self) -> None:
        self._last: str | None = None

    def session(self) -> Session | None:
        """The exporter's session; None where a variable names another one, whose answers nobody reads."""
        from requests import Session

        if any(os.environ.get(name) for name in _PROVIDERS):
            return None
        session = Session()
        session.hooks["response"] = [self._read]
        return session

    def _read(self, response: Response, *_arguments: object, **_settings: object) -> None:
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

        if not response.ok:
            return
        try:
            partial = ExportMetricsServiceResponse.FromString(response.content).partial_success
        except DecodeError:
            # It has taken them, by its status.
            return
        # Nothing rejected and a text is a warning of the receiver's (OTLP's specification).
        if partial.rejected_data_points:
            reason = f": {partial.error_message}" if partial.error_message else ""
            self._last = f"{partial.rejected_data_points} data points are rejected{reason}"
        elif partial.error_message:
            self._last = partial.error_message

    def taken(self) -> str | None:
        """Take what the answers since the last call report."""
        last, self._last = self._last, None
        return last


class _Reasons(logging.Handler):
    """Why pushes fail, as the exporter logs it: it returns no reason."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._logged: deque[str] = deque(maxlen=_REASONS_MAX)
        self._loggers = [logging.getLogger(name) for name in (_EXPORTER_LOG, _HEADERS_LOG)]
        for logger in self._loggers:
            logger.addHandler(self)
            # One line about a failure is enough, and it is ours.
            logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        # What is wrong with a header has the header in it, which may be a token.
        is_header = record.name == _HEADERS_LOG
        self._logged.append("a header is not name=value, URL-encoded" if is_header else record.getMessage())

    def taken(self) -> list[str]:
        """Take the reasons since the last call, without repetitions."""
        reasons = list(dict.fromkeys(self._logged))
        self._logged.clear()
        return reasons

    def close(self) -> None:
        for logger in self._loggers:
            logger.removeHandler(self)
        super().close()


def otlp_metrics(families: Iterable[Metric], started_ns: int, now_ns: int) -> Iterator[OtlpMetric]:
    """Translate families of Prometheus: names and labels stay as they are.

    ``started_ns``: since when counters count. A summary becomes a gauge of its quantiles and counters of its sum and
    its count: OpenTelemetry's SDK has no summaries.
    """
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Histogram, Metric, NumberDataPoint, Sum

    for family in families:
        if family.type == "histogram":
            points = list(_histograms(family.samples, started_ns, now_ns))
            data: Any = Histogram(points, AggregationTemporality.CUMULATIVE)
            yield Metric(family.name, family.documentation, "", data)
            continue
        named: dict[str, list[NumberDataPoint]] = {}
        for sample in family.samples:
            point = NumberDataPoint(sample.labels, started_ns, now_ns, float(sample.value))
            named.setdefault(sample.name, []).append(point)
        for name, numbers in named.items():
            if name.endswith("_created"):
                continue
            counts = family.type == "counter" or (family.type == "summary" and name != family.name)
            data = Sum(numbers, AggregationTemporality.CUMULATIVE, is_monotonic=True) if counts else Gauge(numbers)
            yield Metric(name, family.documentation, "", data)


def _histograms(samples: Iterable[Sample], started_ns: int, now_ns: int) -> Iterator[Any]:
    """The points of a histogram, by its labels. Prometheus' buckets count all up to their bound, OTLP's those in it."""
    from opentelemetry.sdk.metrics import export

    # By its types the least and the largest value cannot be unknown, which they may be.
    point: Any = export.HistogramDataPoint
    buckets: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    totals: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in samples:
        labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        if sample.name.endswith("_bucket"):
            buckets.setdefault(labels, []).append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_sum"):
            totals[labels] = sample.value
    for labels, bounds in buckets.items():
        bounds.sort()
        upto = [int(count) for _bound, count in bounds]
        yield point(
            dict(labels),
            started_ns,
            now_ns,
            count=upto[-1],
            sum=totals.get(labels, 0.0),
            bucket_counts=[count - before for before, count in zip((0, *upto), upto, strict=False)],
            explicit_bounds=[bound for bound, _count in bounds[:-1]],
            min=None,
            max=None,
        )


def _first(environ: Mapping[str, str], names: Iterable[str]) -> str | None:
    """The first of these variables that is set; an empty one is not (OpenTelemetry's specification)."""
    return next((value for name in names if (value := environ.get(name, "").strip())), None)


def _interval_ms(environ: Mapping[str, str]) -> int:
    """Raises ValueError."""
    text = environ.get(_INTERVAL, "").strip()
    if not text:
        return _INTERVAL_DEFAULT_MS
    if not text.isascii() or not text.isdecimal() or int(text) < _INTERVAL_LEAST_MS:
        raise ValueError(f"{_INTERVAL} is a number of milliseconds from {_INTERVAL_LEAST_MS}, not {text!r}")
    return int(text)


def _resource(service: str, instance: str) -> Resource:
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    named = {"service.name": service, "service.instance.id": instance, "service.version": einmal.__version__}
    return Resource(named).merge(OTELResourceDetector().detect())
