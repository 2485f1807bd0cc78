"""A session whose Python worker dies while Spark looks for data sources: prints what loading answers then."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from einmal.spark import register, session

_DEADLY = """\
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
"""
"""A package of data sources that kills the worker that looks for them."""


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
    with tempfile.TemporaryDirectory() as directory:
        package = Path(directory, "pyspark_deadly.py")
        package.write_text(_DEADLY)
        # Of the workers.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [directory, os.environ.get("PYTHONPATH")]))
        spark = session("lookup", master="local[1]", quick=True)
        killed = is_found(spark)
    again = is_found(spark)
    register(spark)
    print(json.dumps({"killed": killed, "again": again, "registered": is_found(spark)}))
    spark.stop()


if __name__ == "__main__":
    main()
