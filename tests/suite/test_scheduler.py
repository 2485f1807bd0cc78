"""Claims about which worker gets which tests."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.suite import scheduler
from tests.suite.scheduler import LongestFirst

DURATIONS = {"long.py": 50.0, "longer.py": 60.0, "short.py": 1.0, "spark.py": 10.0, "more spark.py": 20.0}
SPARK = ["spark.py", "more spark.py"]


@dataclass(eq=False)
class Worker:
    """What the scheduler sees of a worker."""

    id: str
    got: list[int] = field(default_factory=list)
    shutting_down: bool = False

    @property
    def gateway(self) -> Worker:
        return self

    def send_runtest_some(self, indices: list[int]) -> None:
        self.got += indices

    def shutdown(self) -> None:
        self.shutting_down = True


class Run:
    """A scheduler with two workers for Spark and one without."""

    def __init__(self, pytestconfig: pytest.Config, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("EINMAL_TEST_RUN", str(directory))
        monkeypatch.setattr(scheduler, "spark_workers", lambda *_: frozenset({"gw0", "gw1"}))
        (directory / "spark-files.json").write_text(json.dumps(SPARK))
        (directory / "durations.json").write_text(json.dumps(DURATIONS))
        self.tests = [f"{file}::test_{number}" for file in DURATIONS for number in range(3)]
        self.workers = [Worker(f"gw{index}") for index in range(3)]
        monkeypatch.setattr("xdist.scheduler.loadscope.parse_tx_spec_config", lambda _: self.workers)
        self._scheduler: Any = LongestFirst(pytestconfig, directory / "durations.json")
        for worker in self.workers:
            self._scheduler.add_node(worker)
        for worker in self.workers:
            self._scheduler.add_node_collection(worker, self.tests)
        self._scheduler.schedule()

    def files(self, worker: Worker) -> list[str]:
        return list(dict.fromkeys(self.tests[index].partition("::")[0] for index in worker.got))

    def complete(self, worker: Worker, count: int) -> None:
        for index in worker.got[:count]:
            self._scheduler.mark_test_complete(worker, index)


@pytest.fixture
def run(pytestconfig: pytest.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(pytestconfig, tmp_path, monkeypatch)


def test_workers_begin_with_the_longest_files_and_some_with_those_of_spark(run: Run) -> None:
    assert [run.files(each) for each in run.workers] == [["more spark.py"], ["spark.py"], ["longer.py"]]


def test_a_worker_gets_the_next_file_when_its_last_test_waits_for_it(run: Run) -> None:
    *_, plain = run.workers
    run.complete(plain, 1)
    assert run.files(plain) == ["longer.py"]
    run.complete(plain, 2)
    assert run.files(plain) == ["longer.py", "long.py"]


def test_without_files_of_spark_its_workers_take_others_and_nobody_runs_spark_without_being_one(run: Run) -> None:
    first, second, plain = run.workers
    run.complete(first, 2)
    assert run.files(first) == ["more spark.py", "long.py"]
    run.complete(plain, 2)
    assert run.files(plain) == ["longer.py", "short.py"]
    run.complete(second, 2)
    assert run.files(second) == ["spark.py"]
    assert second.shutting_down


def test_a_worker_that_may_take_none_of_the_files_that_remain_ends(
    pytestconfig: pytest.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DURATIONS, "third spark.py", 1.0)
    monkeypatch.setattr("tests.suite.test_scheduler.SPARK", [*SPARK, "third spark.py", "long.py", "short.py"])
    run = Run(pytestconfig, tmp_path, monkeypatch)
    *_, plain = run.workers
    run.complete(plain, 2)
    assert run.files(plain) == ["longer.py"]
    assert plain.shutting_down


@pytest.mark.parametrize(
    ("processors", "is_slow", "workers", "with_spark"),
    [(2, False, 6, 3), (2, True, 3, 2), (1, True, 2, 2), (4, True, 5, 4)],
)
def test_a_slow_machine_has_fewer_workers(processors: int, is_slow: bool, workers: int, with_spark: int) -> None:
    assert scheduler.workers_for(processors, is_slow=is_slow) == workers
    assert len(scheduler.spark_workers(workers, processors)) == with_spark
