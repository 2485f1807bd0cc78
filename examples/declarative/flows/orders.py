"""Orders in capitals, and the large ones: two flows of a declarative pipeline, each with a sink of its own."""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

BOOTSTRAP = os.environ.get("BOOTSTRAP", "127.0.0.1:9092")


def sink(topic: str) -> str:
    """Create a sink that writes to this topic, exactly once. Its name is an identifier of SQL, without a hyphen."""
    name = topic.replace("-", "_")
    options = {"kafka.bootstrap.servers": BOOTSTRAP, "topic": topic, "transactional.id": topic}
    dp.create_sink(name, "einmal", options)
    return name


def orders() -> DataFrame:
    spark = SparkSession.active()
    reader = spark.readStream.format("einmal").option("kafka.bootstrap.servers", BOOTSTRAP)
    return reader.option("subscribe", "orders").option("startingOffsets", "earliest").load()


@dp.append_flow(target=sink("orders-upper"))
def upper() -> DataFrame:
    return orders().selectExpr("key", "upper(cast(value as string)) as value")


@dp.append_flow(target=sink("orders-large"))
def large() -> DataFrame:
    return orders().where("length(value) >= 12").select("key", "value")
