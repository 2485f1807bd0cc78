"""Claims about the environment that all queries of a source share: in sessions that no other test has used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from einmal.spark import PipelineFailed, register, write_stream
from tests.spark.topics import create, fill, records
from tests.suite.shared import unique

pytestmark = pytest.mark.spark


def environment(spark: SparkSession) -> Any:
    """Java's map itself."""
    found: Any = spark._jsparkSession.sessionState().dataSourceManager().lookupDataSource("einmal")
    return found.dataSourceCls().envVars()


def keys(spark: SparkSession) -> set[str]:
    return {str(key) for key in environment(spark).keySet()}


def copy(spark: SparkSession, bootstrap: str, directory: Path) -> str:
    """Run a query to its end; its output topic."""
    source, output = unique("in"), unique("out")
    create(bootstrap, source, output)
    fill(bootstrap, source, range(10))
    reader = spark.readStream.format("einmal").option("kafka.bootstrap.servers", bootstrap)
    frame = reader.option("subscribe", source).option("startingOffsets", "earliest").load()
    writer = write_stream(frame.select("key", "value")).option("kafka.bootstrap.servers", bootstrap)
    writer = writer.option("topic", output).option("transactional.id", output)
    writer = writer.option("checkpointLocation", str(directory / output))
    writer.trigger(availableNow=True).start().awaitTermination(300)
    return output


def test_a_query_adds_no_key_to_the_environment_that_others_are_serialized_with(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    session = spark.newSession()
    register(session)
    before = keys(session)
    assert len(records(bootstrap, copy(session, bootstrap, tmp_path))) == 10
    assert keys(session) == before


@pytest.mark.long
def test_a_query_adds_the_keys_before_spark_starts_it(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = spark.newSession()
    register(session)
    environment(session).clear()
    start = DataStreamWriter.start
    seen = []

    def started(writer: DataStreamWriter, *arguments: Any, **options: Any) -> StreamingQuery:
        seen.append(keys(session))
        return start(writer, *arguments, **options)

    monkeypatch.setattr(DataStreamWriter, "start", started)
    copy(session, bootstrap, tmp_path)
    assert seen == [keys(session)]
    assert seen[0]


@pytest.mark.long
def test_an_environment_that_counts_an_entry_too_many_fails_every_task(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    # What two threads that add one key at the same instant leave behind.
    session = spark.newSession()
    register(session)
    broken = environment(session)
    size = broken.getClass().getDeclaredField("size")
    size.setAccessible(True)
    size.setInt(broken, broken.size() + 1)
    with pytest.raises(PipelineFailed, match="OptionalDataException"):
        copy(session, bootstrap, tmp_path)
