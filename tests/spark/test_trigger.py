from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from einmal.options.intervals import trigger_interval_us
from einmal.spark import OptionError, write_stream


def trigger_of(**given: Any) -> dict[str, Any]:
    frame: Any = SimpleNamespace(isStreaming=True, sparkSession=SimpleNamespace(_jvm=None))
    return write_stream(frame).trigger(**given)._trigger


def test_a_trigger_is_sparks_and_once_is_available_now() -> None:
    assert trigger_of(processingTime="1 second") == {"processingTime": "1 second"}
    assert trigger_of(availableNow=True) == {"availableNow": True}
    assert trigger_of(once=True) == {"availableNow": True}


def test_of_an_option_that_is_set_again_the_last_value_is_taken_whatever_its_case() -> None:
    frame: Any = SimpleNamespace(isStreaming=True, sparkSession=SimpleNamespace(_jvm=None))
    writer = write_stream(frame).option("topic", "a").option("Topic", "b").options(topic="c", einmal=True)
    assert writer._options == {"topic": "c", "einmal": "true"}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"continuous": "1 second"},
        {"realTime": "5 minutes"},
        {"once": False},
        {"availableNow": "yes"},
        {"processingTime": 5},
        {"processingTime": " "},
        {"processingTime": "1 second", "availableNow": True},
    ],
)
def test_a_trigger_that_cannot_be_is_refused_with_those_that_can(given: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match='hint: processingTime="1 second"'):
        trigger_of(**given)


def _texts() -> list[str]:
    """Intervals, and what looks like them."""
    values = ["10", "0", "-1", "- 1", "+5", "+ 5", "1.5", "1.", ".5", ".", "-.5", "-.", "1.1234567891", "1_0", "", "x"]
    units = [
        "second",
        "seconds",
        "SECONDS",
        "s",
        "ms",
        "millisecond",
        "microseconds",
        "minute",
        "hours",
        "day",
        "weeks",
    ]
    units += ["month", "years", "secondss", "fortnight", ""]
    single = [f"{value}{space}{unit}" for value, space, unit in itertools.product(values, (" ", "", "\t \n"), units)]
    prefixed = [f"{prefix}1 second" for prefix in ("interval ", "INTERVAL\t", "interval", "interval  ", "inter ", " ")]
    sums = [
        "1 minute 30 seconds",
        "1 minute30 seconds",
        "1 minute, 30 seconds",
        "2 seconds -1 second",
        "1 second -2 seconds",
    ]
    sums += ["1 year -12 months 1 second", "0 months", "interval", "interval ", "1 day 1", "1 day -", "-1 microsecond"]
    sums += ["9223372036 seconds", "9223372036854775807 microseconds", "1 second \u00a0", "\u0661 second"]
    return [*single, *prefixed, *sums]


@pytest.mark.spark
def test_intervals_are_those_that_spark_takes(spark: SparkSession) -> None:
    """So nothing is refused that Spark runs, and nothing fences the running instance that Spark then refuses."""
    assert spark._jvm is not None
    processing_time = spark._jvm.org.apache.spark.sql.streaming.Trigger.ProcessingTime

    def sparks(text: str) -> int | None:
        try:
            return int(processing_time(text).intervalMs())
        except IllegalArgumentException:
            return None

    def ours(text: str) -> int | None:
        try:
            return trigger_interval_us("trigger", text) // 1_000
        except OptionError:
            return None

    texts = _texts()
    assert {text: ours(text) for text in texts} == {text: sparks(text) for text in texts}


@pytest.mark.parametrize("interval", ["10", "10s", "1 month", "-1 second", "soon"])
def test_an_interval_that_spark_would_refuse_is_refused_before_anything_starts(interval: str) -> None:
    with pytest.raises(OptionError, match="is an interval of days"):
        trigger_of(processingTime=interval)
