"""Carts with the price that the price list has at that moment: one query, written by four pipelines.

    topic    to a topic
    apart    to a topic and a database: two commits, one after the other
    prepared to both in one commit (two-phase commit), killed before it
    decided  the same, killed after it

``--killed`` holds each pipeline at a moment of its first batch with carts, and then ends all of them with kill -9.
"""

import argparse
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from examples.lookup.prices import FILE, price
from examples.program import FRESH, fail, refuse_second_run, run
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from einmal.pipeline.events import BatchWritten, TransactionEnded
from einmal.spark import PipelineError, PipelineQuery, session, write_stream

BROKERS = os.environ.get("KAFKA_BROKERS", "127.0.0.1:9092")
CARTS = "carts"
TABLE = "priced"
FIRST_BATCH_WITH_CARTS = 1
_LIMIT_S = 300


class Way(NamedTuple):
    """``killed_at``: an event; with two sinks that commit apart, that of the first one."""

    name: str
    has_database: bool
    is_one_commit: bool
    killed_at: type[BatchWritten | TransactionEnded]

    @property
    def topic(self) -> str:
        return f"priced-{self.name}"

    @property
    def checkpoint(self) -> Path:
        return Path(f"build/examples/checkpoints/{self.name}")

    @property
    def database(self) -> Path:
        return Path(f"build/examples/priced-{self.name}.db")


WAYS = (
    Way("topic", False, False, BatchWritten),
    Way("apart", True, False, TransactionEnded),
    Way("prepared", True, True, BatchWritten),
    Way("decided", True, True, TransactionEnded),
)


def priced(spark: SparkSession) -> DataFrame:
    """Not deterministic: a cart that is looked up again may have another price."""
    carts = spark.readStream.format("einmal").option("kafka.bootstrap.servers", BROKERS)
    carts = carts.option("subscribe", CARTS).option("startingOffsets", "earliest")
    file = str(FILE.absolute())
    looked_up = F.udf(lambda cart: f"{cart} {price(file)}", "string").asNondeterministic()
    return carts.load().select("key", looked_up(F.col("value").cast("string")).alias("value"))


def start(spark: SparkSession, way: Way, listener: Callable[[Any], None]) -> PipelineQuery:
    rows = priced(spark)
    if way.has_database:
        # A row for both sinks, so that a cart is looked up once in an attempt. With a sink for each of two frames it
        # would be looked up for each of them.
        for_database = F.struct(F.col("value").alias("cart_and_price")).alias(TABLE)
        rows = rows.select(F.struct("key", "value").alias("einmal_topics"), for_database)
        writer = write_stream(rows).sinks({TABLE: ("sqlite", {"path": str(way.database), "table": TABLE})}, topics=True)
    else:
        writer = write_stream(rows)
    if way.is_one_commit:
        writer = writer.option("kafka.transaction.two.phase.commit.enable", True)
    return (
        writer.option("kafka.bootstrap.servers", BROKERS)
        .option("topic", way.topic)
        .option("transactional.id", way.topic)
        .option("checkpointLocation", str(way.checkpoint))
        .trigger(availableNow=True)
        .listener(listener)
        .start()
    )


class Hold:
    """A listener that stops its pipeline at an event, for ever."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self.reached = threading.Event()

    def __call__(self, event: Any) -> None:
        if isinstance(event, self._way.killed_at) and event.batch_id == FIRST_BATCH_WITH_CARTS:
            print(f"{self._way.name}: {type(event).__name__}", flush=True)
            self.reached.set()
            threading.Event().wait()


def run_until_killed(spark: SparkSession) -> None:
    java: Any = spark._jvm
    jvm = java.java.lang.ProcessHandle.current().pid()
    try:
        for way in WAYS:
            hold = Hold(way)
            query, began = start(spark, way, hold), time.monotonic()
            while not hold.reached.wait(0.2):
                if not query.isActive:
                    fail(
                        f"{way.name} has ended before its moment: {query.exception() or 'there are no carts'}. {FRESH}"
                    )
                if time.monotonic() - began > _LIMIT_S:
                    fail(f"{way.name} has not come to its moment within {_LIMIT_S} s.")
    finally:
        # After an error, too: a JVM whose pipelines are held never ends.
        os.kill(jvm, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--killed", action="store_true")
    options = parser.parse_args()
    if not FILE.exists():
        fail("there is no price yet: run `python -m examples.lookup.prices 31` first.")
    if options.killed:
        # Pipelines that have passed their moment would never come to it.
        used = [path for way in WAYS for path in (way.checkpoint, way.database)]
        refuse_second_run(BROKERS, [way.topic for way in WAYS], used)
    spark = session("lookup", quick=True, config={"spark.sql.shuffle.partitions": 2})
    if options.killed:
        run_until_killed(spark)
    for way in WAYS:
        start(spark, way, lambda _event: None).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    run(main, {PipelineError: ""})
