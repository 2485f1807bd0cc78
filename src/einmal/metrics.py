"""Prometheus metrics of a process: their names and labels, and ``/metrics`` over HTTP. Needs the extra spark."""

from __future__ import annotations

from typing import NamedTuple

from prometheus_client import CollectorRegistry, start_http_server

from einmal.options.values import OptionError
from einmal.pipeline.errors import PipelineRefused


class Naming(NamedTuple):
    """Metrics of one ``kind`` of process, such as pipeline; ``label`` distinguishes those in one process."""

    kind: str
    label: str

    def full(self, name: str) -> str:
        """``name`` ends with its unit, as _seconds, unless it counts things."""
        return f"einmal_{self.kind}_{name}"

    def labels(self, *others: str) -> tuple[str, ...]:
        return (self.label, *others)


def serve(setting: str, address: str, registry: CollectorRegistry) -> str:
    """Serve a registry until the process ends. ``address``: "host:port", or a port of 127.0.0.1; 0 is one that is free.
    ``setting``: where a user has written the address. Returns the address.

    Raises OptionError, and PipelineRefused where the address cannot be had.
    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise OptionError(f"{setting} is HOST:PORT or a port, not {address!r}\nhint: 0 is a port that is free")
    host = host.strip("[]") or "127.0.0.1"
    try:
        server, _ = start_http_server(int(port), host, registry)
    except OSError as error:
        raise PipelineRefused(
            f"metrics cannot be served at {address}: {error.strerror}", "name another port, or 0 for one that is free"
        ) from error
    return f"{host}:{server.server_port}"
