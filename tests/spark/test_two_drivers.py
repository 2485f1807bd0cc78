"""Two live drivers on one checkpoint: the first is suspended in a batch, the second finishes, the first is continued.

One program runs a pipeline for each case and is stopped once with SIGSTOP, its JVM too; the successors run while it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from einmal.spark import events
from tests.spark.conftest import NodeOf
from tests.spark.pipelines import BATCH, Pipeline
from tests.spark.test_driver_killed import POINTS
from tests.spark.topics import create, fill, numbers

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RECORDS = 3 * BATCH
_STOPPED_S = 400.0
_ENDED_S = 300.0
_REPOSITORY = Path(__file__).parents[2]

CASES = (
    ("einmal", "between-tasks"),
    ("einmal", "after-EndTxn"),
    ("apache", "between-tasks"),
    ("einmal-TV1", "between-tasks"),
)


@dataclass(frozen=True)
class Outcome:
    pipeline: Pipeline
    uncommitted: list[int]
    """What the first driver had written when it was suspended."""
    heard: list[events.Event]
    """By the successor's listener."""
    output: list[int]
    """When the successor had ended, and the first driver had not yet resumed."""
    end: str | None
    """How the first driver ended."""


Outcomes = Callable[[str, str], Outcome]


@pytest.fixture(scope="module")
def outcome_of(tmp_path_factory: pytest.TempPathFactory, node_of: NodeOf, spark: SparkSession) -> Outcomes:
    """What became of the two drivers of a case."""

    @cache
    def succeeded(broker: str) -> dict[tuple[str, str], Outcome]:
        cases = [case for case in CASES if case[0] == broker]
        return _succeeded(cases, tmp_path_factory.mktemp("suspended"), node_of, spark)

    return lambda kind, point: succeeded(kind)[kind, point]


def _succeeded(
    cases: list[tuple[str, str]], directory: Path, node_of: NodeOf, spark: SparkSession
) -> dict[tuple[str, str], Outcome]:
    """Suspends the first drivers of these cases, lets the second ones finish, and resumes the first ones."""
    pipelines: dict[tuple[str, str], Pipeline] = {}
    for kind, point in cases:
        pipeline = Pipeline(node_of(kind).bootstrap, str(directory), f"suspended-{kind}-{point}")
        create(pipeline.bootstrap, pipeline.source_topic, pipeline.topic)
        fill(pipeline.bootstrap, pipeline.source_topic, range(RECORDS))
        pipelines[kind, point] = pipeline
    plan, result = directory / "plan.json", directory / "result.json"
    plan.write_text(
        json.dumps(
            [
                {"pipeline": asdict(pipeline), "event": POINTS[point].event, "batch_id": POINTS[point].batch_id}
                for (_, point), pipeline in pipelines.items()
            ]
        )
    )
    with _suspended(plan, result) as process:
        successors = {}
        for case, pipeline in pipelines.items():
            uncommitted = numbers(pipeline.bootstrap, pipeline.topic, committed=False)
            heard: list[events.Event] = []
            query = pipeline.writer(spark).listener(heard.append).start()
            successors[case] = (pipeline, uncommitted, heard, query)
        succeeded = {}
        for case, (pipeline, uncommitted, heard, query) in successors.items():
            query.awaitTermination()
            succeeded[case] = (pipeline, uncommitted, heard, numbers(pipeline.bootstrap, pipeline.topic))
        os.killpg(process.pid, signal.SIGCONT)
        assert process.wait(_ENDED_S) == 0, plan.with_name("suspended.log").read_text()[-4000:]
    ends = json.loads(result.read_text())
    return {case: Outcome(*known, ends[known[0].name]) for case, known in succeeded.items()}


@contextlib.contextmanager
def _suspended(plan: Path, result: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The program, from when it has stopped itself; its whole group is ended at the end."""
    log = plan.with_name("suspended.log")
    with log.open("w") as output:
        command = [sys.executable, "-m", "tests.spark.programs.suspended", str(plan), str(result)]
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=_REPOSITORY, start_new_session=True
        )
    try:
        deadline = time.monotonic() + _STOPPED_S
        state = None
        while state is None and time.monotonic() < deadline:
            time.sleep(0.05)
            # Looked at, not taken: the process stays Popen's to wait for.
            state = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT)
        assert state is not None and state.si_code == os.CLD_STOPPED, log.read_text()[-4000:]
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(_ENDED_S)


@pytest.fixture
def outcome(outcome_of: Outcomes, kind: str, point: str) -> Outcome:
    return outcome_of(kind, point)


def _param(case: tuple[str, str]) -> Any:
    """Each broker takes a program of its own; ours is in every run."""
    return pytest.param(*case, marks=[] if case[0] == "einmal" else pytest.mark.long)


def at(*points: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("kind", "point"), [_param(case) for case in CASES if case[1] in points])


@at("between-tasks")
def test_a_driver_suspended_in_a_batch_wakes_up_fenced_and_nothing_of_its_writes_is_visible(outcome: Outcome) -> None:
    pipeline = outcome.pipeline
    assert outcome.uncommitted, "it had written something"
    assert [event.batch_id for event in outcome.heard if isinstance(event, events.BatchWritten)][0] == 1
    assert outcome.output == list(range(RECORDS))
    assert outcome.end is not None and outcome.end.startswith("PipelineFenced: "), outcome.end
    assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(RECORDS))
    assert len(numbers(pipeline.bootstrap, pipeline.topic, committed=False)) > RECORDS


@at("after-EndTxn")
def test_a_driver_suspended_after_end_txn_wakes_up_fenced_with_its_batch_in(outcome: Outcome) -> None:
    pipeline = outcome.pipeline
    assert events.BatchAlreadyIn(1) in outcome.heard
    assert outcome.output == list(range(RECORDS))
    assert outcome.end is not None and outcome.end.startswith("PipelineFenced: "), outcome.end
    assert numbers(pipeline.bootstrap, pipeline.topic, committed=False) == list(range(RECORDS))
