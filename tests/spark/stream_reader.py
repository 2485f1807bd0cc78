"""A query over our source without Spark: asks the stream reader what Spark asks it, with its offset log as a list."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from einmal.client import Admin
from einmal.options.source import source_options
from einmal.spark.source.source import KafkaStreamReader


class Query:
    """``log``: the end of every planned batch, as Spark's ``offsets/N``; ``committed``: batches that are done."""

    def __init__(self, bootstrap: str, **options: str) -> None:
        self.options = {"kafka.bootstrap.servers": bootstrap, "startingOffsets": "earliest"} | options
        self.log: list[str] = []
        self.committed = 0

    def run(self, *, available_now: bool = False, limit: ReadLimit | None = None) -> list[int]:
        """Start, and run batches until nothing is new: the numbers that they read, sorted."""
        found: list[int] = []
        with closing(Reader(self.options)) as reader:
            if available_now:
                reader.prepareForTriggerAvailableNow()
            while (batch := self._batch(reader, limit)) is not None:
                found += batch
        return sorted(found)

    def plan(self) -> None:
        """Plan one batch, and die before it is run."""
        with closing(Reader(self.options)) as reader:
            assert self._plan(reader, None)

    def position(self) -> Any:
        return json.loads(self.log[-1])

    def _batch(self, reader: Reader, limit: ReadLimit | None) -> list[int] | None:
        if len(self.log) == self.committed and not self._plan(reader, limit):
            return None
        start = self.log[max(0, self.committed - 1)] if self.committed else self._initial
        numbers = reader.rows(json.loads(start), json.loads(self.log[-1]))
        self.committed = len(self.log)
        return numbers

    def _plan(self, reader: Reader, limit: ReadLimit | None) -> bool:
        if not self.log:
            self._initial = json.dumps(reader.initialOffset())
        start = self.log[-1] if self.log else self._initial
        end = json.dumps(reader.latestOffset(json.loads(start), limit or ReadAllAvailable()))
        if self.log and end == start:
            return False
        self.log.append(end)
        return True


class Reader(KafkaStreamReader):
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(source_options(options, streaming=True))

    def rows(self, start: Any, end: Any) -> list[int]:
        return [
            int(value)
            for piece in self.partitions(start, end)
            for batch in self.read(piece)
            for value in batch.column("value").to_pylist()
        ]

    def close(self) -> None:
        self.stop()


def delete(bootstrap: str, *topics: str) -> None:
    """Delete topics, and return once a name can be used again."""
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.delete_topics(list(topics))
        while set(topics) & set(admin.list_topics()):
            pass
