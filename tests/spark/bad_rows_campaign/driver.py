"""A driver of the campaign: runs one pipeline to the end of its input, unless it kills itself before.

Run as ``python -m tests.spark.bad_rows_campaign.driver <settings.json>``; begins when it has read a line. The settings:
``bootstrap``, ``url`` (of PostgreSQL), ``directory``, ``name``, ``kind`` ("load" or "repair"), ``batch`` (offsets per
trigger), and ``kill``: null, or the name of an event and how many of them come before it, or "any" and seconds. It dies
with -9, its JVM too.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from einmal.pipeline import events
from einmal.spark import session, write_stream
from tests.sinks.postgres.server import PASSWORD
from tests.spark.bad_rows import Payments
from tests.spark.bad_rows_campaign.rows import repaired


def main(settings: dict[str, Any]) -> int:
    directory = Path(settings["directory"])
    config = {
        "spark.local.dir": directory / "local",
        "spark.sql.warehouse.dir": directory / "warehouse",
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.session.timeZone": "UTC",
    }
    spark = session("einmal-bad-rows", master="local[2]", quick=True, config=config)
    print("ready", flush=True)
    sys.stdin.readline()
    payments = Payments(settings["bootstrap"], directory, name=settings["name"])
    payments.settings = payments.tolerant
    batch = settings["batch"]
    writer = (
        load(spark, payments, batch, settings["url"]) if settings["kind"] == "load" else repair(spark, payments, batch)
    )
    writer.listener(killer(spark, settings["kill"])).start().awaitTermination()
    return 0


def load(spark: SparkSession, payments: Payments, batch: int, url: str) -> Any:
    """Into the table, which rejects some of the rows that can be decoded."""
    frame = payments.source(spark, maxOffsetsPerTrigger=str(batch))
    rows = frame.selectExpr("value.id", "value.amount", "struct(topic, partition, offset) AS einmal_record")
    writer = write_stream(rows).format("postgres").option("url", url).option("password", PASSWORD)
    writer = writer.option("table", "payments").options(**payments.tolerant).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(payments.directory / payments.name))
    return writer.option("transactional.id", payments.name)


def repair(spark: SparkSession, payments: Payments, batch: int) -> Any:
    """From the topic that dead letters were replayed to, to that of the payments."""
    function = F.udf(repaired, "binary")
    frame: DataFrame = (
        spark.readStream.format("einmal")
        .option("kafka.bootstrap.servers", payments.bootstrap)
        .option("subscribe", f"{payments.name}-repair")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(batch))
        .load()
    )
    writer = write_stream(frame.select("key", function("value").alias("value"))).option("topic", payments.topic)
    writer = writer.option("kafka.bootstrap.servers", payments.bootstrap).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(payments.directory / f"{payments.name}-repair"))
    return writer.option("transactional.id", f"{payments.name}-repair")


def killer(spark: SparkSession, kill: list[Any] | None) -> events.Listener:
    jvm: Any = spark._jvm
    pid = jvm.java.lang.ProcessHandle.current().pid()

    def die() -> None:
        os.kill(pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    if kill is not None and kill[0] == "any":
        threading.Timer(kill[1], die).start()
    before = 0 if kill is None else kill[1]

    def hear(event: events.Event) -> None:
        nonlocal before
        if kill is not None and type(event).__name__ == kill[0]:
            if before <= 0:
                die()
            before -= 1

    return hear


if __name__ == "__main__":
    # A timer that has not come yet must not keep the process.
    status = main(json.loads(Path(sys.argv[1]).read_text()))
    sys.stdout.flush()
    os._exit(status)
