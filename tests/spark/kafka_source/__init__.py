"""Spark's own Kafka source, whose jars come from Maven Central, for a session that runs already."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tests.interop.apache_kafka import classpath

_POM = Path(__file__).with_name("pom.xml")


def add_kafka_source(spark: SparkSession) -> None:
    """Make ``spark.readStream.format("kafka")`` known. Raises KafkaUnavailable."""
    for jar in sorted(Path(classpath("kafka-source", _POM)).parent.glob("*.jar")):
        spark.sql(f"ADD JAR '{jar}'")
