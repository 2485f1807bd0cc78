"""Prometheus metrics of one mirror. docs/mirror.md has the table of names."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from einmal.commit_protocol.commit_record import CommitRecord
from einmal.metrics import Naming
from einmal.mirror_protocol.flow import MirrorNotice, NoticeKind

_NAMING: Final = Naming("mirror", "flow")


class MirrorMetrics:
    """Figures of the flow, from the start of its process."""

    def __init__(self, flow: str) -> None:
        self._flow = flow
        self.registry = CollectorRegistry()
        registry, full, labels = self.registry, _NAMING.full, _NAMING.labels()
        self._records = Counter(full("records"), "Records copied.", labels, registry=registry)
        self._transactions = Counter(full("transactions"), "Committed transactions.", labels, registry=registry)
        self._last = Gauge(
            full("last_commit_timestamp_seconds"), "When the last one was committed.", labels, registry=registry
        )
        self._notices = Counter(full("notices"), "Warnings, by kind.", _NAMING.labels("kind"), registry=registry)
        for kind in NoticeKind:
            # A rate does not see the first value of a series.
            self._notices.labels(flow, kind.value)

    def commit(self, record: CommitRecord) -> None:
        """A transaction was committed."""
        self._records.labels(self._flow).inc(record.records)
        self._transactions.labels(self._flow).inc()
        self._last.labels(self._flow).set_to_current_time()

    def notice(self, notice: MirrorNotice) -> None:
        """Something was reported."""
        self._notices.labels(self._flow, notice.kind.value).inc()
