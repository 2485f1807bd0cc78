"""The demo's Spark driver: one session, two queries over the same input, one exactly once and one at least once.

A program of its own (``python -m einmal.demo.pipeline``), because it is killed. It starts Spark, says that it is warm,
and waits for its orders on stdin, so that a successor can be ready before its predecessor dies. What happens comes out
as JSON lines. At its kill point it announces itself and stands still, until the demo kills the whole process group.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from einmal.demo.pipeline_names import AFTER_END_TXN, CONTROL, GUARANTEES
from einmal.demo.text import WORD_PATTERN
from einmal.spark import events, session, write_stream


@dataclass(frozen=True, slots=True)
class Orders:
    """``kill_at``: one of the two moments, or empty; it counts from ``kill_batch_id`` on."""

    bootstrap_servers: str
    checkpoints: str
    lines_per_batch: int
    kill_at: str
    kill_batch_id: int


_output = threading.Lock()


def say(**fields: Any) -> None:
    with _output:
        sys.stdout.write(json.dumps({"at": time.time(), **fields}) + "\n")
        sys.stdout.flush()


def stand_still() -> None:
    threading.Event().wait()


class Watcher:
    """Tells what a query does, and stops it at its kill point."""

    def __init__(self, topic: str, orders: Orders) -> None:
        self._topic = topic
        self._orders = orders

    def __call__(self, event: events.Event) -> None:
        fields = {name: getattr(event, name) for name in event.__slots__ if name not in ("start", "end")}
        say(query=self._topic, event=type(event).__name__, **fields)
        batch_id = fields.get("batch_id", -1)
        if self._orders.kill_at and batch_id >= self._orders.kill_batch_id and self._is_kill_point(event):
            say(query=self._topic, event="AtKillPoint", batch_id=batch_id)
            stand_still()

    def _is_kill_point(self, event: events.Event) -> bool:
        if self._topic == CONTROL:
            return isinstance(event, events.BatchWritten)
        if self._orders.kill_at == AFTER_END_TXN:
            return isinstance(event, events.TransactionEnded) and event.committed
        return isinstance(event, events.PartitionWritten)


def count_words(batch: DataFrame, _batch_id: int) -> DataFrame:
    """The words of one micro-batch, with how often each occurs in it."""
    return (
        batch.selectExpr(f"explode(regexp_extract_all(cast(value as string), '{WORD_PATTERN}', 0)) as word")
        .selectExpr("lower(word) as key")
        .groupBy("key")
        .count()
        .selectExpr("key", "cast(count as string) as value")
    )


def start(spark: SparkSession, topic: str, orders: Orders) -> Any:
    sentences = (
        spark.readStream.format("einmal")
        .option("kafka.bootstrap.servers", orders.bootstrap_servers)
        .option("subscribe", "sentences")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", orders.lines_per_batch)
        .load()
    )
    return (
        write_stream(sentences)
        .each_batch(count_words)
        .option("kafka.bootstrap.servers", orders.bootstrap_servers)
        .option("topic", topic)
        .option("transactional.id", f"demo-{topic}")
        .option("processing.guarantee", GUARANTEES[topic])
        .option("checkpointLocation", f"{orders.checkpoints}/{topic}")
        .listener(Watcher(topic, orders))
        .queryName(topic)
        .trigger(availableNow=True)
        .start()
    )


def main() -> None:
    spark = session(app_name="einmal demo", quick=True)
    spark.range(1).count()
    say(event="Warm")
    line = sys.stdin.readline()
    if not line:
        return
    orders = Orders(**json.loads(line))
    queries = [start(spark, topic, orders) for topic in GUARANTEES]
    for query in queries:
        query.awaitTermination()
    say(event="Finished")
    spark.stop()


if __name__ == "__main__":
    main()
