"""What can be done to a session only once in its life, and so has one of its own: ``python -m ... SERVERS NAME``.

Its Python worker dies while Spark looks for data sources; queries are stopped in the middle of a batch; its JVM dies in
a batch of an ingester. What was seen is printed as one line of JSON.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from einmal.ingest import Ingest, IngestBatch, IngestStopped, Position, RecordSource, SourceNotice
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


def looked_up() -> tuple[SparkSession, dict[str, bool]]:
    """A session that has lost the lookup; whether the source was found then, and once it was registered."""
    with tempfile.TemporaryDirectory() as directory:
        package = Path(directory, "pyspark_deadly.py")
        package.write_text(_DEADLY)
        # Of the workers.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [directory, os.environ.get("PYTHONPATH")]))
        spark = session("one-life", master="local[2]", quick=True, config={"spark.log.level": "OFF"})
        killed = is_found(spark)
    again = is_found(spark)
    register(spark)
    return spark, {"killed": killed, "again": again, "registered": is_found(spark)}


def slowly(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        time.sleep(0.02)
        yield batch


def stop_queries(spark: SparkSession) -> None:
    """Each at another moment of its batch."""
    for number in range(4):
        rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 300_000)
        rows = rates.option("numPartitions", 2).load()
        query = rows.mapInArrow(slowly, rows.schema).writeStream.format("noop").start()
        while query.lastProgress is None:
            time.sleep(0.05)
        time.sleep(number * 0.15)
        query.stop()


class Deadly(RecordSource):
    """Its batch kills the JVM."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def origin(self) -> str:
        return "nothing"

    def split(self, parts: int) -> None:
        pass

    def read(self, position: Position | None) -> Iterator[IngestBatch | SourceNotice | None]:
        gateway: Any = self._spark.sparkContext._gateway
        os.kill(gateway.proc.pid, signal.SIGKILL)
        gateway.proc.wait()
        part: Any = object()
        yield IngestBatch((), {"next": 1}, (part,))


def ends_of_ingesters(spark: SparkSession, servers: str, name: str) -> list[str]:
    """Spark ends in a batch of the first one, and before the second one."""
    ends = []
    for number in range(2):
        ingest = Ingest(Deadly(spark), bootstrap_servers=servers, name=f"{name}-{number}")
        # py4j reports the death of the JVM there, which is no worker's.
        with redirect_stderr(io.StringIO()):
            try:
                ingest.run(available_now=True, spark=spark)
            except IngestStopped as error:
                ends.append(str(error))
    return ends


def main(servers: str, name: str) -> None:
    spark, found = looked_up()
    sockets = [spark.conf.get(f"spark.python.unix.domain.socket.{each}") for each in ("enabled", "dir")]
    stop_queries(spark)
    seen = {"found": found, "sockets": sockets, "ends": ends_of_ingesters(spark, servers, name)}
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
