"""Rows per second into PostgreSQL: einmal's sink beside Spark's JDBC sink, in turns, on one server.

    python -m tests.sinks.postgres.bench --jdbc build/jdbc/postgresql-42.7.7.jar

Each round is one micro-batch of a streaming query over the same Parquet files, into an empty table:

    jdbc      foreachBatch with ``write.format("jdbc")``, batches of 10,000 rows, reWriteBatchedInserts; at least once
    copy      foreachBatch with einmal's tasks, which COPY straight into the table; at least once
    einmal    write_stream(...).format("postgres"): staged, counted, inserted and recorded in one transaction

``copy`` against ``einmal`` is the price of exactly once. The record alone is the last line: an empty batch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from einmal.options.values import Options
from einmal.pipeline import events
from einmal.sinks.postgres.copying import copy_rows
from einmal.sinks.postgres.mapping import mapped
from einmal.sinks.postgres.options import postgres_options
from einmal.sinks.postgres.session import Session
from einmal.sinks.postgres.staging import Staged
from einmal.sinks.postgres.table import find_table
from einmal.spark import session, write_stream
from einmal.spark.environment.plans.row_schemas import schema_of
from einmal.spark.sinks.frame_rows import FrameRows
from tests.sinks.postgres.server import PASSWORD, PostgresServer, running

_ROW = """
    id, concat('user-', id % 10007) AS user, CAST(id * 7919 % 1000000 AS decimal(12, 2)) / 100 AS amount,
    timestamp_micros(1760000000000000 + id * 1000) AS at, concat('order ', id, ' of today') AS note
"""
_TABLE = '(id bigint, "user" text, amount numeric, at timestamptz, note text)'
_EMPTY = 30
"""Batches without rows, for the price of the record."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jdbc", type=Path, required=True, help="PostgreSQL's JDBC driver")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        directory.chmod(0o711)
        with running(shared_buffers="'512MB'", max_wal_size="'8GB'") as server:
            spark = session(
                "bench-postgres",
                master=f"local[{os.cpu_count()}]",
                config={
                    "spark.jars": arguments.jdbc.resolve(),
                    "spark.local.dir": directory / "local",
                    "spark.sql.warehouse.dir": directory / "warehouse",
                },
            )
            try:
                print(json.dumps(_measured(spark, server, directory, arguments.rows, arguments.rounds)))
            finally:
                spark.stop()


def _measured(
    spark: SparkSession, server: PostgresServer, directory: Path, rows: int, rounds: int
) -> dict[str, object]:
    source = directory / "source"
    spark.range(0, rows, 1, os.cpu_count() or 1).selectExpr(*_split(_ROW)).write.parquet(str(source))
    schema = spark.read.parquet(str(source)).schema
    runs: dict[str, Callable[[DataFrame, str], None]] = {
        "jdbc": lambda frame, checkpoint: _jdbc(frame, checkpoint, server),
        "copy": lambda frame, checkpoint: _copy(frame, checkpoint, server),
        "einmal": lambda frame, checkpoint: _einmal(frame, checkpoint, server),
    }
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            server.rows(f"DROP TABLE IF EXISTS orders; CREATE TABLE orders {_TABLE}; CHECKPOINT")
            frame = spark.readStream.schema(schema).parquet(str(source))
            began = time.perf_counter()
            run(frame, str(directory / f"{name}-{turn}"))
            seconds = time.perf_counter() - began
            assert server.rows("SELECT count(*) FROM orders") == [(rows,)]
            # The first round warms the JVM and the workers up.
            if turn:
                taken[name].append(seconds)
            print(f"{name:8} {turn} {rows / seconds:12,.0f} rows/s", file=sys.stderr)
    return {
        "rows": rows,
        "rows_per_s": {name: round(rows / statistics.median(each)) for name, each in taken.items()},
        "seconds": {name: [round(value, 2) for value in each] for name, each in taken.items()},
        "empty_batch_ms": _empty(spark, server, directory, schema),
    }


def _split(columns: str) -> list[str]:
    found, depth, start = [], 0, 0
    for at, character in enumerate(columns):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            found.append(columns[start:at])
            start = at + 1
    return [*found, columns[start:]]


def _jdbc(frame: DataFrame, checkpoint: str, server: PostgresServer) -> None:
    url = f"jdbc:postgresql://{server.host}:{server.port}/postgres?reWriteBatchedInserts=true"

    def write(batch: DataFrame, _batch_id: int) -> None:
        writer = batch.write.format("jdbc").mode("append").option("url", url).option("dbtable", "orders")
        writer = writer.option("user", "admin").option("password", PASSWORD).option("batchsize", 10_000)
        writer.option("driver", "org.postgresql.Driver").save()

    query = frame.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()


def _copy(frame: DataFrame, checkpoint: str, server: PostgresServer) -> None:
    """The tasks of the sink, whose staging table is the table itself."""
    options = postgres_options(Options({"url": server.url, "password": PASSWORD, "table": "public.orders"}))
    session = Session(options.connecting, options.schema, "bench")
    shape = session.in_transaction("reading the table", lambda: find_table(session, options.table))
    session.close()
    assert shape is not None

    def write(batch: DataFrame, _batch_id: int) -> None:
        columns = mapped(schema_of(batch.schema), shape, options)
        direct = Staged("public", "orders", [replace(each, name=each.column or each.name) for each in columns])
        copy_rows(FrameRows(batch), direct, options.connecting, "bench", 0)

    query = frame.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()


def _einmal(frame: DataFrame, checkpoint: str, server: PostgresServer) -> None:
    writer = write_stream(frame).format("postgres").option("url", server.url).option("password", PASSWORD)
    writer = writer.option("table", "orders").option("checkpointLocation", checkpoint)
    writer.option("transactional.id", checkpoint).trigger(availableNow=True).start().awaitTermination()


def _empty(spark: SparkSession, server: PostgresServer, directory: Path, schema: StructType) -> dict[str, float]:
    """Between the end of an empty batch's job and the end of its transaction: the record, and COMMIT."""
    times: list[float] = []
    began = 0.0

    def listen(event: events.Event) -> None:
        nonlocal began
        if isinstance(event, events.OutputWritten):
            began = time.perf_counter()
        elif isinstance(event, events.TransactionEnded):
            times.append((time.perf_counter() - began) * 1000)

    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load().where("false")
    writer = write_stream(frame).format("postgres").option("url", server.url).option("password", PASSWORD)
    writer = writer.option("table", "ticks").option("checkpointLocation", str(directory / "empty"))
    query = writer.option("transactional.id", "empty").listener(listen).start()
    while len(times) < _EMPTY and query.isActive:
        time.sleep(0.1)
    query.stop()
    return {"median": round(statistics.median(times), 2), "max": round(max(times), 2)}


if __name__ == "__main__":
    main()
