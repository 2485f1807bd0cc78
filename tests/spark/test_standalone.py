"""The pipelines on a Spark cluster of processes, whose executors, workers and Python workers are killed in mid-batch.

One driver runs them one after the other, with speculation, adaptive execution and dynamic allocation. Each test looks
at what one pipeline has left; Spark's event log shows that what was to happen really happened. With
``EINMAL_STANDALONE=all`` (``make standalone``) every pipeline meets every fault on both brokers, and a driver with
Spark's defaults runs them all.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import pytest

from einmal.chaos.processes import kill_session, launch
from einmal.client import Admin
from tests.spark import event_log
from tests.spark.conftest import NodeOf
from tests.spark.event_log import (
    COPY_STARTED,
    EXECUTOR_ADDED,
    EXECUTOR_IDLE,
    EXECUTOR_LOST,
    FETCH_FAILED,
    PLAN_ADAPTED,
    STAGE_AGAIN,
    TASK_FAILED,
)
from tests.spark.pipelines import breaks_in_state, counted
from tests.spark.programs.on_cluster import DISTINCT, FIRST_S, PIPELINES, STATE_STRAGGLES, WRITER_STRAGGLES, Harm, Run
from tests.spark.standalone import StandaloneCluster
from tests.spark.topics import create, fill, records

pytestmark = [pytest.mark.spark, pytest.mark.long]

RECORDS: Final = 96
_START_S: Final = 120.0
_RUN_S: Final = 300.0
_REPOSITORY: Final = Path(__file__).parents[2]

EXECUTOR_WRITING: Final = ("the writer's executor is killed", "granted")
EXECUTOR_REPORTED: Final = ("the writer's executor is killed", "reported")
SHUFFLE_FILES: Final = ("the other executors are killed", "claim")
PYTHON_WRITING: Final = ("the writer is killed", "granted")
PYTHON_REPORTED: Final = ("the writer is killed", "reported")
WORKER: Final = ("the writer's worker is killed", "granted")
STRAGGLER: Final = (WRITER_STRAGGLES, "granted")
STATE_STRAGGLER: Final = (STATE_STRAGGLES, "begun")


@dataclass(frozen=True)
class Case:
    """Faults by batch. Batch 0 is empty; windows are closed from batch 4 on. ``facts``: what Spark must have
    logged."""

    pipeline: str
    harms: dict[int, tuple[str, str]]
    facts: tuple[str, ...]
    broker: str = "einmal"


_ELASTIC: Final = {
    "spark.sql.adaptive.enabled": "true",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "3s",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "5s",
    "spark.dynamicAllocation.executorIdleTimeout": "5s",
    "spark.dynamicAllocation.minExecutors": "2",
    "spark.dynamicAllocation.maxExecutors": "3",
    "spark.cores.max": "3",
}


@dataclass(frozen=True)
class Drive:
    """The cases that one driver runs, one after the other."""

    cases: dict[str, Case]
    settings: dict[str, str]


def _every_harm(pipeline: str, broker: str) -> dict[str, Case]:
    first = (EXECUTOR_WRITING, SHUFFLE_FILES, PYTHON_REPORTED, STRAGGLER)
    second = (PYTHON_WRITING, EXECUTOR_REPORTED, STATE_STRAGGLER if pipeline == "random_state" else STRAGGLER, WORKER)
    # Windows are closed in two batches.
    per_run = 2 if pipeline == "windows" else 4
    begin = 4 if pipeline == "windows" else 1
    cases: dict[str, Case] = {}
    for harms in (first, second):
        for start in range(0, len(harms), per_run):
            chosen = dict(enumerate(harms[start : start + per_run], begin))
            cases[f"{pipeline}-{broker}-{len(cases)}"] = Case(pipeline, chosen, (), broker)
    return cases


DRIVES: Final = {
    "": Drive(
        {
            "words": Case(
                "words",
                {1: PYTHON_WRITING, 2: SHUFFLE_FILES, 3: STRAGGLER},
                (TASK_FAILED, EXECUTOR_LOST, COPY_STARTED, PLAN_ADAPTED),
            ),
            "state-apache": Case(
                "random_state",
                {2: SHUFFLE_FILES, 3: EXECUTOR_REPORTED, 4: STATE_STRAGGLER},
                (EXECUTOR_LOST, COPY_STARTED),
                "apache",
            ),
            "pairs": Case("pairs", {2: EXECUTOR_WRITING}, (EXECUTOR_LOST,)),
            # The last, for there is one worker less afterwards.
            "windows": Case("windows", {4: WORKER}, (EXECUTOR_LOST,)),
        },
        _ELASTIC,
    )
}
if os.environ.get("EINMAL_STANDALONE") == "all":
    DRIVES["defaults"] = Drive(
        {
            f"{pipeline}-defaults": Case(pipeline, {4: SHUFFLE_FILES, 5: EXECUTOR_WRITING}, ())
            if pipeline == "windows"
            else Case(pipeline, {2: SHUFFLE_FILES, 3: EXECUTOR_WRITING}, ())
            for pipeline in PIPELINES
        },
        {},
    )
    for _pipeline in PIPELINES:
        for _broker in ("einmal", "apache"):
            DRIVES[f"{_pipeline}-{_broker}"] = Drive(_every_harm(_pipeline, _broker), _ELASTIC)
CASES: Final = {name: case for drive in DRIVES.values() for name, case in drive.cases.items()}


@dataclass(frozen=True)
class Result:
    """What became of a case: its run, what its driver wrote down, and what Spark logged meanwhile."""

    run: Run
    end: str | None
    heard: tuple[str, ...]
    done: int
    facts: Counter[str]


Results = dict[str, Result]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, node_of: NodeOf, cluster: StandaloneCluster) -> Results:
    found: Results = {}
    for name, drive in DRIVES.items():
        directory = tmp_path_factory.mktemp(f"standalone-{name}")
        found |= _drive(cluster, directory, _runs(drive.cases, node_of, directory), drive.settings)
    return found


@pytest.fixture
def result(request: pytest.FixtureRequest, results: Results) -> Result:
    """Of the case that a test is about."""
    if request.param not in results:
        pytest.skip("Apache Kafka is not available")
    return results[request.param]


def _runs(cases: dict[str, Case], node_of: NodeOf, directory: Path) -> list[Run]:
    runs = []
    for name, case in cases.items():
        try:
            bootstrap = node_of(case.broker).bootstrap
        except pytest.skip.Exception:
            continue
        harms = tuple(Harm(what, batch_id, at) for batch_id, (what, at) in case.harms.items())
        run = Run(bootstrap, str(directory), name, case.pipeline, harms)
        create(bootstrap, run.source_topic, run.topic, partitions=4)
        fill(bootstrap, run.source_topic, range(RECORDS))
        runs.append(run)
    return runs


def _drive(cluster: StandaloneCluster, directory: Path, runs: list[Run], settings: dict[str, str]) -> Results:
    """Let a driver of its own run them."""
    for number in range(2):
        cluster.ensure_worker(f"worker-{number}")
    log_directory = directory / "events"
    log_directory.mkdir()
    places = {"spark.local.dir": str(directory / "driver-local"), "spark.eventLog.dir": log_directory.as_uri()}
    plan = {
        "master": cluster.master,
        "workers": [pid for name, pid in cluster.pids.items() if name != "master"],
        "config": event_log.SETTINGS | settings | places,
        "executors": 2,
        "runs": [asdict(run) for run in runs],
    }
    plan_path, result_path, log_path = (directory / name for name in ("plan.json", "result.json", "driver.log"))
    plan_path.write_text(json.dumps(plan))
    command = [sys.executable, "-m", "tests.spark.programs.on_cluster", str(plan_path), str(result_path)]
    process = launch(command, log_path, cwd=_REPOSITORY)
    try:
        status = process.wait(_START_S + _RUN_S * len(runs))
    finally:
        kill_session(process.pid)
    assert status == 0, log_path.read_text()[-4000:]
    facts = event_log.facts(log_directory)
    told = {each["name"]: each for each in json.loads(result_path.read_text())}
    return {
        run.name: Result(
            run, told[run.name]["end"], tuple(told[run.name]["heard"]), len(told[run.name]["done"]), facts[run.name]
        )
        for run in runs
    }


def outputs(run: Run) -> list[tuple[str, str]]:
    """(key, value) of what a read_committed reader sees, in order per partition."""
    return [
        ((record.key or b"").decode(), (record.value or b"").decode())
        for _, record in records(run.bootstrap, run.topic)
    ]


def expected(run: Run) -> Counter[str]:
    """The multiset that an undisturbed run would have written."""
    numbers = range(RECORDS)
    match run.pipeline:
        case "words":
            return Counter(f"{sign}{number}" for number in numbers for sign in ("", "-"))
        case "pairs":
            return Counter(f"{number}-{number + 10}" for number in numbers if number + 10 < RECORDS)
        case "distinct":
            return Counter(str(number) for number in range(DISTINCT))
        case "windows":
            closed = _watermark_of_the_last_batch(run)
            counts = Counter((number % 5, FIRST_S + number // 20 * 20) for number in numbers)
            return Counter(f"k{key}:{start}:{count}" for (key, start), count in counts.items() if start + 20 <= closed)
    raise AssertionError(run.pipeline)


def _watermark_of_the_last_batch(run: Run) -> float:
    """In seconds: up to where the last batch closed windows, from Spark's checkpoint."""
    commits = Path(run.directory, run.name, "commits")
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    return float(json.loads((commits / str(last - 1)).read_text().split("\n")[1])["nextBatchWatermarkMs"]) / 1000


each_case = pytest.mark.parametrize("result", list(CASES), indirect=True)


@each_case
def test_what_was_done_to_a_pipeline_happened_and_it_came_to_its_end(result: Result) -> None:
    case = CASES[result.run.name]
    assert result.end is None
    assert result.done == len(case.harms)
    assert [fact for fact in case.facts if not result.facts[fact]] == [], result.facts


@each_case
def test_the_output_is_that_of_an_undisturbed_run(result: Result) -> None:
    written = outputs(result.run)
    if result.run.pipeline == "random_state":
        # There is no other run to compare with: state and output continue each other, and account for every record.
        assert breaks_in_state(written) == []
        assert counted(written) == RECORDS
    else:
        assert Counter(value for _, value in written) == expected(result.run)
        assert written, "something was written"


@each_case
def test_the_source_positions_are_those_of_the_output(result: Result) -> None:
    with Admin({"bootstrap.servers": result.run.bootstrap}) as admin:
        positions = admin.list_group_offsets(result.run.name)
    assert sum(position.offset for position in positions.values()) == RECORDS


@pytest.mark.parametrize("result", ["words"], indirect=True)
def test_a_speculative_copy_of_a_writer_waits_and_no_batch_is_written_again(result: Result) -> None:
    assert result.heard.count("BatchWritten(3)") == result.heard.count("TransactionEnded(3)") == 1


def test_stages_ran_again_whose_shuffle_files_were_gone(results: Results) -> None:
    facts = _all(results)
    assert facts[FETCH_FAILED]
    assert facts[STAGE_AGAIN]


def test_executors_came_when_there_was_work_and_went_when_there_was_none(results: Results) -> None:
    facts = _all(results)
    assert facts[EXECUTOR_ADDED] > facts[EXECUTOR_LOST]
    assert facts[EXECUTOR_IDLE]


def _all(results: Results) -> Counter[str]:
    return sum((result.facts for result in results.values()), Counter())
