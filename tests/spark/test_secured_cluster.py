"""Spark's own Kafka connector, and our pipeline, on three of our brokers with SASL_SSL and ACLs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from einmal.client import AclOperation, ResourceType
from einmal.commit_protocol.commit_record import COMMIT_TOPIC
from tests.interop.apache_kafka import KafkaUnavailable
from tests.interop.guarded_cluster import ADMIN, HERS, GuardedCluster, running_guarded_cluster
from tests.spark.conftest import long
from tests.spark.kafka_source import add_kafka_source
from tests.spark.pipelines import Pipeline
from tests.spark.topics import fill, numbers

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COUNT = 100
PARTITIONS = 3


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedCluster]:
    with running_guarded_cluster(tmp_path_factory.mktemp("guarded")) as cluster:
        cluster.allow_alice(
            ResourceType.TOPIC, COMMIT_TOPIC, [AclOperation.CREATE, AclOperation.READ, AclOperation.WRITE]
        )
        yield cluster


@pytest.fixture
def theirs(spark: SparkSession, guarded: GuardedCluster) -> dict[str, str]:
    """Options of Spark's own connector."""
    try:
        add_kafka_source(spark)
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    return {f"kafka.{name}": value for name, value in guarded.java().items()}


@pytest.mark.long
def test_sparks_own_connector_writes_and_reads_batches_and_a_stream(
    spark: SparkSession, guarded: GuardedCluster, theirs: dict[str, str], tmp_path: Path
) -> None:
    given, copied = f"{HERS}batch", f"{HERS}stream"
    for topic in (given, copied):
        guarded.create_topic(topic, PARTITIONS)
    rows = spark.range(COUNT).selectExpr("cast(id as string) as value")
    rows.write.format("kafka").options(**theirs).option("topic", given).save()
    assert numbers(guarded.client(), given) == list(range(COUNT))
    reading = theirs | {"subscribe": given, "startingOffsets": "earliest", "kafka.isolation.level": "read_committed"}
    found = spark.read.format("kafka").options(**reading).load().selectExpr("cast(value as string) as value")
    assert sorted(int(row.value) for row in found.collect()) == list(range(COUNT))
    stream = spark.readStream.format("kafka").options(**reading, groupIdPrefix=f"{HERS}spark").load()
    writer = stream.select("value").writeStream.format("kafka").options(**theirs).option("topic", copied)
    query = writer.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert numbers(guarded.client(), copied) == list(range(COUNT))


@pytest.mark.long
def test_sparks_own_connector_is_refused_where_the_user_is(
    spark: SparkSession, guarded: GuardedCluster, theirs: dict[str, str]
) -> None:
    guarded.create_topic("payroll")
    rows = spark.range(1).selectExpr("cast(id as string) as value")
    # Its own error does not reach the driver where the connector was added to a session that runs.
    with pytest.raises(Py4JJavaError):
        rows.write.format("kafka").options(**theirs).option("topic", "payroll").save()
    assert guarded.committed_values("payroll") == []
    with pytest.raises(Exception, match=r"(?i)authoriz"):
        spark.read.format("kafka").options(**theirs).option("subscribe", "payroll").load().collect()


# That their source and our sink work there, each has its test in every run.
@pytest.mark.parametrize("reader", ["einmal", long("kafka")])
def test_our_pipeline_is_exactly_once_on_secured_brokers(
    spark: SparkSession, guarded: GuardedCluster, tmp_path: Path, reader: str, request: pytest.FixtureRequest
) -> None:
    """With the ACLs of docs/security.md, of both sources. Before the second run of ours a leader of the output dies."""
    settings, admin = guarded.client(), guarded.client(ADMIN)
    name = f"pipeline-of-{reader}"
    pipeline = Pipeline(settings.pop("bootstrap.servers"), str(tmp_path), name, client=settings)
    for topic in (pipeline.source_topic, pipeline.topic):
        guarded.create_topic(topic, PARTITIONS)
    guarded.allow_alice(ResourceType.TOPIC, pipeline.source_topic, [AclOperation.READ])
    guarded.allow_alice(ResourceType.TOPIC, pipeline.topic, [AclOperation.WRITE])
    guarded.allow_alice(ResourceType.TRANSACTIONAL_ID, name, [AclOperation.WRITE])
    guarded.allow_alice(ResourceType.GROUP, name, [AclOperation.READ])
    fill(admin, pipeline.source_topic, range(COUNT // 2))
    frame: Any = None
    if reader == "kafka":
        options = request.getfixturevalue("theirs") | {
            "subscribe": pipeline.source_topic,
            "startingOffsets": "earliest",
            "kafka.isolation.level": "read_committed",
            "groupIdPrefix": f"{HERS}spark",
        }
        frame = spark.readStream.format("kafka").options(**options).load().select("key", "value")
    pipeline.writer(spark, frame).start().awaitTermination()
    if reader == "einmal":
        guarded.kill(guarded.leader(pipeline.topic))
    fill(admin, pipeline.source_topic, range(COUNT // 2, COUNT))
    pipeline.writer(spark, frame).start().awaitTermination()
    for victim in list(guarded.dead):
        guarded.start_node(victim)
    assert numbers(admin, pipeline.topic) == list(range(COUNT))
