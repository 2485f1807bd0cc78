"""The sink on brokers without KIP-890 part 2: every epoch and every partition is asked for. Drivers die elsewhere."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from einmal.client import TransactionDriver
from einmal.pipeline import events
from einmal.types import ProducerIdAndEpoch
from tests.spark.conftest import on_both_tv1_in_the_long_run
from tests.spark.pipelines import BATCH, Pipeline
from tests.spark.topics import create, fill, numbers
from tests.suite.shared import unique

pytestmark = pytest.mark.spark


def dies_once_another_has_written(written: Path, died: Path) -> Callable[[Any], Any]:
    """A function for mapInArrow: the first task whose sibling has written kills its process."""

    def body(batches: Any) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            if batch.num_rows and context.partitionId() == 1 and not died.exists():
                deadline = time.monotonic() + 300
                while not written.exists() and time.monotonic() < deadline:
                    time.sleep(0.01)
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    return body


@pytest.mark.long
@on_both_tv1_in_the_long_run
def test_every_transaction_has_an_epoch_of_its_own_and_a_batch_that_failed_half_written_another(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(bootstrap, str(tmp_path), unique("pipe"))
    create(bootstrap, pipeline.source_topic, pipeline.topic)
    fill(bootstrap, pipeline.source_topic, range(3 * BATCH))
    asked: list[tuple[ProducerIdAndEpoch | None, ProducerIdAndEpoch]] = []
    real = TransactionDriver.init_producer_id

    def noted(self: TransactionDriver, previous: ProducerIdAndEpoch | None = None) -> ProducerIdAndEpoch:
        answer = real(self, previous)
        asked.append((previous, answer))
        return answer

    monkeypatch.setattr(TransactionDriver, "init_producer_id", noted)
    heard: list[events.Event] = []
    written, died = tmp_path / "written", tmp_path / "died"

    def listen(event: events.Event) -> None:
        heard.append(event)
        if isinstance(event, events.PartitionWritten):
            written.touch()

    # Without keys there is no shuffle: the task that dies is one that would write. One per partition, so another does.
    body = dies_once_another_has_written(written, died)
    frame = pipeline.source(spark, minPartitions="1").select("value")
    pipeline.writer(spark, frame.mapInArrow(body, frame.schema)).listener(listen).start().awaitTermination()

    assert died.exists()
    ends = [event.committed for event in heard if isinstance(event, events.TransactionEnded)]
    assert ends.count(False) == 1
    assert numbers(bootstrap, pipeline.topic) == list(range(3 * BATCH))
    assert len(numbers(bootstrap, pipeline.topic, committed=False)) > 3 * BATCH
    identities = [identity for _, identity in asked]
    assert [previous for previous, _ in asked] == [None, *identities[:-1]]
    assert len(set(identities)) == len(identities) == len(ends)
