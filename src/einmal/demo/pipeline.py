"""The demo's Spark driver: one session, two queries over the same input, one exactly once and one at least once.

A program of its own (``python -m einmal.demo.pipeline``), because it is killed. It starts Spark, reports that it is
ready, and waits for orders on stdin, so that a successor can be ready before its predecessor dies. It writes its events
as JSON lines. At its kill point it reports this and blocks, until the demo kills the whole process group; before one
EndTxn it waits until the demo has killed the coordinator.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from einmal.demo.pipeline_names import (
    AFTER_END_TXN,
    CONTROL,
    EXACTLY_ONCE,
    GUARANTEES,
    SENTENCES,
    transactional_id,
)
from einmal.demo.text import WORD_PATTERN
from einmal.pipeline import events
from einmal.spark import session, write_stream


@dataclass(frozen=True, slots=True)
class Orders:
    """``kill_at``: one of the two moments, or empty; it counts from ``kill_batch_id`` on.

    ``wait_batch_id``: the batch before whose EndTxn the driver waits for a line; -1 for none.
    """

    bootstrap_servers: str
    checkpoints: str
    lines_per_batch: int
    kill_at: str
    kill_batch_id: int
    wait_batch_id: int


_CONTROL_SECONDS_MAX: Final = 20.0
"""After this time it has ended before its kill point."""
_output = threading.Lock()


def say(**fields: Any) -> None:
    with _output:
        sys.stdout.write(json.dumps({"at": time.time(), **fields}) + "\n")
        sys.stdout.flush()


def stand_still() -> None:
    threading.Event().wait()


class Watcher:
    """Reports the events of a query, and blocks it at its kill point. ``control_stands``: shared by both queries."""

    def __init__(self, topic: str, orders: Orders, control_stands: threading.Event) -> None:
        self._topic = topic
        self._orders = orders
        self._control_stands = control_stands

    def __call__(self, event: events.Event) -> None:
        fields = {name: getattr(event, name) for name in event.__slots__ if name not in ("start", "end")}
        say(query=self._topic, event=type(event).__name__, **fields)
        batch_id = fields.get("batch_id", -1)
        if self._is_before_end_txn(event) and batch_id == self._orders.wait_batch_id:
            say(query=self._topic, event="BeforeEndTxn", batch_id=batch_id)
            sys.stdin.readline()
        if self._is_last_batch(batch_id):
            self._stand_with_the_other(event, batch_id)

    def _stand_with_the_other(self, event: events.Event, batch_id: int) -> None:
        """The control query reaches its kill point first: the tasks of the other one would keep Spark's slots."""
        if self._topic == EXACTLY_ONCE and isinstance(event, events.BatchStarted):
            self._control_stands.wait(_CONTROL_SECONDS_MAX)
        if self._is_kill_point(event):
            if self._topic == CONTROL:
                self._control_stands.set()
            say(query=self._topic, event="AtKillPoint", batch_id=batch_id)
            stand_still()

    def _is_before_end_txn(self, event: events.Event) -> bool:
        return self._topic == EXACTLY_ONCE and isinstance(event, events.BatchWritten)

    def _is_last_batch(self, batch_id: int) -> bool:
        return bool(self._orders.kill_at) and batch_id >= self._orders.kill_batch_id

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


def start(spark: SparkSession, topic: str, orders: Orders, control_stands: threading.Event) -> Any:
    sentences = (
        spark.readStream.format("einmal")
        .option("kafka.bootstrap.servers", orders.bootstrap_servers)
        .option("subscribe", SENTENCES)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", orders.lines_per_batch)
        .load()
    )
    return (
        write_stream(sentences)
        .each_batch(count_words)
        .option("kafka.bootstrap.servers", orders.bootstrap_servers)
        .option("topic", topic)
        .option("transactional.id", transactional_id(topic))
        .option("processing.guarantee", GUARANTEES[topic])
        .option("checkpointLocation", f"{orders.checkpoints}/{topic}")
        .listener(Watcher(topic, orders, control_stands))
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
    control_stands = threading.Event()
    queries = [start(spark, topic, orders, control_stands) for topic in GUARANTEES]
    for query in queries:
        query.awaitTermination()
    say(event="Finished")
    spark.stop()


if __name__ == "__main__":
    main()
