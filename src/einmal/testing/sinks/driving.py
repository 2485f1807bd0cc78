"""One driver under a name, verb by verb, as ``protocol/transaction_run`` would call them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from pathlib import Path
from typing import Any, Final

from einmal.commit_protocol.claims import Output, digest
from einmal.commit_protocol.commit_record import CommitRecord
from einmal.sinks.batch_rows import BatchRows
from einmal.sinks.commit_point import Identity
from einmal.sinks.sink import Opening
from einmal.testing.sinks.hooks import Row, SinkHooks

_BLOCKED_S: Final = 0.5
"""A verb that takes longer waits for a lock of another driver."""
_VERB_S: Final = 120.0

VERBS: Final = ("acquire", "read", "stage", "record", "commit")


def rows_of(batch_id: int, mark: str = "", count: int = 5) -> list[Row]:
    """Rows of ``SCHEMA`` for a batch, each of which is there once; ``mark`` makes those of two attempts differ."""
    return [(batch_id * 1_000 + number, f"row {batch_id}.{number} {mark}'\"") for number in range(count)]


def tables_of(rows: Sequence[Row], tasks: int = 2) -> list[Any]:
    """Arrow tables of ``SCHEMA``, one for each task."""
    import pyarrow

    ids, names = ([row[field] for row in rows] for field in (0, 1))
    table = pyarrow.table({"id": pyarrow.array(ids, pyarrow.int64()), "name": pyarrow.array(names, pyarrow.string())})
    size = -(-len(rows) // tasks)
    return [table.slice(task * size, size) for task in range(tasks)]


def record_of(name: str, batch_id: int, outputs: Sequence[Output] = ()) -> CommitRecord:
    return CommitRecord(
        transactional_id=name,
        query_id="6b2c1f0e-0000-4000-8000-000000000000",
        checkpoint="/checkpoints/battery",
        batch_id=batch_id,
        end=({"words": {"0": batch_id * 5}}, None),
        records=sum(output.count for output in outputs),
        digest=digest(outputs),
        run="token",
    )


class RunUnderTest:
    """``die`` is what becomes of its connections when the process is killed; nothing else of it remains."""

    def __init__(self, hooks: SinkHooks, location: Path, name: str, *, prepares: bool = True) -> None:
        """``prepares``: what is missing is created, as before each start of a pipeline."""
        self.name = name
        self._hooks = hooks
        self._sink = hooks.sink(location)
        if prepares:
            problems = self._sink.problems(name, hooks.batch_rows(tables_of([])).schema)
            assert problems == [], problems
        self.commit_point = self._sink.commit_point(Opening(name=name))
        self.identity: Identity | None = None
        self.outputs: tuple[Output, ...] = ()
        self.last_record: CommitRecord | None = None
        """The last record that this run has read or committed."""
        self._recorded: CommitRecord | None = None

    @property
    def next_batch_id(self) -> int:
        return 0 if self.last_record is None else self.last_record.batch_id + 1

    def acquire(self, held: Identity | None = None) -> None:
        self.identity = self.commit_point.acquire(held)

    def read(self) -> CommitRecord | None:
        self.last_record = self.commit_point.read()
        return self.last_record

    def start(self, held: Identity | None = None) -> CommitRecord | None:
        self.acquire(held)
        return self.read()

    def stage(self, batch_id: int, rows: Sequence[Row]) -> tuple[Output, ...]:
        return self.stage_rows(batch_id, self._hooks.batch_rows(tables_of(rows)))

    def stage_rows(self, batch_id: int, rows: BatchRows) -> tuple[Output, ...]:
        self.outputs = self.commit_point.stage(self.own, batch_id, rows)
        return self.outputs

    def record(self, batch_id: int) -> CommitRecord:
        record = record_of(self.name, batch_id, self.outputs)
        self.commit_point.record(self.own, record)
        self._recorded = record
        return record

    def commit(self) -> None:
        following = self.commit_point.commit(self.own)
        self.last_record = self._recorded
        self._continue_as(following)

    def abort(self, identity: Identity | None = None) -> None:
        self._continue_as(self.commit_point.abort(identity or self.own))

    def write(self, batch_id: int, rows: Sequence[Row]) -> CommitRecord:
        """One whole batch."""
        self.stage(batch_id, rows)
        record = self.record(batch_id)
        self.commit()
        return record

    def perform(self, verb: str, batch_id: int, rows: Sequence[Row]) -> None:
        """One of ``VERBS``, by its name."""
        match verb:
            case "stage":
                self.stage(batch_id, rows)
            case "record":
                self.record(batch_id)
            case _:
                getattr(self, verb)()

    def die(self) -> None:
        self.commit_point.close()
        self._sink.close()

    @property
    def own(self) -> Identity:
        assert self.identity is not None, "acquire comes first"
        return self.identity

    def _continue_as(self, following: Identity | None) -> None:
        self.outputs = ()
        self.identity = following if following is not None else self.commit_point.acquire(self.own)


class ConcurrentRun:
    """A run whose verbs are called by a thread of its own: one that waits for another driver's lock does not stop the
    test. After an error the remaining verbs are not called."""

    clock = itertools.count()
    """Orders the beginnings and ends of all verbs."""

    def __init__(self, run: RunUnderTest) -> None:
        self.run = run
        self.began: dict[str, int] = {}
        self.ended: dict[str, int] = {}
        self.error: Exception | None = None
        self._thread = ThreadPoolExecutor(1)
        self._last: Future[None] | None = None

    def call(self, verb: str, action: Callable[[], Any]) -> None:
        """Returns when the verb has, or when it waits for a lock."""
        self.begin(verb, action)
        assert self._last is not None
        try:
            self._last.result(_VERB_S if verb == "stage" else _BLOCKED_S)
        except NotYet:
            return

    def begin(self, verb: str, action: Callable[[], Any]) -> None:
        """Do not wait."""
        self._last = self._thread.submit(self._perform, verb, action)

    def finish(self) -> None:
        """All verbs have returned."""
        if self._last is not None:
            self._last.result(_VERB_S)

    def close(self) -> None:
        self.finish()
        self._thread.submit(self.run.die).result(_VERB_S)
        self._thread.shutdown()

    def _perform(self, verb: str, action: Callable[[], Any]) -> None:
        if self.error is not None:
            return
        self.began[verb] = next(self.clock)
        try:
            action()
        except Exception as error:  # noqa: BLE001 - any error ends a run
            self.error = error
        else:
            self.ended[verb] = next(self.clock)
