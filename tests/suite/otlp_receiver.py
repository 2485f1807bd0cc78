"""A receiver of OTLP/HTTP, which keeps what is pushed to it. OpenTelemetry's own messages decode it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from tests.suite.patience import patient


class Pushed(NamedTuple):
    """One push. ``metrics``: OTLP's metrics by name; ``resource``: the attributes of who has pushed."""

    path: str
    headers: dict[str, str]
    resource: dict[str, str]
    metrics: dict[str, Any]

    def value(self, name: str, **labels: str) -> float | None:
        """The number under a name, a gauge's or a counter's. None: there is no such sample."""
        metric = self.metrics.get(name)
        if metric is None:
            return None
        points = (metric.sum if metric.HasField("sum") else metric.gauge).data_points
        return next((point.as_double for point in points if attributes(point) == labels), None)


def attributes(of: Any) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in of.attributes}


class Receiver:
    """``status``, ``answer``: of the answers that it gives."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.status = 200
        self.answer = ExportMetricsServiceResponse()
        self.pushes: list[Pushed] = []
        self.has_changed = threading.Condition()

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        (resource,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
        metrics = {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
        with self.has_changed:
            self.pushes.append(Pushed(path, headers, attributes(resource.resource), metrics))
            self.has_changed.notify_all()

    def await_push(self, wanted: Callable[[Pushed], bool] = lambda _push: True, seconds: float = 60) -> Pushed:
        """The newest push, as soon as it is as wanted."""
        deadline = time.monotonic() + patient(seconds)
        with self.has_changed:
            while not self.pushes or not wanted(self.pushes[-1]):
                assert self.has_changed.wait(deadline - time.monotonic()), self.pushes[-1:]
            return self.pushes[-1]


@contextmanager
def receiving() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.take(self.path, dict(self.headers), body)
            answer = receiver.answer.SerializeToString()
            self.send_response(receiver.status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(server.server_port)
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            serving.join()
