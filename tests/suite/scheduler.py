"""Which worker runs which tests: file by file, the longest first, and those with a Spark session on few of the workers.

Many tests wait for processes, so there are more workers than processors. A Spark session is another matter: it is a JVM
with many threads, and each worker that has one warms up its own. So one worker more than there are processors begin
with the files whose tests use the session (fixture ``spark``), and the others take none of them.

On a slow machine tests compute more than they wait, and Spark gives up on a process that needs ten seconds to start: so
there are fewer workers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.suite.durations import Durations, file_of
from tests.suite.run_directory import of_this_run

_WORKERS_PER_PROCESSOR: Final = 3
_SPARK_FILES: Final = "spark-files.json"


def publish_spark_files(items: Iterable[pytest.Item]) -> None:
    """The process that schedules collects nothing: one that does reports which files use the session."""
    files = sorted({file_of(each.nodeid) for each in items if isinstance(each, pytest.Function) and _has_session(each)})
    path = of_this_run() / _SPARK_FILES
    written = path.with_suffix(f".{os.getpid()}")
    written.write_text(json.dumps(files))
    written.replace(path)


def _has_session(test: pytest.Function) -> bool:
    return "spark" in test.fixturenames and test.get_closest_marker("spark") is not None


def workers_for(processors: int, *, is_slow: bool) -> int:
    return processors + 1 if is_slow else _WORKERS_PER_PROCESSOR * processors


def spark_workers(workers: int, processors: int) -> frozenset[str]:
    """One more than processors, but one of at least three workers takes the other files."""
    return frozenset(f"gw{index}" for index in range(min(1 + processors, max(2, workers - 1))))


class LongestFirst(LoadScopeScheduling):  # type: ignore[misc]
    """The scheduler of all runs with several workers."""

    def __init__(self, config: pytest.Config, durations: Path) -> None:
        super().__init__(config)
        self._durations = Durations.load(durations)
        self._spark_files: frozenset[str] = frozenset()
        self._spark_workers = spark_workers(config.getoption("numprocesses", None) or 1, os.cpu_count() or 1)

    def _split_scope(self, nodeid: str) -> str:
        return file_of(nodeid)

    def schedule(self) -> None:
        if self.collection is None:
            path = of_this_run() / _SPARK_FILES
            self._spark_files = frozenset(json.loads(path.read_text())) if path.exists() else frozenset()
        super().schedule()

    def _assign_work_unit(self, node: WorkerController) -> None:
        file = self._best_for(node)
        if file is None:
            node.shutdown()
            return
        self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        # A worker starts a test when it knows the next one: with one left, it waits. With more left, a long file
        # should rather wait for another worker.
        if node.shutting_down or self._pending_of(self.assigned_work[node]) > 1:
            return
        if not self.workqueue:
            node.shutdown()
            return
        self._assign_work_unit(node)

    def _best_for(self, node: WorkerController) -> str | None:
        """The longest of the files that this worker may take; those of Spark before others."""
        has_spark = node.gateway.id in self._spark_workers
        candidates = [file for file in self.workqueue if has_spark or file not in self._spark_files]
        return max(candidates, key=lambda file: (file in self._spark_files, self._durations.of(file)), default=None)
