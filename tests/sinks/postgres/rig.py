"""A pipeline's driver, step by step: the verbs in the order of the committer, on a real server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import pyarrow
import pytest
from pyspark.sql import DataFrame, SparkSession

from einmal.commit_protocol.claims import Output
from einmal.commit_protocol.commit_record import CommitRecord
from einmal.options.values import Options
from einmal.sinks.commit_point import Identity, SinkFailed
from einmal.sinks.postgres.commit_point import PostgresCommitPoint
from einmal.sinks.postgres.sink import PostgresSink
from einmal.sinks.sink import Opening
from einmal.spark.sinks.frame_rows import FrameRows
from tests.sinks.postgres.server import PASSWORD, PostgresServer, Standby

NAME = "pipeline"


class Driver:
    """One process that runs the pipeline, as far as the database can see it."""

    def __init__(self, sink: PostgresSink, name: str = NAME) -> None:
        self.sink = sink
        self.name = name
        self.commit_point: PostgresCommitPoint = sink.commit_point(Opening(name=name))
        self.identity: Identity | None = None
        self.outputs: tuple[Output, ...] = ()

    def start(self) -> CommitRecord | None:
        self.commit_point.look()
        self.identity = self.commit_point.acquire(self.identity)
        return self.commit_point.read()

    def restart(self) -> CommitRecord | None:
        """A new run in the same process."""
        self.commit_point.close()
        self.commit_point = self.sink.commit_point(Opening(name=self.name))
        return self.start()

    def stage(self, batch_id: int, frame: DataFrame) -> None:
        assert self.identity is not None
        self.outputs = self.commit_point.stage(self.identity, batch_id, FrameRows(frame))

    def record(self, batch_id: int) -> None:
        assert self.identity is not None
        self.commit_point.record(self.identity, record(batch_id, sum(each.count for each in self.outputs), self.name))

    def commit(self) -> None:
        assert self.identity is not None
        self.identity = self.commit_point.commit(self.identity)

    def abort(self) -> None:
        assert self.identity is not None
        self.identity = self.commit_point.abort(self.identity)

    def batch(self, batch_id: int, frame: DataFrame) -> None:
        self.stage(batch_id, frame)
        self.record(batch_id)
        self.commit()


class Rig:
    """One database. ``driver`` makes another instance of the pipeline."""

    def __init__(self, server: PostgresServer, spark: SparkSession, database: str) -> None:
        self.server = server
        self.spark = spark
        self.database = database
        self._drivers: list[Driver] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._drivers:
            each.commit_point.close()

    def options(self, port: int | None = None, **options: str) -> dict[str, str]:
        url = self.server.url_of(self.database, port)
        return {"url": url, "password": PASSWORD, "table": "numbers", **options}

    def sink(self, port: int | None = None, **options: str) -> PostgresSink:
        return PostgresSink(Options(self.options(port, **options)))

    def driver(self, port: int | None = None, name: str = NAME, **options: str) -> Driver:
        driver = Driver(self.sink(port, **options), name)
        self._drivers.append(driver)
        return driver

    def frame(self, values: Sequence[int], partitions: int = 2) -> DataFrame:
        """Rows with one column ``n``."""
        assert list(values) == list(range(values[0], values[-1] + 1)) if values else True
        table = pyarrow.table({"n": pyarrow.array(values, pyarrow.int64())})
        return self.spark.createDataFrame(table).coalesce(partitions)

    def rows(self, query: str, parameters: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        return self.server.rows(query, parameters, self.database)

    def numbers(self) -> list[int]:
        return [n for (n,) in self.rows("SELECT n FROM numbers ORDER BY n")]

    def staging(self) -> list[str]:
        return [name for (name,) in self.rows("SELECT relname FROM pg_class WHERE relname LIKE 'einmal_staging%'")]

    def committed_batch(self) -> int | None:
        committed = self.sink().committed().get(NAME)
        return None if committed is None or committed.record is None else committed.record.batch_id


class Query:
    """A pipeline whose batches are SQL."""

    def __init__(self, rig: Rig, **options: str) -> None:
        self.rig = rig
        self.driver = rig.driver(None, NAME, **{"table": "t", **options})
        self.driver.start()
        self.batch_id = 0

    def write(self, query: str) -> None:
        self.driver.batch(self.batch_id, self.rig.spark.sql(query))
        self.batch_id += 1

    def refused(self, query: str) -> str:
        with pytest.raises(SinkFailed) as caught:
            self.write(query)
        assert caught.value.will_again
        self.driver.abort()
        return str(caught.value)

    def rows(self, columns: str = "*", order: str = "1") -> list[tuple[object, ...]]:
        return self.rig.rows(f"SELECT {columns} FROM t ORDER BY {order}")


def record(batch_id: int, records: int = 0, name: str = NAME) -> CommitRecord:
    return CommitRecord(
        transactional_id=name,
        query_id="query",
        checkpoint="/checkpoint",
        batch_id=batch_id,
        end=({"topic": {"0": batch_id}},),
        records=records,
    )


@contextmanager
def standby_of(rig: Rig) -> Iterator[Standby]:
    """Of the rig's server, which is there again afterwards."""
    standby = rig.server.standby()
    try:
        standby.start()
        yield standby
    finally:
        standby.remove()
        rig.server.kill()
        rig.server.start()


def replace(primary: PostgresServer, standby: PostgresServer) -> None:
    """The standby answers at the primary's address, as behind a virtual IP."""
    primary.kill()
    standby.stop()
    standby.port = primary.port
    standby.start()
