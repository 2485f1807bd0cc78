"""A session whose Python worker dies while Spark looks for data sources: prints what loading answers then."""

from __future__ import annotations

import contextlib
import json
import threading

import psutil
from py4j.protocol import Py4JJavaError
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


def is_found(spark: SparkSession) -> bool:
    """Whether the source can be loaded. Raises Py4JJavaError for other errors."""
    reader = spark.readStream.format("einmal").option("kafka.bootstrap.servers", "127.0.0.1:1")
    try:
        reader.option("subscribe", "numbers").load()
    except Py4JJavaError as error:
        if "DATA_SOURCE_NOT_FOUND" not in str(error):
            raise
        return False
    return True


def main() -> None:
    spark = session("lookup", master="local[1]", quick=True)
    over = threading.Event()
    hunter = threading.Thread(target=hunt, args=(over,), daemon=True)
    hunter.start()
    try:
        killed = is_found(spark)
    finally:
        over.set()
        hunter.join()
    again = is_found(spark)
    register(spark)
    print(json.dumps({"killed": killed, "again": again, "registered": is_found(spark)}))
    spark.stop()


if __name__ == "__main__":
    main()
