"""docs/migrate.md, step by step: a query of Spark's own Kafka source and sink resumes with ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from einmal.spark import PipelineRefused, PreflightFailed, StreamWriter, write_stream
from einmal.spark.protocol.execution import FORMAT_SETTING
from tests.interop.apache_kafka import KafkaUnavailable
from tests.spark.kafka_source import add_kafka_source
from tests.spark.topics import create, fill, values
from tests.suite.shared import unique

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
STOCK = {
    FORMAT_SETTING: "1",
    PROVIDER: "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
}
"""What a session has by default."""


@pytest.fixture
def stock_spark(spark: SparkSession) -> Iterator[SparkSession]:
    try:
        add_kafka_source(spark)
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    ours = {name: spark.conf.get(name) for name in STOCK}
    for name, value in STOCK.items():
        spark.conf.set(name, value)
    yield spark
    for name, previous in ours.items():
        spark.conf.set(name, previous or "")


def counts(spark: SparkSession, kind: str, bootstrap: str, topic: str) -> DataFrame:
    reader = spark.readStream.format(kind).option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    frame = reader.option("startingOffsets", "earliest").load()
    return frame.groupBy("key").count().selectExpr("concat(cast(key as string), ':', count) as value")


def ours(frame: DataFrame, bootstrap: str, topic: str, checkpoint: Path) -> StreamWriter:
    writer = write_stream(frame).option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
    writer = writer.option("transactional.id", topic).option("checkpointLocation", str(checkpoint))
    return writer.outputMode("update").trigger(availableNow=True)


@pytest.mark.long
def test_a_query_of_sparks_connector_resumes_with_its_state_and_positions_and_with_its_state_settings(
    stock_spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    into, out, checkpoint = unique("migrate-in"), unique("migrate-out"), tmp_path / "checkpoint"
    create(bootstrap, into, out)
    fill(bootstrap, into, range(10))
    run_stock(counts(stock_spark, "kafka", bootstrap, into), bootstrap, out, checkpoint)
    assert sorted(values(bootstrap, out)) == [f"k{each}:2" for each in range(5)]
    assert newest(checkpoint, "offsets") == newest(checkpoint, "commits"), "it was stopped between two batches"

    stock_spark.conf.set(FORMAT_SETTING, "2")
    frame = counts(stock_spark, "einmal", bootstrap, into)
    with pytest.raises(PreflightFailed, match=f"{FORMAT_SETTING}=1"):
        ours(frame, bootstrap, out, checkpoint).option("einmal.adopt", True).start()
    stock_spark.conf.set(FORMAT_SETTING, STOCK[FORMAT_SETTING])

    fill(bootstrap, into, range(10, 15))
    with pytest.raises(PipelineRefused, match="adopt"):
        ours(frame, bootstrap, out, checkpoint).start()
    ours(frame, bootstrap, out, checkpoint).option("einmal.adopt", True).start().awaitTermination()
    assert sorted(values(bootstrap, out)) == [f"k{each}:{count}" for each in range(5) for count in (2, 3)]
    fill(bootstrap, into, range(15, 20))
    ours(frame, bootstrap, out, checkpoint).start().awaitTermination()
    expected = [f"k{each}:{count}" for each in range(5) for count in (2, 3, 4)]
    assert sorted(values(bootstrap, out)) == expected


def run_stock(frame: DataFrame, bootstrap: str, topic: str, checkpoint: Path) -> None:
    writer: Any = frame.writeStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
    writer = writer.option("checkpointLocation", str(checkpoint)).outputMode("update").trigger(availableNow=True)
    writer.start().awaitTermination()


def newest(checkpoint: Path, name: str) -> int:
    return max(int(path.name) for path in (checkpoint / name).iterdir() if path.name.isdecimal())
