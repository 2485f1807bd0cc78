"""What the processes of a local Spark application use: CPU time, and resident memory."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import psutil

_JVM = "java"


@dataclass(frozen=True, slots=True)
class Usage:
    """``cpu_s``: of everything that was ever part of it. Memory is that of now; pages that workers share count in each
    of them."""

    cpu_s: float
    driver_bytes: int
    workers_bytes: int


def usage() -> Usage:
    """Of this process with its JVM (the driver, and the local executor), and of the Python workers below the JVM. Other
    children, as a broker, do not count."""
    this = psutil.Process()
    machines = [each for each in this.children() if each.name() == _JVM]
    workers = [worker for each in machines for worker in each.children(recursive=True)]
    own, driver_bytes = _sums([this], with_ended=False)
    of_jvm, jvm_bytes = _sums(machines)
    of_workers, workers_bytes = _sums(workers)
    return Usage(own + of_jvm + of_workers, driver_bytes + jvm_bytes, workers_bytes)


def _sums(processes: Iterable[psutil.Process], *, with_ended: bool = True) -> tuple[float, int]:
    """CPU seconds, with those of children that have ended, and bytes."""
    seconds, size = 0.0, 0
    for each in processes:
        # It may have ended meanwhile; its parent has its time then.
        with suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            seconds += times.user + times.system
            if with_ended:
                seconds += times.children_user + times.children_system
            size += each.memory_info().rss
    return seconds, size
