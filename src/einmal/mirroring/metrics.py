"""Prometheus metrics of one mirror over HTTP: ``/metrics``, in its process. docs/mirror.md has the table of names."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from einmal.mirror.flow import MirrorNotice
from einmal.mirroring.run import MirrorStopped
from einmal.pipeline.commit_record import CommitRecord

_LABELS: Final = ("flow",)


class MirrorMetrics:
    """Figures of the flow, from the start of its process."""

    def __init__(self, flow: str) -> None:
        self._flow = flow
        self._registry = CollectorRegistry(auto_describe=False)
        registry = self._registry
        self._records = Counter("einmal_mirror_records", "Records copied.", _LABELS, registry=registry)
        self._transactions = Counter(
            "einmal_mirror_transactions", "Committed transactions.", _LABELS, registry=registry
        )
        self._last = Gauge(
            "einmal_mirror_last_commit_timestamp_seconds",
            "When the last one was committed.",
            _LABELS,
            registry=registry,
        )
        self._notices = Counter("einmal_mirror_notices", "Warnings, by kind.", (*_LABELS, "kind"), registry=registry)

    def commit(self, record: CommitRecord) -> None:
        """A transaction was committed."""
        self._records.labels(self._flow).inc(record.records)
        self._transactions.labels(self._flow).inc()
        self._last.labels(self._flow).set_to_current_time()

    def notice(self, notice: MirrorNotice) -> None:
        """Something was reported."""
        self._notices.labels(self._flow, notice.kind.value).inc()

    def serve(self, address: str) -> str:
        """``address``: "host:port", or a port of 127.0.0.1; 0 is one that is free. Returns the address. Raises
        MirrorStopped."""
        host, _, port = address.rpartition(":")
        host = host.strip("[]") or "127.0.0.1"
        if not port.isdecimal() or int(port) > 65_535:
            raise MirrorStopped(f"--metrics is HOST:PORT or a port, not {address!r}", "0 is a port that is free")
        try:
            server, _ = start_http_server(int(port), host, self._registry)
        except OSError as error:
            raise MirrorStopped(
                f"metrics cannot be served at {address}: {error.strerror}", "name another port, or 0 for a free one"
            ) from error
        return f"{host}:{server.server_port}"
