"""The four pipelines of the campaign, and what an undisturbed run of each would write.

Their input is numbers, each an event time in seconds, in topics that the conductor fills: ``copy-in``,
``windows-in``, ``join-in`` with ``join-late``, and ``state-in``. What can be random is: a replay that reaches a reader,
or a state that is not the output's, shows as another draw.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from einmal.spark import StreamWriter, write_stream

KEYS: Final = 5
WINDOW: Final = 20
UNPAID: Final = 3
"""Every so manieth number has no partner in ``join-late``."""
BATCH: Final = 400
"""Offsets per trigger: after a long outage there are several batches to go through."""
LATENESS: Final = 400
"""Far more than one partition's reader can be behind another's, so that no record is ever late."""
FIRST_SECOND: Final = 3600
"""When number 0 happened: Spark's first watermark is second 0, and what happened then is late from the start."""
_SECONDS: Final = f"timestamp_seconds(cast(value as long) + {FIRST_SECOND})"
_DELAY: Final = f"{LATENESS} seconds"

SOURCES: Final[dict[str, tuple[str, ...]]] = {
    "copy": ("copy-in",),
    "windows": ("windows-in",),
    "join": ("join-in", "join-late"),
    "state": ("state-in",),
}
NAMES: Final = tuple(SOURCES)
STATEFUL: Final = NAMES[1:]


def output_topic(name: str) -> str:
    return f"{name}-out"


def key_of(number: int) -> str:
    return f"k{number % KEYS}"


def is_in(topic: str, number: int) -> bool:
    """Whether the conductor writes a number to a topic."""
    return topic != "join-late" or number % UNPAID != 0


# --- the queries --------------------------------------------------------------------------------------------------


def copy(read: Callable[[str], DataFrame]) -> DataFrame:
    """Stateless: each number with a draw of its own."""
    return read("copy-in").selectExpr("key", "concat(value, ':', uuid()) as value")


def windows(read: Callable[[str], DataFrame]) -> DataFrame:
    """How many, and the sum, per key and window, in append mode: each window once, when it is over."""
    timed = read("windows-in").withColumn("at", F.expr(_SECONDS)).withWatermark("at", _DELAY)
    counted = timed.groupBy("key", F.window("at", f"{WINDOW} seconds")).agg(
        F.expr("count(*)").alias("count"), F.expr("sum(cast(value as long))").alias("sum")
    )
    start = f"cast(window.start as long) - {FIRST_SECOND}"
    return counted.selectExpr("key", f"concat_ws(':', key, {start}, count, sum) as value")


def join(read: Callable[[str], DataFrame]) -> DataFrame:
    """A left outer join of two streams: pairs at once, what stays alone when its time is over."""
    left = read("join-in").withColumn("at", F.expr(_SECONDS)).withWatermark("at", _DELAY)
    right = read("join-late").selectExpr("value as paid", f"{_SECONDS} as paid_at").withWatermark("paid_at", _DELAY)
    near = "value = paid and paid_at >= at and paid_at <= at + interval 10 seconds"
    joined = left.join(right, F.expr(near), "leftOuter")
    return joined.selectExpr("key", "concat(value, '-', coalesce(paid, 'alone')) as value")


class Draw(StatefulProcessor):
    """Per key: how many numbers there were, and a running sum of draws; each output has both, before and after.

    ``is_random``: else the numbers are the draws, and time stands still."""

    def __init__(self, *, is_random: bool = True) -> None:
        self._is_random = is_random

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("drawn", "count long, sum long, at double")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        numbers = [int(row.value) for row in rows]
        count, total, at = self._state.get() or (0, 0, 0.0)
        before = [count, total, at]
        draw = random.SystemRandom().randint(1, 10**9) if self._is_random else sum(numbers)
        after = [count + len(numbers), total + draw, time.time() if self._is_random else 0.0]
        self._state.update(tuple(after))
        yield Row(key=key[0], value=json.dumps({"before": before, "after": after, "numbers": numbers}))

    def close(self) -> None:
        pass


def state(read: Callable[[str], DataFrame], *, is_random: bool = True) -> DataFrame:
    """transformWithState: the state is random, and keeps the wall clock. Otherwise its rows are appended: Spark has no
    update mode for sinks in Python, which keep no random state."""
    grouped, mode = read("state-in").groupBy("key"), "update" if is_random else "append"
    return grouped.transformWithState(Draw(is_random=is_random), "key string, value string", mode, "none")


_FRAMES: Final[dict[str, Callable[[Callable[[str], DataFrame]], DataFrame]]] = {
    "copy": copy,
    "windows": windows,
    "join": join,
    "state": state,
}


TRIGGER: Final = "200 milliseconds"


@dataclass(frozen=True)
class Place:
    """Where the pipelines run: between whose topics, with checkpoints where."""

    bootstrap: str
    checkpoints: str
    guarantee: str = "exactly_once_v2"

    def checkpoint(self, name: str) -> Path:
        return Path(self.checkpoints, name)

    def source(self, spark: SparkSession, topic: str) -> DataFrame:
        reader = spark.readStream.format("einmal").option("kafka.bootstrap.servers", self.bootstrap)
        reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        # A task per partition, however small: more that can die at once.
        frame = reader.option("maxOffsetsPerTrigger", BATCH).option("minPartitions", 1).load()
        return frame.selectExpr("cast(key as string) as key", "cast(value as string) as value")

    def writer(self, spark: SparkSession, name: str) -> StreamWriter:
        frame = _FRAMES[name](lambda topic: self.source(spark, topic))
        writer = write_stream(frame).option("kafka.bootstrap.servers", self.bootstrap)
        writer = writer.option("topic", output_topic(name)).option("transactional.id", name)
        writer = writer.option("checkpointLocation", str(self.checkpoint(name)))
        writer = writer.option("processing.guarantee", self.guarantee).queryName(name)
        return writer.outputMode("update" if name == "state" else "append").trigger(processingTime=TRIGGER)


# --- what they must have written ----------------------------------------------------------------------------------


def closing_number(count: int) -> int:
    """A number so much later than those below ``count`` that it ends every window and every wait for a partner."""
    number = count + 4 * (LATENESS + WINDOW)
    return number + 1 if number % UNPAID == 0 else number


def expected(name: str, count: int) -> Counter[str]:
    """Of the numbers below ``count``, followed by the closing one. Not for ``state``, nor for the draws of ``copy``."""
    numbers = range(count)
    last = closing_number(count)
    match name:
        case "copy":
            return Counter(map(str, (*numbers, last)))
        case "windows":
            return Counter(_windows(numbers))
        case "join":
            pairs = (f"{number}-{number if is_in('join-late', number) else 'alone'}" for number in (*numbers, last))
            return Counter(pairs)
    raise AssertionError(name)


def _windows(numbers: Iterable[int]) -> Iterator[str]:
    found: dict[tuple[str, int], list[int]] = {}
    for number in numbers:
        found.setdefault((key_of(number), number // WINDOW * WINDOW), []).append(number)
    return (f"{key}:{start}:{len(each)}:{sum(each)}" for (key, start), each in found.items())
