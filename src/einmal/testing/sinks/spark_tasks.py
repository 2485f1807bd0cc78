"""The battery with Spark's tasks, which may run twice, at the same time, and for longer than their driver.

``class TestMySinkOnSpark(SparkTasks, TestMySink)``, with a fixture ``spark``: the default session of the process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest

from einmal.spark.environment.second_driver import joining
from einmal.spark.sinks.frame_rows import FrameRows
from einmal.testing.sinks import SinkTests

_ANSWER_S: Final = 120.0
_POLL_S: Final = 0.02


class SparkTasks(SinkTests):
    @pytest.fixture(autouse=True)
    def session(self, spark: object) -> None:
        """It is the default one of this process."""

    def batch_rows(self, tables: Sequence[Any]) -> FrameRows:
        import pyarrow
        from pyspark.sql import SparkSession

        # Spark makes a local relation of an Arrow table, without a job of Python workers.
        frame = SparkSession.active().createDataFrame(pyarrow.concat_tables(tables))
        return FrameRows(frame.coalesce(len(tables)))

    def beginning(self) -> Callable[[], None]:
        from pyspark.sql import SparkSession

        return joining(SparkSession.active())

    def settle(self) -> None:
        """The jobs of killed drivers run on for a moment, as they do on a cluster."""
        from pyspark.sql import SparkSession

        tracker = SparkSession.active().sparkContext.statusTracker()
        deadline = time.monotonic() + _ANSWER_S
        while tracker.getActiveJobsIds():
            assert time.monotonic() < deadline, "a job does not end"
            time.sleep(_POLL_S)
