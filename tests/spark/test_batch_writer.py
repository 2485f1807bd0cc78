"""``df.write.format("einmal")`` on real Spark: one transaction, once for each version, or nothing at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.spark.conftest import on_both_in_the_long_run
from tests.spark.topics import commit_record, create, numbers
from tests.suite.shared import unique

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = unique("batch-format")
    create(bootstrap, name, partitions=3)
    return name


def rows(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 4).selectExpr("concat('k', id % 5) as key", "cast(id as string) as value")


def save(frame: DataFrame, bootstrap: str, topic: str, mode: str = "append", **options: str) -> None:
    writer = frame.write.format("einmal").mode(mode).option("kafka.bootstrap.servers", bootstrap)
    writer.option("topic", topic).options(**options).save()


def named(name: str, version: int) -> dict[str, str]:
    return {"transactional.id": name, "txnVersion": str(version)}


@on_both_in_the_long_run
def test_a_version_is_written_once_and_a_write_without_one_each_time(
    spark: SparkSession, bootstrap: str, topic: str
) -> None:
    for _ in range(2):
        save(rows(spark, 20), bootstrap, topic, **named(topic, 4))
    assert numbers(bootstrap, topic, committed=False) == list(range(20))
    record = commit_record(bootstrap, topic)
    assert record is not None
    assert (record.batch_id, record.records) == (4, 20)
    with pytest.raises(Exception, match="txnVersion 3 of .* comes after 4"):
        save(rows(spark, 20), bootstrap, topic, **named(topic, 3))
    for _ in range(2):
        save(rows(spark, 10), bootstrap, topic)
    assert numbers(bootstrap, topic) == sorted([*range(20), *range(10), *range(10)])


@pytest.mark.long
def test_a_write_with_a_failed_task_leaves_nothing_and_may_be_run_again(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    fail = tmp_path / "fail"
    fail.touch()

    @F.udf("string", useArrow=False)
    def failing(value: str) -> str:
        if value == "17" and fail.exists():
            raise ValueError("not this one")
        return value

    frame = rows(spark, 20).select("key", failing("value").alias("value"))
    with pytest.raises(Exception, match="not this one"):
        save(frame, bootstrap, topic, **named(topic, 1))
    assert numbers(bootstrap, topic) == []
    fail.unlink()
    save(frame, bootstrap, topic, **named(topic, 1))
    assert numbers(bootstrap, topic) == list(range(20))


def test_what_cannot_be_kept_is_refused_before_anything_is_written(
    spark: SparkSession, bootstrap: str, topic: str
) -> None:
    frame = rows(spark, 5)
    with pytest.raises(Exception, match="appended to, not overwritten"):
        save(frame, bootstrap, topic, "overwrite")
    with pytest.raises(Exception, match='"txnVersion" is missing'):
        save(frame, bootstrap, topic, **{"transactional.id": topic})
    with pytest.raises(Exception, match='"checkpointLocation" is of a stream'):
        save(frame, bootstrap, topic, checkpointLocation="/nowhere")
    with pytest.raises(Exception, match='column "value" is string or binary, not bigint'):
        save(spark.range(3).selectExpr("id as value"), bootstrap, topic)
    assert numbers(bootstrap, topic, committed=False) == []
