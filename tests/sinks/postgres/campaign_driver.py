"""The driver of the campaign's two pipelines: a process that is killed, started again, and started twice."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import functions

from einmal.pipeline.errors import PipelineError
from einmal.spark import session, write_stream
from tests.sinks.postgres.server import PASSWORD

# The campaign and its driver know the same source; the driver imports no more of the campaign than that.
from tests.sinks.postgres.campaign import KEYS, NAMES, ROWS  # isort: skip


def main() -> int:
    url, directory, number = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    spark = session(
        "campaign",
        # A worker that is killed fails its task, not the batch.
        master="local[3,4]",
        quick=True,
        config={
            "spark.local.dir": directory / f"local-{number}",
            "spark.sql.warehouse.dir": directory / f"warehouse-{number}",
            "spark.sql.shuffle.partitions": 2,
        },
    )
    queries = []
    for name in NAMES:
        numbers = (
            spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 2).load()
        )
        frame = numbers.select(functions.col("value").alias("n"))
        writer = write_stream(frame if name == "append" else frame.selectExpr(f"n % {KEYS} AS key", "n", "n AS turn"))
        writer = writer.format("postgres").option("url", url).option("password", PASSWORD).option("table", name)
        if name == "upsert":
            writer = writer.option("mode", "upsert").option("key", "key").option("order", "turn")
        writer = writer.option("checkpointLocation", str(directory / "checkpoints" / name))
        writer = writer.option("transactional.id", name).trigger(processingTime="100 milliseconds")
        queries.append(writer.start())
    try:
        while all(query.isActive for query in queries) and not (directory / "stop").exists():
            time.sleep(0.1)
        for query in queries:
            query.stop()
            query.awaitTermination()
    except PipelineError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return 1
    finally:
        for query in queries:
            query.stop()
        spark.stop()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PipelineError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(1)
