"""Tasks without Spark: the rows of a frame go through what a sink has its tasks do, in the thread that asks for them.

What a sink keeps is decided by its driver and its database, and Spark's part is the same for all of them: which task
attempts there are, and which of them count. So the battery runs on every sink with these tasks, and on one of them
with Spark's; ``make test-long`` runs it with Spark's on all.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import pyarrow
import pytest
from pyarrow import compute
from pyspark import TaskContext, cloudpickle
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    Row,
    StringType,
    StructField,
    StructType,
)

from einmal.sinks.arrow_rows import ArrowRows
from einmal.sinks.batch_rows import BatchRows, PartReport, WritePart
from einmal.testing.sinks import SinkTests, fencing
from einmal.testing.sinks.campaign import STEPS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TYPES: Final[dict[str, DataType]] = {
    "bigint": LongType(),
    "int": IntegerType(),
    "string": StringType(),
    "double": DoubleType(),
    "array<int>": ArrayType(IntegerType()),
}
_Function = Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]
_attempts = itertools.count(os.getpid() * 1_000_000)
"""Of no other process, either."""
_running = threading.local()


OF_EVERY_ENGINE_ALIKE: Final = frozenset(
    {
        "test_asking_before_the_first_run_finds_no_pipelines",
        "test_commit_and_acquire_at_once_have_one_winner",
        "test_driver_of_before_a_deleted_record_commits_no_more",
        "test_every_name_has_a_record_of_its_own",
        "test_every_transaction_has_an_identity_of_its_own",
        "test_forgotten_name_leaves_no_record",
        "test_idle_driver_notices_that_it_was_fenced",
        "test_look_fences_nobody",
        "test_new_name_has_no_record",
        "test_outputs_count_the_rows_of_every_task",
        "test_promises_are_known_without_asking_anybody",
        "test_random_runs_leave_each_batch_once",
        "test_record_is_written_without_staged_rows",
        "test_restart_in_the_same_process_is_granted_with_the_held_identity",
        "test_restart_with_a_held_identity_does_not_fence_a_newer_driver",
    }
)
"""Tests whose statements others have, too: in every run on SQLite, PostgreSQL and topics, else in the long run."""


class LocalTasks(SinkTests):
    """The battery, shorter than on SQLite: to be named before the hooks of the sink."""

    in_the_long_run: ClassVar[frozenset[str]] = frozenset({"test_older_driver_commits_in_no_order_of_the_verbs"})
    """Tests for ``make test-long``: all orders of two drivers take long, and the random campaign and the race have
    many of them. On SQLite they all run."""
    races: ClassVar[int] = 12
    steps: ClassVar[int] = 30
    """Of two drivers, and of the random campaign: a third of what they have on SQLite, and with Spark's tasks."""

    def batch_rows(self, tables: Sequence[Any]) -> BatchRows:
        return _SentRows(tables)

    @pytest.fixture(autouse=True)
    def shorter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fencing, "_RACES", self.races)
        if not os.environ.get(STEPS):
            monkeypatch.setenv(STEPS, str(self.steps))


WITHOUT_KILLS: Final = (
    LocalTasks.in_the_long_run | OF_EVERY_ENGINE_ALIKE | {"test_killed_process_leaves_the_batch_whole"}
)
"""For the long run: processes that write to SQLite, PostgreSQL, topics and files are killed in every run."""


class _SentRows(ArrowRows):
    """What writes a part comes to its task as it reaches an executor."""

    def write(self, write: WritePart) -> list[PartReport]:
        sent: WritePart = cloudpickle.loads(cloudpickle.dumps(write))  # type: ignore[no-untyped-call]
        return super().write(sent)


def local_session(monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """What a sink needs of a session, for the duration of a test."""
    monkeypatch.setattr(TaskContext, "get", _context)
    # It is for processes of tasks alone.
    monkeypatch.setattr("einmal.spark.sinks.frame_rows.settle", lambda: None)
    return cast("SparkSession", _LocalSession())


class _LocalSession:
    """In place of a session: it makes frames of given rows. Its jobs end with the process."""

    @property
    def sparkContext(self) -> _LocalSession:
        return self

    def statusTracker(self) -> _LocalSession:
        return self

    def getActiveJobsIds(self) -> list[int]:
        return []

    def createDataFrame(self, rows: Any, columns: str = "") -> _Frame:
        if isinstance(rows, pyarrow.Table):
            return _Frame(from_arrow_schema(rows.schema), rows)
        assert not rows, "only Arrow tables have rows here"
        return _Frame(_schema(columns), pyarrow.table({}))


def _schema(columns: str) -> StructType:
    """Of columns as in SQL."""
    schema = StructType()
    for column in columns.split(", "):
        name, kind = column.split()
        schema.add(name, _TYPES[kind])
    return schema


@dataclass(frozen=True)
class _Column:
    """``field``: of the column, a struct; ``title``: what it is called from now on."""

    name: str
    field: str | None = None
    title: str | None = None

    def __getitem__(self, field: str) -> _Column:
        return replace(self, field=field)

    def alias(self, title: str) -> _Column:
        return replace(self, title=title)


@dataclass(frozen=True)
class _Frame:
    """``functions``: what each task does with its part of the rows, one after the other."""

    schema: StructType
    table: pyarrow.Table
    tasks: int = 1
    functions: tuple[_Function, ...] = ()

    def __getitem__(self, name: str) -> _Column:
        assert re.fullmatch(r"\w+", name), "Spark reads other names as SQL"
        return _Column(name)

    def coalesce(self, tasks: int) -> _Frame:
        return replace(self, tasks=tasks)

    def drop(self, name: str) -> _Frame:
        assert name not in self.schema.names
        return self

    def toDF(self, *names: str) -> _Frame:
        schema = StructType([StructField(name, field.dataType) for name, field in zip(names, self.schema, strict=True)])
        return self._then(schema, lambda batch: batch.rename_columns(list(names)))

    def select(self, *columns: _Column) -> _Frame:
        schema = StructType()
        for column in columns:
            kind = self.schema[column.name].dataType
            kind = kind if column.field is None else cast("StructType", kind)[column.field].dataType
            schema.add(column.title or column.name, kind)

        def select(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
            found = [batch.column(column.name) for column in columns]
            fields = [
                values if column.field is None else compute.struct_field(values, column.field)
                for column, values in zip(columns, found, strict=True)
            ]
            return pyarrow.RecordBatch.from_arrays(fields, names=schema.names)

        return self._then(schema, select)

    def _then(self, schema: StructType, function: Callable[[pyarrow.RecordBatch], pyarrow.RecordBatch]) -> _Frame:
        return replace(self, schema=schema, functions=(*self.functions, lambda batches: map(function, batches)))

    def mapInArrow(self, function: _Function, schema: str | StructType) -> _Frame:
        # As it reaches an executor.
        assert all(re.fullmatch(r"\w+", name) for name in self.schema.names), "mapInArrow reads other names as SQL"
        sent: _Function = cloudpickle.loads(cloudpickle.dumps(function))  # type: ignore[no-untyped-call]
        return replace(
            self,
            schema=_schema(schema) if isinstance(schema, str) else schema,
            functions=(*self.functions, sent),
        )

    def collect(self) -> list[Row]:
        found: list[Row] = []
        size = -(-self.table.num_rows // self.tasks)
        for partition in range(self.tasks):
            _running.context = _Context(partition, next(_attempts))
            try:
                batches: Iterator[Any] = iter(self.table.slice(partition * size, size).to_batches())
                for function in self.functions:
                    batches = function(batches)
                found += [Row(**row) for batch in batches for row in batch.to_pylist()]
            finally:
                _running.context = None
        return found


@dataclass(frozen=True)
class _Context:
    partition: int
    attempt: int

    def partitionId(self) -> int:
        return self.partition

    def taskAttemptId(self) -> int:
        return self.attempt


def _context() -> _Context | None:
    """Of the task that this thread is running."""
    return getattr(_running, "context", None)
