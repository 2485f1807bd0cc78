"""Samples of this process: requests, connections, the broker's thread, and what Linux knows of it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Final

import einmal
from einmal.broker.monitoring.page import Page, labels
from einmal.broker.monitoring.parts import Monitored
from einmal.wire.messages import api_name

_QUANTILES: Final = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
_IDLE_SECONDS: Final = 1.0
"""The shortest time over which the idle part is measured."""


def add_requests(page: Page, node: Monitored) -> None:
    for (api_key, version), count in node.requests.by_version():
        of = labels(request=api_name(api_key), version=version)
        page.add("kafka_network_requestmetrics_requests_total", count, of)
    times = "kafka_network_requestmetrics_totaltimems"
    for api_key, quantile, milliseconds in node.requests.quantiles(_QUANTILES):
        page.add(times, milliseconds, labels(request=api_name(api_key), quantile=quantile))
    for api_key, count, total_ms in node.requests.by_api():
        of = labels(request=api_name(api_key))
        page.add(times, total_ms, of, suffix="_sum")
        page.add(times, count, of, suffix="_count")
    for listener, server in node.servers.items():
        of = labels(listener=listener, networkProcessor=0)
        page.add("kafka_server_socket_server_metrics_connection_count", len(server.connections), of)


class LoopTime:
    """The idle part of the thread that calls, between two looks."""

    def __init__(self) -> None:
        self._wall, self._busy = time.monotonic(), time.thread_time()
        self._idle = 1.0

    def add(self, page: Page) -> None:
        wall, busy = time.monotonic(), time.thread_time()
        if wall - self._wall >= _IDLE_SECONDS:
            self._idle = min(1.0, max(0.0, 1 - (busy - self._busy) / (wall - self._wall)))
            self._wall, self._busy = wall, busy
        # One thread does the work of Apache Kafka's network threads and of those for requests.
        page.add("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", self._idle)
        page.add("kafka_network_socketserver_networkprocessoravgidle_percent", self._idle, labels(networkProcessor=0))


def add_process(page: Page) -> None:
    """Elsewhere than on Linux only the processor time is known."""
    page.add("einmal_build_info", 1, labels(version=einmal.__version__))
    times = os.times()
    page.add("process_cpu_seconds_total", times.user + times.system)
    try:
        stat = _read("stat").rpartition(")")[2].split()
        limits = _read("limits")
        disk = _numbers(_read("io"))
        descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        booted = next(int(line.split()[1]) for line in _read("../stat").splitlines() if line.startswith("btime "))
    except OSError:
        return
    # From the third field of proc(5) on.
    started_ticks, virtual_bytes, resident_pages = int(stat[19]), int(stat[20]), int(stat[21])
    page.add("process_virtual_memory_bytes", virtual_bytes)
    page.add("process_resident_memory_bytes", resident_pages * os.sysconf("SC_PAGE_SIZE"))
    page.add("process_start_time_seconds", booted + started_ticks / os.sysconf("SC_CLK_TCK"))
    page.add("process_open_fds", descriptors)
    most = next(line.split()[3] for line in limits.splitlines() if line.startswith("Max open files"))
    page.add("process_max_fds", float("inf") if most == "unlimited" else int(most))
    page.add("kafka_server_kafkaserver_linux_disk_read_bytes", disk.get("read_bytes", 0))
    page.add("kafka_server_kafkaserver_linux_disk_write_bytes", disk.get("write_bytes", 0))


def _read(name: str) -> str:
    with open(f"/proc/self/{name}", encoding="utf-8") as file:  # noqa: PTH123
        return file.read()


def _numbers(text: str) -> Mapping[str, int]:
    pairs = (line.split(": ") for line in text.splitlines())
    return {name: int(value) for name, value in pairs}
