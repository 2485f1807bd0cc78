"""CPU time and resident memory of measured processes: of brokers on this machine, and of a local Spark application."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import psutil

_JVM = "java"


@dataclass(frozen=True, slots=True)
class SparkUsage:
    """``cpu_s``: of all processes since they started, and of their children that have ended. ``driver_bytes``: of this
    process and the JVM, now. ``workers_bytes``: of the Python workers, now; pages that they share count in each."""

    cpu_s: float
    driver_bytes: int
    workers_bytes: int


def spark_usage() -> SparkUsage:
    """Return the usage of this process, the JVM below it (driver and local executor), and the Python workers below the
    JVM. Other children of this process, such as a broker, do not count."""
    driver = psutil.Process()
    jvms = [child for child in driver.children() if child.name() == _JVM]
    workers = [worker for jvm in jvms for worker in jvm.children(recursive=True)]
    driver_s, driver_bytes = _totals([driver], with_ended_children=False)
    jvm_s, jvm_bytes = _totals(jvms)
    workers_s, workers_bytes = _totals(workers)
    return SparkUsage(driver_s + jvm_s + workers_s, driver_bytes + jvm_bytes, workers_bytes)


def listening_processes(addresses: Iterable[tuple[str, int]]) -> list[psutil.Process]:
    """Return the processes that listen at host and port. Empty unless all of them are on this machine and visible."""
    own = {address.address for interface in psutil.net_if_addrs().values() for address in interface}
    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        return []
    listening = {
        connection.laddr.port: connection.pid for connection in connections if connection.status == psutil.CONN_LISTEN
    }
    pids = [listening.get(port) if socket.getaddrinfo(host, port)[0][4][0] in own else None for host, port in addresses]
    return [] if None in pids else [psutil.Process(pid) for pid in dict.fromkeys(pids)]


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """Return the CPU time of the processes since they started, in user and kernel mode."""
    return _totals(processes)[0]


def _totals(processes: Iterable[psutil.Process], *, with_ended_children: bool = True) -> tuple[float, int]:
    """CPU seconds and resident bytes."""
    cpu_s, resident_bytes = 0.0, 0
    for process in processes:
        # It may have ended meanwhile; its time is then in its parent's.
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            cpu_s += times.user + times.system
            if with_ended_children:
                cpu_s += times.children_user + times.children_system
            resident_bytes += process.memory_info().rss
    return cpu_s, resident_bytes
