"""CPU time and resident memory of the processes of a local Spark application."""

from __future__ import annotations

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
