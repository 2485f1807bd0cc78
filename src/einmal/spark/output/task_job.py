"""Functions as the tasks of a Spark application, for work that is no frame of rows.

Parts and results travel by pickle, and tasks import the function's module: einmal is installed where executors run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from pyspark.sql import SparkSession

from einmal.sinks.kafka.open_transaction import OpenTransaction
from einmal.spark.environment.python_worker import settle
from einmal.spark.environment.spark_session import cores_of, ended, is_alive
from einmal.spark.errors import reason_of
from einmal.spark.output.resources import claim_service
from einmal.spark.output.tasks import TaskTurn

PartT = TypeVar("PartT")
ResultT = TypeVar("ResultT")


class JobFailed(Exception):
    """A task has failed too often."""


class TaskJob:
    """``service``: where tasks claim the partitions that they write."""

    def __init__(self, spark: SparkSession) -> None:
        """Raises PipelineRefused."""
        self._spark = spark
        self.service = claim_service(spark)

    @property
    def width(self) -> int:
        """Tasks that can run at the same time. Raises PipelineRefused if Spark has ended."""
        return cores_of(self._spark)

    def turn(self, transaction: OpenTransaction) -> TaskTurn:
        """Return what a task must know to claim."""
        return TaskTurn(self.service.address, transaction.token)

    def run(self, parts: Sequence[PartT], work: Callable[[PartT], ResultT]) -> list[ResultT]:
        """The results, one task for each part. Raises JobFailed, and PipelineRefused if Spark has ended."""

        def task(share: PartT) -> ResultT:
            settle()
            return work(share)

        try:
            results: list[ResultT] = self._spark.sparkContext.parallelize(parts, len(parts)).map(task).collect()
        except Exception as error:
            raise (JobFailed(reason_of(error)) if is_alive(self._spark) else ended(error)) from error
        return results

    def close(self) -> None:
        """The session stays."""
        self.service.close()
