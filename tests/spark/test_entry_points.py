"""What a user of Spark's own reader and writer meets first: a source that is found, errors with the right spelling."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.types import StringType

from einmal.event_log import event_of
from einmal.spark import OptionError, PipelineFailed, PipelineRefused, write, write_stream
from tests.spark.topics import create, fill, numbers
from tests.suite.shared import unique

pytestmark = pytest.mark.spark


def source(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    reader = spark.readStream.format("einmal").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    return reader.option("startingOffsets", "earliest").load()


def test_a_session_finds_the_source_without_registering_it(spark: SparkSession, bootstrap: str) -> None:
    topic = unique("found")
    create(bootstrap, topic)
    fill(bootstrap, topic, range(3))
    frame = (
        spark.newSession().read.format("einmal").options(**{"kafka.bootstrap.servers": bootstrap, "subscribe": topic})
    )
    assert frame.load().count() == 3


def test_sparks_batch_writer_is_answered_with_the_option_that_is_missing(spark: SparkSession) -> None:
    writer = spark.range(3).write.format("einmal").mode("append").option("topic", "t").option("kafka.x.password", "pw")
    with pytest.raises(AnalysisException) as raised:
        writer.save()
    message = str(raised.value)
    assert 'option "kafka.bootstrap.servers" is missing' in message
    assert "Traceback" not in message
    assert "pw" not in message.replace("password", "")


def test_sparks_stream_writer_is_answered_with_the_option_that_is_missing(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    topic = unique("line")
    create(bootstrap, topic)
    fill(bootstrap, topic, range(3))
    writer = source(spark, bootstrap, topic).writeStream.format("einmal").trigger(availableNow=True)
    with pytest.raises(StreamingQueryException) as raised:
        writer.option("topic", "t").option("checkpointLocation", str(tmp_path)).start().awaitTermination()
    assert 'option "kafka.bootstrap.servers" is missing' in str(raised.value)
    assert "Traceback" not in str(raised.value)


@pytest.mark.representatives(2)
@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("startingOffset", "earliest", 'did you mean "startingOffsets"'),
        ("kafka.fetch.max.byte", "1", "did you mean 'fetch.max.bytes'"),
        ("kafka.auto.offset.reset", "earliest", 'option\\("startingOffsets"'),
        ("kafka.security.protocol", "SASL_SSL", "needs sasl.mechanism"),
    ],
)
def test_an_option_that_cannot_be_is_refused_when_the_source_is_loaded(
    spark: SparkSession, name: str, value: str, complaint: str
) -> None:
    reader = spark.readStream.format("einmal").option("kafka.bootstrap.servers", "127.0.0.1:1").option("subscribe", "t")
    with pytest.raises(AnalysisException, match=complaint) as raised:
        reader.option(name, value).load()
    assert "Traceback" not in str(raised.value)


def test_options_without_effect_are_accepted_and_logged_once(
    spark: SparkSession, bootstrap: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    into, out = unique("harmless-in"), unique("harmless-out")
    create(bootstrap, into, out)
    fill(bootstrap, into, range(3))
    reader = spark.readStream.format("einmal").option("kafka.bootstrap.servers", bootstrap).option("subscribe", into)
    reader = reader.option("startingOffsets", "earliest").option("kafkaConsumer.pollTimeoutMs", "512")
    reader = reader.option("kafka.client.dns.lookup", "use_all_dns_ips").option("groupIdPrefix", "mine")
    reader = reader.option("minOffsetsPerTrigger", "1").option("maxTriggerDelay", "1m")
    reader = reader.option("startingOffsetsByTimestampStrategy", "latest").option("fetchOffset.numRetries", "3")
    reader = reader.option("kafka.max.request.size", "2000000")
    writer = write_stream(reader.load()).option("kafka.bootstrap.servers", bootstrap).option("topic", out)
    writer = writer.option("transactional.id", out).option("checkpointLocation", str(tmp_path))
    writer = writer.option("includeHeaders", True).option("kafka.retries", "5").trigger(once=True)
    writer = writer.option("kafka.max.request.size", "2000000")
    with caplog.at_level(logging.WARNING, "einmal.spark"):
        writer.start().awaitTermination()
    assert numbers(bootstrap, out) == [0, 1, 2]
    [line] = [record.getMessage() for record in caplog.records if "without effect" in record.getMessage()]
    for name in ("kafka.retries", "includeHeaders", "kafka.client.dns.lookup", "kafkaConsumer.pollTimeoutMs"):
        assert name in line
    assert "kafka.max.request.size" not in line


_COUNTED = 'selectExpr("cast(value as string) as value").groupBy("value").count().select("value")'


@pytest.mark.parametrize(
    ("query", "mode", "suffices"),
    [
        ('select("value")', "append", True),
        (_COUNTED, "update", False),
        ('selectExpr("cast(rand() as string) as value")', "append", True),
        (_COUNTED, "complete", True),
        ('groupBy(functions.rand().cast("string").alias("value")).count().select("value")', "complete", False),
        (
            'groupBy(functions.udf(lambda value: value, "string")("topic").alias("value")).count().select("value")',
            "complete",
            False,
        ),
    ],
)
@pytest.mark.representatives(2)
def test_a_query_for_which_sparks_writer_suffices_is_logged_once(
    spark: SparkSession,
    bootstrap: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    query: str,
    mode: str,
    suffices: bool,
) -> None:
    topic = unique("suffices")
    create(bootstrap, f"{topic}-in", topic)
    frame = eval(f"frame.{query}", {"frame": source(spark, bootstrap, f"{topic}-in"), "functions": functions})
    writer = write_stream(frame).option("kafka.bootstrap.servers", bootstrap).option("topic", topic).outputMode(mode)
    writer = writer.option("transactional.id", topic).option("checkpointLocation", str(tmp_path))
    with caplog.at_level(logging.INFO, "einmal.spark"):
        writer.trigger(availableNow=True).start().awaitTermination()
    lines = [record.getMessage() for record in caplog.records if event_of(record) == "sparks_writer_suffices"]
    assert len(lines) == suffices
    assert all(line.startswith(f"{topic}: df.writeStream") and "random query" in line for line in lines)


def test_what_only_write_stream_does_is_no_query_for_sparks_writer(
    spark: SparkSession, bootstrap: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = unique("needed")
    create(bootstrap, f"{topic}-in", topic)
    frame = source(spark, bootstrap, f"{topic}-in").select("value")
    to_topic = write_stream(frame).option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
    to_table = write_stream(frame).format("sqlite").option("path", str(tmp_path / "rows")).option("table", "rows")
    with caplog.at_level(logging.INFO, "einmal.spark"):
        for name, writer in (("each", to_topic.each_batch(lambda batch, _: batch, frame.schema)), ("table", to_table)):
            writer = writer.option("transactional.id", f"{topic}-{name}").trigger(availableNow=True)
            writer.option("checkpointLocation", str(tmp_path / name)).start().awaitTermination()
    assert "sparks_writer_suffices" not in {event_of(record) for record in caplog.records}


def test_an_option_of_a_stream_that_only_a_batch_has_is_refused_before_anything_starts(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    topic = unique("ending")
    create(bootstrap, topic)
    reader = spark.readStream.format("einmal").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    writer = write_stream(reader.option("endingOffsets", "latest").load()).option("kafka.bootstrap.servers", bootstrap)
    writer = writer.option("topic", topic).option("transactional.id", topic)
    with pytest.raises(OptionError, match="a stream has no end"):
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert not (tmp_path / "checkpoint").exists()


# --- failures ---------------------------------------------------------------------------------------------------


class Poison(Exception):
    pass


def test_an_output_mode_that_the_query_cannot_have_is_refused_in_sparks_words(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    topic = unique("mode")
    create(bootstrap, topic)
    frame = source(spark, bootstrap, topic).groupBy().count().selectExpr("cast(count as string) as value")
    writer = write_stream(frame).option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
    writer = writer.option("transactional.id", topic).option("checkpointLocation", str(tmp_path))
    with pytest.raises(PipelineRefused, match="STREAMING_OUTPUT_MODE"):
        writer.start()


def test_a_failed_task_is_named_by_the_error_of_the_users_function(spark: SparkSession, bootstrap: str) -> None:
    def parse(value: str) -> str:
        raise Poison(f"no number in {value!r}")

    topic = unique("poison")
    create(bootstrap, topic)
    frame = spark.createDataFrame([("x",)], "value string")
    frame = frame.select(functions.udf(parse, StringType(), useArrow=False)("value").alias("value"))
    with pytest.raises(PipelineFailed, match="Poison: no number in 'x'"):
        write(frame).option("kafka.bootstrap.servers", bootstrap).option("topic", topic).save()


def test_a_failure_inside_the_jvm_keeps_its_cause_and_is_not_logged_as_json(
    spark: SparkSession, bootstrap: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = unique("jvm")
    create(bootstrap, topic)
    path = tmp_path / "rows"
    spark.createDataFrame([("x",)], "value string").write.text(str(path))
    frame = spark.read.text(str(path))
    for file in path.glob("*.txt"):
        file.unlink()
    with pytest.raises(PipelineFailed, match=r"FAILED_READ_FILE.*does not exist") as raised:
        write(frame).option("kafka.bootstrap.servers", bootstrap).option("topic", topic).save()
    assert "collectToPython" not in str(raised.value)
    divided = spark.sql("SELECT CAST(1/(id - 1) AS STRING) AS value FROM range(2)")
    with caplog.at_level(logging.ERROR), pytest.raises(PipelineFailed, match="DIVIDE_BY_ZERO"):
        write(divided).option("kafka.bootstrap.servers", bootstrap).option("topic", topic).save()
    assert "SQLQueryContextLogger" not in {record.name for record in caplog.records}
