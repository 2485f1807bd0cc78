"""Drivers of ``format("einmal")`` killed with -9 at every moment of a batch, and started again; read by librdkafka."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession

from tests.interop.apache_kafka import in_the_long_run
from tests.spark.conftest import KINDS, NodeOf, long
from tests.spark.pipelines import BATCH, Pipeline, format_writer
from tests.spark.topics import create, fill, numbers

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RECORDS = 3 * BATCH
MOMENTS = {
    "acquired": "the name is acquired, nothing is planned",
    "planned": "the batch is planned, and not opened",
    "claiming": "tasks have the batch, and nothing is written",
    "reported": "a task has written",
    "committing": "Spark commits, and the keeper does not know it",
    "written": "everything is written, before EndTxn",
    "committed": "after EndTxn, before its answer",
    "answered": "after the answer, before Spark's commit file",
}
AFTER_END_TXN = ("committed", "answered")
DRIVERS = (("reported", "committed"), ("acquired", "planned", "claiming", "committing", "written", "answered"))
"""The queries of each. Those of the first died in the transaction and after it, and are in every run."""
_HOOKS = Path(__file__).parent / "programs" / "hold_writers"
_REPOSITORY = Path(__file__).parents[2]
_KILLED_S = 400.0


def output(bootstrap: str, topic: str) -> list[int]:
    """The committed values, sorted, as another client reads them."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "output",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    with contextlib.closing(consumer):
        partitions = consumer.list_topics(topic, 30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
        found, ends = [], 0
        while ends < len(partitions):
            message = consumer.poll(30)
            assert message is not None, "no answer"
            if message.error():
                ends += 1
                continue
            found.append(int(message.value() or b""))
    return sorted(found)


Killed = Callable[[str, str], Pipeline]


@pytest.fixture(scope="session")
def killed(tmp_path_factory: pytest.TempPathFactory, node_of: NodeOf, spark: SparkSession) -> Killed:
    """The pipeline on a broker whose driver was killed at a moment."""
    ended: dict[tuple[str, str], Pipeline] = {}

    def at(kind: str, moment: str) -> Pipeline:
        if (kind, moment) not in ended:
            together = next(moments for moments in DRIVERS if moment in moments)
            found = _killed(kind, together, tmp_path_factory.mktemp("format-killed"), node_of(kind).bootstrap)
            ended.update({(kind, each): pipeline for each, pipeline in found.items()})
        return ended[kind, moment]

    return at


def _killed(kind: str, moments: tuple[str, ...], directory: Path, bootstrap: str) -> dict[str, Pipeline]:
    """With one driver for these moments."""
    pipelines = {}
    for moment in moments:
        pipeline = Pipeline(bootstrap, str(directory), f"format-{kind}-{moment}")
        create(bootstrap, pipeline.source_topic, pipeline.topic)
        fill(bootstrap, pipeline.source_topic, range(RECORDS))
        pipelines[moment] = pipeline
    holds = directory / "holds"
    holds.mkdir()
    for moment, pipeline in pipelines.items():
        # The name is acquired before the first batch.
        (holds / pipeline.name).write_text(f"{moment} {-1 if moment == 'acquired' else 2}")
    plan, log = directory / "plan.json", directory / "driver.log"
    plan.write_text(json.dumps([asdict(each) for each in pipelines.values()]))
    path = os.pathsep.join(filter(None, (str(_HOOKS), os.environ.get("PYTHONPATH"))))
    with log.open("w") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.programs.format_driver", str(plan)],
            stdout=written,
            stderr=subprocess.STDOUT,
            cwd=_REPOSITORY,
            env={**os.environ, "PYTHONPATH": path, "EINMAL_HOLD": str(holds)},
            start_new_session=True,
        )
        try:
            status = process.wait(_KILLED_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(_KILLED_S)
    assert status == -signal.SIGKILL, log.read_text()[-4000:]
    return pipelines


@pytest.mark.parametrize("kind", [*map(in_the_long_run, KINDS)])
@pytest.mark.parametrize("moment", [*DRIVERS[0], *map(long, DRIVERS[1])])
def test_a_killed_driver_loses_and_doubles_nothing(spark: SparkSession, killed: Killed, kind: str, moment: str) -> None:
    pipeline = killed(kind, moment)
    before = output(pipeline.bootstrap, pipeline.topic)
    was_in = moment in AFTER_END_TXN
    assert len(before) == (0 if moment == "acquired" else 2 * BATCH if was_in else BATCH), before
    assert not (pipeline.checkpoint / "commits" / "2").exists()
    format_writer(pipeline, spark).start().awaitTermination()
    assert output(pipeline.bootstrap, pipeline.topic) == list(range(RECORDS))
    if was_in:
        assert numbers(pipeline.bootstrap, pipeline.topic, committed=False) == list(range(RECORDS)), "written once"
