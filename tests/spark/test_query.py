"""How a pipeline ends, where the moment matters: on queries that do nothing but end as Spark's do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import StreamingQueryException

from einmal.pipeline.errors import PipelineError, PipelineFailed, PipelineFenced, PipelineRefused
from einmal.spark.protocol import query as query_module
from einmal.spark.protocol.query import PipelineQuery

_LONG_S = 300.0


class SparkQuery:
    """Spark's side: ``stop`` returns only when the call of ``foreachBatch`` that runs has returned."""

    def __init__(self, write: Callable[[Any, int], None]) -> None:
        self._write = write
        self._batch: threading.Thread | None = None
        self._is_over = threading.Event()
        self.is_in_a_batch_when_stopped = False
        self.error: BaseException | None = None

    @property
    def isActive(self) -> bool:
        return not self._is_over.is_set()

    def begin_batch(self) -> threading.Thread:
        self._batch = threading.Thread(target=self._run_batch, daemon=True)
        self._batch.start()
        return self._batch

    def _run_batch(self) -> None:
        try:
            self._write(None, 0)
        except BaseException as error:  # noqa: BLE001
            self.error = error
            self._is_over.set()

    def awaitTermination(self, timeout: float | None = None) -> bool:
        if self._is_over.wait(timeout) and self.error is not None:
            raise StreamingQueryException(message=str(self.error))
        return self._is_over.is_set()

    def stop(self) -> None:
        if self.is_in_a_batch_when_stopped:
            self.begin_batch().join()
        self._is_over.set()


def _pipeline(run: Any, start: Callable[[Callable[[Any, int], None]], Any]) -> PipelineQuery:
    setting = SimpleNamespace(
        close=lambda: None,
        checkpoint=SimpleNamespace(has_commit=lambda _: True),
        notify=lambda _: None,
        stateful=True,
        spark=None,
    )
    return PipelineQuery(cast(Any, setting), lambda _: run, cast(Any, start), None)


def _stop_in_thread(pipeline: PipelineQuery) -> threading.Thread:
    thread = threading.Thread(target=pipeline.stop, daemon=True)
    thread.start()
    return thread


def test_a_batch_that_begins_while_the_query_is_stopped_does_not_keep_it_from_stopping() -> None:
    run = SimpleNamespace(start=lambda: None, close=lambda: None, held=None)
    begun: list[SparkQuery] = []

    def start(write: Callable[[Any, int], None]) -> SparkQuery:
        begun.append(SparkQuery(write))
        begun[0].is_in_a_batch_when_stopped = True
        return begun[0]

    pipeline = _pipeline(run, start)
    stopping = _stop_in_thread(pipeline)
    stopping.join(_LONG_S)
    assert not stopping.is_alive()
    assert pipeline.exception() is None


def test_a_query_that_is_stopped_while_it_restarts_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_module, "Execution", lambda *_: None)
    begun: list[SparkQuery] = []
    stopping: list[threading.Thread] = []

    def begin_run() -> None:
        if begun:
            stopping.append(_stop_in_thread(pipeline))
            # It has met the first query, which is over.
            while not (pipeline._stopping and not pipeline._running.locked()):
                stopping[0].join(0.01)

    def fail(*_: Any) -> None:
        raise PipelineFailed("the batch was aborted")

    run = SimpleNamespace(start=begin_run, batch=fail, close=lambda: None, is_undecided=True, held=None)

    def start(write: Callable[[Any, int], None]) -> SparkQuery:
        begun.append(SparkQuery(write))
        return begun[-1]

    pipeline = _pipeline(run, start)
    begun[0].begin_batch()
    assert pipeline.awaitTermination(_LONG_S)
    stopping[0].join(_LONG_S)
    assert len(begun) == 2
    assert not stopping[0].is_alive()


@pytest.mark.parametrize(("late", "ends_well"), [(1, True), (3, True), (4, False)])
def test_a_query_whose_source_was_not_up_within_sparks_ten_seconds_starts_again(late: int, ends_well: bool) -> None:
    run = SimpleNamespace(start=lambda: None, close=lambda: None, held=None)
    begun: list[SparkQuery] = []

    def start(write: Callable[[Any, int], None]) -> SparkQuery:
        query = SparkQuery(write)
        if len(begun) < late:
            query.error = TimeoutError("Timed out while waiting for the Python worker to connect back")
        query.stop()
        begun.append(query)
        return query

    pipeline = _pipeline(run, start)
    if ends_well:
        assert pipeline.awaitTermination(_LONG_S)
    else:
        with pytest.raises(PipelineFailed, match="Timed out while waiting for the Python worker"):
            pipeline.awaitTermination(_LONG_S)
    assert len(begun) == min(late, 3) + 1


def test_a_query_that_ends_outside_of_a_batch_with_another_error_is_not_started_again() -> None:
    run = SimpleNamespace(start=lambda: None, close=lambda: None, held=None)
    begun: list[SparkQuery] = []

    def start(write: Callable[[Any, int], None]) -> SparkQuery:
        begun.append(SparkQuery(write))
        begun[-1].error = ValueError("DataLoss")
        begun[-1].stop()
        return begun[-1]

    with pytest.raises(PipelineFailed, match="DataLoss"):
        _pipeline(run, start).awaitTermination(_LONG_S)
    assert len(begun) == 1


@pytest.mark.parametrize("kind", [PipelineFenced, PipelineRefused])
def test_an_idle_query_ends_soon_after_its_sink_is_no_longer_its_own(
    monkeypatch: pytest.MonkeyPatch, kind: type[PipelineError]
) -> None:
    """Another instance has started, or the sink was restored."""
    monkeypatch.setattr(query_module, "_IDLE_CHECK_S", 0.01)
    asked, ends = threading.Semaphore(0), threading.Event()

    def check() -> None:
        asked.release()
        if ends.is_set():
            raise kind("it is another one's", "look")

    closed: list[int] = []
    run = SimpleNamespace(start=lambda: None, close=lambda: closed.append(1), check=check, held=None)
    begun: list[SparkQuery] = []

    def start(write: Callable[[Any, int], None]) -> SparkQuery:
        begun.append(SparkQuery(write))
        return begun[-1]

    pipeline = _pipeline(run, start)
    assert all(asked.acquire(timeout=_LONG_S) for _ in range(3))
    assert pipeline.isActive
    ends.set()
    with pytest.raises(kind, match="it is another one's"):
        pipeline.awaitTermination(_LONG_S)
    assert (len(begun), begun[0].isActive, closed) == (1, False, [1])


def test_a_query_that_writes_a_batch_is_not_asked_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink is used by one thread at a time."""
    monkeypatch.setattr(query_module, "_IDLE_CHECK_S", 0.01)
    monkeypatch.setattr(query_module, "Execution", lambda *_: None)
    is_writing, together, asked = threading.Event(), [], threading.Semaphore(0)

    def batch(_batch: Any) -> None:
        is_writing.set()
        # Of a few periods; what is asked then would be seen.
        time.sleep(0.1)
        is_writing.clear()

    def check() -> None:
        together.append(is_writing.is_set())
        asked.release()

    run = SimpleNamespace(start=lambda: None, close=lambda: None, check=check, batch=batch, held=None)
    begun: list[SparkQuery] = []

    def start(write: Callable[[Any, int], None]) -> SparkQuery:
        begun.append(SparkQuery(write))
        return begun[-1]

    pipeline = _pipeline(run, start)
    begun[0].begin_batch().join(_LONG_S)
    assert all(asked.acquire(timeout=_LONG_S) for _ in range(2))
    pipeline.stop()
    assert begun[0].error is None and not any(together)
