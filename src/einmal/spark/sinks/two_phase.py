"""A DataFrame's rows for topics and for a database that are committed together (``sinks/two_phase``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from einmal.sinks.batch_rows import BatchRows
from einmal.sinks.two_phase import TwoPhaseSink
from einmal.spark.environment.plans.computed_rows import release
from einmal.spark.environment.plans.row_order import checkpointed
from einmal.spark.sinks.frame_rows import FrameRows
from einmal.spark.sinks.kafka.sink import KafkaFrameSink
from einmal.spark.sinks.part import Part


class FrameTwoPhaseSink(TwoPhaseSink):
    """See ``TwoPhaseSink``."""

    def __init__(self, topics: Part, database: Part) -> None:
        assert isinstance(topics.sink, KafkaFrameSink)
        self.parts = (topics, database)
        super().__init__(topics.sink, database.sink, self._divided_frame)

    @contextmanager
    def _divided_frame(self, rows: BatchRows) -> Iterator[tuple[BatchRows, BatchRows]]:
        # Of a local checkpoint nothing is computed again, also where an executor is lost. An eager one: a lazy one is
        # complete only after its first job, which has written the topics by then.
        assert isinstance(rows, FrameRows), "topics take a DataFrame"
        frame = checkpointed(rows.frame)
        topics, database = self.parts
        try:
            yield FrameRows(topics.rows(frame)), FrameRows(database.rows(frame))
        finally:
            release(frame)
