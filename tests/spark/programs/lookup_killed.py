"""A session whose Python worker dies while Spark looks for data sources: prints what loading answers then."""

from __future__ import annotations

import contextlib
import json
import threading

import psutil
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from einmal.spark import register, session


def hunt(over: threading.Event) -> None:
    """Kill every Python worker of this process until it is over."""
    while not over.is_set():
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process().children(recursive=True):
                if ".daemon pyspark" in " ".join(child.cmdline()):
                    for worker in child.children():
                        worker.kill()


def condition(spark: SparkSession) -> str | None:
    """Of the error that loading ends with."""
    reader = spark.readStream.format("einmal").option("kafka.bootstrap.servers", "127.0.0.1:1")
    try:
        reader.option("subscribe", "numbers").load()
    except AnalysisException as error:
        return error.getCondition()
    return None


def main() -> None:
    spark = session("lookup", master="local[1]", quick=True)
    over = threading.Event()
    hunter = threading.Thread(target=hunt, args=(over,), daemon=True)
    hunter.start()
    try:
        killed = condition(spark)
    finally:
        over.set()
        hunter.join()
    again = condition(spark)
    register(spark)
    print(json.dumps({"killed": killed, "again": again, "registered": condition(spark)}))
    spark.stop()


if __name__ == "__main__":
    main()
