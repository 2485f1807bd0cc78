"""Rows per second into Delta Lake: ours, and delta-spark in a ``foreachBatch``, in one session on one input.

``python -m tests.sinks.rates --jars DIR``: a directory with the jars of delta-spark for the PySpark that runs
this; delta-spark 4.4.0 exists for Spark 4.2. Each contender in turn, three rounds, after a round that is not measured.
The price of the record is that of one commit with it and without it, on the same table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from deltalake import CommitProperties, DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from einmal.options.values import Options
from einmal.sinks.delta import DeltaSink
from einmal.sinks.sink import Opening
from einmal.spark import session, write_stream
from einmal.testing.sinks.driving import record_of

_BATCHES: Final = 8
_FIRST: Final = 3
"""Batches of a run that are not measured."""
_ROUNDS: Final = 3
_COMMITS: Final = 50
_WAIT_S: Final = 300.0


def rows(spark: SparkSession, count: int) -> DataFrame:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", count).option("numPartitions", 2)
    source = source.option("startTimestamp", 0).option("advanceMillisPerBatch", 1)
    return source.load().selectExpr(
        "value AS id", "concat('row number ', value) AS name", "value * 0.5D AS half", "timestamp AS at"
    )


def ours(frame: DataFrame, directory: Path) -> Any:
    writer = write_stream(frame).format("delta").option("path", directory / "table")
    writer.option("transactional.id", "rates").option("checkpointLocation", directory / "checkpoint")
    return writer.trigger(processingTime="0 seconds").start()


def theirs(frame: DataFrame, directory: Path) -> StreamingQuery:
    def write(batch: DataFrame, batch_id: int) -> None:
        writer = batch.write.format("delta").mode("append")
        writer.option("txnAppId", "rates").option("txnVersion", batch_id).save(str(directory / "table"))

    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(directory / "checkpoint"))
    return writer.trigger(processingTime="0 seconds").start()


def rate(start: Callable[[DataFrame, Path], Any], frame: DataFrame) -> float:
    """Rows per second of the measured batches."""
    with tempfile.TemporaryDirectory(prefix="einmal-rates-") as directory:
        query = start(frame, Path(directory))
        deadline = time.monotonic() + _WAIT_S
        while len(done := [each for each in query.recentProgress if each["numInputRows"]]) < _BATCHES:
            assert time.monotonic() < deadline and query.isActive
            time.sleep(0.02)
        query.stop()
    measured = [json.loads(each.json) if hasattr(each, "json") else each for each in done[_FIRST:_BATCHES]]
    seconds = sum(each["durationMs"]["triggerExecution"] for each in measured) / 1_000
    return float(sum(each["numInputRows"] for each in measured) / seconds)


def price_of_the_record() -> tuple[float, float]:
    """ms of a commit with record and epoch, and of one without; medians."""
    with tempfile.TemporaryDirectory(prefix="einmal-rates-") as directory:
        path = Path(directory) / "table"
        import pyarrow

        DeltaTable.create(str(path), schema=pyarrow.schema([("id", pyarrow.int64())]))
        commit_point = DeltaSink(Options({"path": path})).commit_point(Opening(name="rates"))
        identity = commit_point.acquire(None)
        commit_point.read()
        with_record, without = [], []
        for number in range(_COMMITS):
            begin = time.perf_counter()
            commit_point.record(identity, record_of("rates", number))
            following = commit_point.commit(identity)
            assert following is not None
            identity = following
            with_record.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            table = DeltaTable(str(path))
            properties = CommitProperties(max_commit_retries=0)
            table.create_write_transaction([], "append", table.schema(), commit_properties=properties)
            without.append(time.perf_counter() - begin)
    return statistics.median(with_record) * 1_000, statistics.median(without) * 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jars", type=Path, required=True)
    asked = parser.parse_args()
    config = {
        "spark.jars": ",".join(str(path) for path in sorted(asked.jars.glob("*.jar"))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.shuffle.partitions": "2",
        # Of 50 by default, which two cores need seconds for in every batch.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }
    spark = session("einmal-rates", master="local[2]", config=config)
    for count in (200_000, 10_000):
        found: dict[str, list[float]] = {"einmal": [], "delta-spark": []}
        for number in range(_ROUNDS + 1):
            contenders = [("einmal", ours), ("delta-spark", theirs)]
            for name, start in contenders if number % 2 else reversed(contenders):
                measured = rate(start, rows(spark, count))
                if number:
                    found[name].append(measured)
        for name, rates in found.items():
            spread = ", ".join(f"{each:,.0f}" for each in sorted(rates))
            print(
                f"{count:>9,} rows a batch, {name:<12} {statistics.median(rates):>10,.0f} rows/s ({spread})", flush=True
            )
    spark.stop()
    with_record, without = price_of_the_record()
    print(f"one commit: {with_record:.1f} ms with record and epoch, {without:.1f} ms without")


if __name__ == "__main__":
    main()
