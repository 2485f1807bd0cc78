"""One batch of ``format("einmal")`` behind a proxy: its workers and its driver share one transaction."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from einmal.chaos.proxy.server import KafkaProxy
from einmal.client import Consumer
from einmal.trace.recorder import ExchangeRecorder
from einmal.trace.story import story
from einmal.trace.transactions import LearntOutcome, transactions
from tests.spark.conftest import on_both_in_the_long_run
from tests.spark.pipelines import BATCH, Pipeline, format_writer
from tests.spark.topics import create, fill
from tests.suite.patience import patient
from tests.suite.shared import unique

PATIENCE_MS = round(patient(1) * 1000)

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.long
@on_both_in_the_long_run
def test_a_batch_is_one_transaction_of_workers_and_driver(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    recorder = ExchangeRecorder()
    with KafkaProxy(bootstrap, observer=recorder) as proxy:
        pipeline = Pipeline(proxy.bootstrap_servers, str(tmp_path), unique("traced"))
        create(bootstrap, pipeline.source_topic, pipeline.topic, partitions=2)
        fill(bootstrap, pipeline.source_topic, range(BATCH))
        format_writer(pipeline, spark).start().awaitTermination()
        with Consumer(
            bootstrap_servers=proxy.bootstrap_servers, client_id="reader", isolation_level="read_committed"
        ) as reader:
            reader.assign([(pipeline.topic, each) for each in range(2)])
            reader.seek_to_beginning()
            read = 0
            while read < BATCH:
                read += len(reader.poll(timeout_ms=PATIENCE_MS))
        exchanges = recorder.exchanges()
    batches = [each for each in transactions(exchanges) if pipeline.topic in each.topics]
    assert [each.outcome for each in batches] == [LearntOutcome.COMMITTED]
    diagram = story(batches[0], exchanges)
    written = batches[0].written()
    assert sum(each.records for name, each in written.items() if name.startswith(pipeline.topic)) == BATCH
    labels = [row.label for row in diagram.rows]
    assert sum(label.startswith("EndTxn") for label in labels) == 1
    assert any(label.startswith("TxnOffsetCommit") for label in labels)
    (reader_knows,) = (each for each in diagram.moments if each.who == "reader")
    assert reader_knows.latest is not None
