"""Drivers killed with -9, at every point of the protocol where it matters, and started again: both brokers, and TV1.

One program runs a pipeline for each point, holds them all there, and is killed; each test restarts one of them. Before
that it is stopped once with SIGSTOP, its JVM too: others take it for dead, and finish some of its pipelines.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from einmal.pipeline import events
from tests.spark.conftest import NodeOf
from tests.spark.killed_drivers import run_until_killed
from tests.spark.pipelines import BATCH, Pipeline, breaks_in_state, counted
from tests.spark.topics import create, fill, numbers, pairs

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RECORDS = 3 * BATCH


@dataclass(frozen=True)
class Point:
    """Where the driver of a pipeline dies."""

    event: str
    batch_id: int
    kind: str = "copy"
    starting: str = "earliest"
    guarantee: str = "exactly_once_v2"


POINTS = {
    "between-tasks": Point("PartitionWritten", 1),
    "before-EndTxn": Point("BatchWritten", 1),
    "after-EndTxn": Point("TransactionEnded", 1),
    "first-batch-from-latest": Point("BatchWritten", 0, starting="latest"),
    "state-before-EndTxn": Point("BatchWritten", 2, kind="random state"),
    "state-after-EndTxn": Point("TransactionEnded", 2, kind="random state"),
    "state-after-the-first-EndTxn": Point("TransactionEnded", 0, kind="random state"),
    "at-least-once": Point("BatchWritten", 1, guarantee="at_least_once"),
    "at-most-once-between-tasks": Point("PartitionWritten", 1, guarantee="at_most_once"),
    "at-most-once-when-written": Point("BatchWritten", 1, guarantee="at_most_once"),
}

DIES_ON = {
    "einmal": tuple(POINTS),
    "apache": ("before-EndTxn", "after-EndTxn", "first-batch-from-latest", "state-after-EndTxn"),
    "einmal-TV1": ("between-tasks", "after-EndTxn"),
    "apache-TV1": ("between-tasks", "after-EndTxn"),
}
"""Each pipeline more takes seconds; ours dies at every point."""

IN_EVERY_RUN = (
    ("einmal", "before-EndTxn"),
    ("einmal", "state-after-EndTxn"),
)
"""The others, and Apache Kafka, have programs of their own in the long run."""

SUSPENDED_ON = {
    "einmal": ("between-tasks", "after-EndTxn"),
    "apache": ("between-tasks",),
    "einmal-TV1": ("between-tasks",),
}
"""Points at which a driver was only taken for dead."""

SUSPENDED_IN_EVERY_RUN = (("einmal", "after-EndTxn"),)
"""Its successor finds what it would find of a dead one."""


@dataclass(frozen=True)
class Outcome:
    """Of two live drivers on one checkpoint: the first is suspended in a batch, the second finishes, the first is
    continued."""

    pipeline: Pipeline
    uncommitted: list[int]
    """What the first driver had written when it was suspended."""
    heard: list[events.Event]
    """By the successor's listener."""
    output: list[int]
    """When the successor had ended, and the first driver had not yet resumed."""
    end: str | None
    """How the first driver ended."""


@dataclass(frozen=True)
class Drivers:
    """What became of the drivers of one program, by broker and point."""

    dead: dict[tuple[str, str], Pipeline]
    outcomes: dict[tuple[str, str], Outcome]


Dead = Callable[[str, str], Pipeline]
DriversOf = Callable[[str, bool], Drivers]


@pytest.fixture(scope="session")
def drivers_of(tmp_path_factory: pytest.TempPathFactory, node_of: NodeOf, spark: SparkSession) -> DriversOf:
    """The drivers of a maker of brokers: those in every run, or the others."""

    @cache
    def ended(maker: str, in_every_run: bool) -> Drivers:
        dead = [
            (kind, name)
            for kind in DIES_ON
            for name in DIES_ON[kind]
            if kind.startswith(maker) and ((kind, name) in IN_EVERY_RUN) is in_every_run
        ]
        suspended = [
            (kind, name)
            for kind in SUSPENDED_ON
            for name in SUSPENDED_ON[kind]
            if kind.startswith(maker) and ((kind, name) in SUSPENDED_IN_EVERY_RUN) is in_every_run
        ]
        return _ended(dead, suspended, tmp_path_factory.mktemp("killed"), node_of, spark)

    return ended


@pytest.fixture(scope="session")
def dead(drivers_of: DriversOf) -> Dead:
    """The pipeline of a broker and a point, whose driver has been killed there."""
    return lambda kind, name: drivers_of(kind.split("-")[0], (kind, name) in IN_EVERY_RUN).dead[kind, name]


def _pipeline(kind: str, point: Point, name: str, directory: Path, node_of: NodeOf) -> Pipeline:
    """One whose source has records."""
    bootstrap = node_of(kind).bootstrap
    pipeline = Pipeline(
        bootstrap, str(directory), name, kind=point.kind, starting=point.starting, guarantee=point.guarantee
    )
    create(bootstrap, pipeline.source_topic, pipeline.topic)
    fill(bootstrap, pipeline.source_topic, range(RECORDS))
    return pipeline


def _ended(
    dead: list[tuple[str, str]],
    suspended: list[tuple[str, str]],
    directory: Path,
    node_of: NodeOf,
    spark: SparkSession,
) -> Drivers:
    killed = {(kind, name): _pipeline(kind, POINTS[name], f"{kind}-{name}", directory, node_of) for kind, name in dead}
    stopped = {
        (kind, name): _pipeline(kind, POINTS[name], f"suspended-{kind}-{name}", directory, node_of)
        for kind, name in suspended
    }
    succeeded: dict[tuple[str, str], tuple[Pipeline, list[int], list[events.Event], list[int]]] = {}

    def succeed() -> None:
        """The second drivers finish."""
        successors = {}
        for case, pipeline in stopped.items():
            uncommitted = numbers(pipeline.bootstrap, pipeline.topic, committed=False)
            heard: list[events.Event] = []
            query = pipeline.writer(spark).listener(heard.append).start()
            successors[case] = (pipeline, uncommitted, heard, query)
        for case, (pipeline, uncommitted, heard, query) in successors.items():
            query.awaitTermination()
            succeeded[case] = (pipeline, uncommitted, heard, numbers(pipeline.bootstrap, pipeline.topic))

    def points(pipelines: dict[tuple[str, str], Pipeline]) -> list[tuple[Pipeline, str, int]]:
        return [(each, POINTS[name].event, POINTS[name].batch_id) for (_, name), each in pipelines.items()]

    run_until_killed(directory, points(killed), points(stopped), succeed)
    ends = json.loads((directory / "ends.json").read_text())
    return Drivers(killed, {case: Outcome(*known, ends[known[0].name]) for case, known in succeeded.items()})


def long_pair(pair: tuple[str, str]) -> Any:
    return pytest.param(*pair, marks=pytest.mark.long)


def each_broker(*points: str) -> pytest.MarkDecorator:
    """The brokers on which a pipeline has died at these points, with the points."""
    pairs = [(kind, point) for kind in DIES_ON for point in points if point in DIES_ON[kind]]
    return pytest.mark.parametrize(
        ("kind", "point"), [pair if pair in IN_EVERY_RUN else long_pair(pair) for pair in pairs]
    )


def restart(pipeline: Pipeline, spark: SparkSession) -> list[events.Event]:
    """Run the pipeline until nothing is left; what its listener heard."""
    heard: list[events.Event] = []
    pipeline.writer(spark).listener(heard.append).start().awaitTermination()
    return heard


def written(heard: list[events.Event]) -> list[int]:
    return [event.batch_id for event in heard if isinstance(event, events.BatchWritten)]


@each_broker("between-tasks", "before-EndTxn")
def test_a_batch_whose_driver_died_before_end_txn_is_aborted_and_written_again(
    spark: SparkSession, dead: Dead, kind: str, point: str
) -> None:
    pipeline = dead(kind, point)
    before = numbers(pipeline.bootstrap, pipeline.topic, committed=False)
    assert before, "the batch that died had written something"
    assert written(restart(pipeline, spark))[0] == 1
    assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(RECORDS))
    assert len(numbers(pipeline.bootstrap, pipeline.topic, committed=False)) > RECORDS


@each_broker("after-EndTxn")
def test_a_batch_whose_driver_died_after_end_txn_is_already_in(
    spark: SparkSession, dead: Dead, kind: str, point: str
) -> None:
    pipeline = dead(kind, point)
    assert not (pipeline.checkpoint / "commits" / "1").exists()
    heard = restart(pipeline, spark)
    assert events.BatchAlreadyIn(1) in heard
    assert 1 not in written(heard)
    assert numbers(pipeline.bootstrap, pipeline.topic, committed=False) == list(range(RECORDS))


@each_broker("first-batch-from-latest")
def test_a_crash_in_batch_0_does_not_move_the_latest_offset(
    spark: SparkSession, dead: Dead, kind: str, point: str
) -> None:
    pipeline = dead(kind, point)
    fill(pipeline.bootstrap, pipeline.source_topic, range(RECORDS, RECORDS + 12))
    restart(pipeline, spark)
    assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(RECORDS, RECORDS + 12))


@each_broker("state-before-EndTxn", "state-after-EndTxn", "state-after-the-first-EndTxn")
def test_state_and_committed_output_never_disagree(spark: SparkSession, dead: Dead, kind: str, point: str) -> None:
    pipeline = dead(kind, point)
    heard = restart(pipeline, spark)
    assert not any(isinstance(event, events.BatchAlreadyIn) for event in heard), "a committed batch never runs again"
    outputs = pairs(pipeline.bootstrap, pipeline.topic)
    assert breaks_in_state(outputs) == []
    assert counted(outputs) == RECORDS


@each_broker("at-least-once")
def test_at_least_once_repeats_the_batch_whose_driver_died(
    spark: SparkSession, dead: Dead, kind: str, point: str
) -> None:
    pipeline = dead(kind, point)
    restart(pipeline, spark)
    output = numbers(pipeline.bootstrap, pipeline.topic)
    assert sorted(set(output)) == list(range(RECORDS))
    assert len(output) >= RECORDS + BATCH


@each_broker("at-most-once-between-tasks", "at-most-once-when-written")
def test_at_most_once_never_writes_the_batch_again_whose_driver_died(
    spark: SparkSession, dead: Dead, kind: str, point: str
) -> None:
    pipeline = dead(kind, point)
    before = numbers(pipeline.bootstrap, pipeline.topic)
    assert len(before) > (0 if point == "at-most-once-between-tasks" else BATCH - 1), "the batch had written something"
    heard = restart(pipeline, spark)
    assert events.BatchSkipped(1) in heard
    assert 1 not in written(heard)
    output = numbers(pipeline.bootstrap, pipeline.topic)
    assert len(output) == len(set(output)), "nothing is doubled"
    rest = [number for number in range(RECORDS) if number in output and number not in before]
    assert len(output) == len(before) + len(rest)
    assert len(rest) == RECORDS - BATCH, "nothing but the batch that was begun is lost"


# --- two live drivers on one checkpoint -------------------------------------------------------------------------------


def suspended_at(point: str) -> pytest.MarkDecorator:
    """The brokers on which a driver was suspended at this point."""
    kinds = [kind for kind in SUSPENDED_ON if point in SUSPENDED_ON[kind]]
    return pytest.mark.parametrize(
        "outcome",
        [
            pytest.param((kind, point), marks=[] if (kind, point) in SUSPENDED_IN_EVERY_RUN else pytest.mark.long)
            for kind in kinds
        ],
        indirect=True,
        ids=kinds,
    )


@pytest.fixture
def outcome(drivers_of: DriversOf, request: pytest.FixtureRequest) -> Outcome:
    kind, _ = request.param
    return drivers_of(kind.split("-")[0], request.param in SUSPENDED_IN_EVERY_RUN).outcomes[request.param]


@suspended_at("between-tasks")
def test_a_driver_suspended_in_a_batch_wakes_up_fenced_and_nothing_of_its_writes_is_visible(outcome: Outcome) -> None:
    pipeline = outcome.pipeline
    assert outcome.uncommitted, "it had written something"
    assert [event.batch_id for event in outcome.heard if isinstance(event, events.BatchWritten)][0] == 1
    assert outcome.output == list(range(RECORDS))
    assert outcome.end is not None and outcome.end.startswith("PipelineFenced: "), outcome.end
    assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(RECORDS))
    assert len(numbers(pipeline.bootstrap, pipeline.topic, committed=False)) > RECORDS


@suspended_at("after-EndTxn")
def test_a_driver_suspended_after_end_txn_wakes_up_fenced_with_its_batch_in(outcome: Outcome) -> None:
    pipeline = outcome.pipeline
    assert events.BatchAlreadyIn(1) in outcome.heard
    assert outcome.output == list(range(RECORDS))
    assert outcome.end is not None and outcome.end.startswith("PipelineFenced: "), outcome.end
    assert numbers(pipeline.bootstrap, pipeline.topic, committed=False) == list(range(RECORDS))
