"""A pipeline as a user submits it to YARN: it names no master, and imports nothing but einmal and pyspark.

Arguments: the kind of pipeline, bootstrap servers, its name, its checkpoint, and, for a database, its address.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from einmal.spark import session, write_stream


def windows(source: DataFrame) -> DataFrame:
    """How many records each window of 20 has, once it is closed."""
    numbers = source.selectExpr("timestamp_seconds(1000 + cast(cast(value as string) as long)) as at")
    counted = numbers.withWatermark("at", "30 seconds").groupBy(F.window("at", "20 seconds")).count()
    return counted.selectExpr(
        "cast(window.start as long) - 1000 as start", "concat(cast(window.start as long) - 1000, ':', count) as value"
    ).selectExpr("cast(start as string) as key", "value")


def main(kind: str, bootstrap: str, name: str, checkpoint: str, url: str = "", password: str = "") -> None:
    spark = session(name, config={"spark.sql.shuffle.partitions": 2, "spark.sql.session.timeZone": "UTC"})
    reader = spark.readStream.format("einmal").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("subscribe", f"{name}-in").option("startingOffsets", "earliest")
    source = reader.option("maxOffsetsPerTrigger", 20).load()
    if kind == "postgres":
        rows = source.selectExpr("cast(cast(value as string) as long) as n")
        writer = write_stream(rows).format("postgres").option("url", url).option("password", password)
        writer = writer.option("table", name.replace("-", "_"))
    else:
        rows = windows(source) if kind == "windows" else source.select("key", "value")
        writer = write_stream(rows).option("kafka.bootstrap.servers", bootstrap).option("topic", f"{name}-out")
    writer = writer.option("transactional.id", name).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
