"""The ingester's side of every conversation: which step comes next, whatever has just happened.

Theory of operation. One Kafka transaction holds the records of one batch of the source, and the commit record with the
position behind them. So the position that a start finds is exactly that of the records that readers see.

    start    look at the record  ->  acquire the transactional.id  ->  read the record  ->  compare the origin
             ->  restore the keys  ->  confirm the recorded position  ->  open the source there
    batch    read a batch  ->  append its records  ->  commit record  ->  EndTxn  ->  confirm the position

Invariants, and the ordering that keeps them:

1. *The transaction is the pipeline's.* ``commit_protocol.committer`` decides start, epochs and fencing. An ingester is
   a stateless query whose checkpoint is always fresh: each run resumes at the commit record's end.
2. *A batch is written by one attempt.* Its records are gone once they were read, and what the source returns the second
   time may be cut elsewhere, so that the position that was planned would not be theirs. Whatever fails inside a
   transaction therefore aborts it and ends the run; the next run reads again, from the recorded position.
3. *A position is confirmed only after EndTxn is answered*, or read from the record for certain. Until then the
   transaction may be aborted, and the source must have what it contains. A process that dies in between leaves the
   source behind, never ahead: each start confirms again.
4. *A position belongs to one origin*, which is part of the record and compared before anything is read: an address may
   lead to another server, and a directory to another file system.
5. *The keys that duplicates are found by are those of committed records.* They are restored after the transactional.id
   is acquired, because only then every transaction before has ended. What a batch adds to them is recorded in its own
   transaction, and counts once that is committed.

The machine performs nothing: each effect is answered by one event through ``step``, until the effect is IngestStops.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from einmal.commit_protocol import effects as protocol
from einmal.commit_protocol.batch_plan import Batch
from einmal.commit_protocol.commit_record import CommitRecord, ingester_checkpoint
from einmal.commit_protocol.committer import Committer
from einmal.commit_protocol.conversation import RunEnded, converse
from einmal.commit_protocol.run_state import Held, Query
from einmal.ingest.effects import (
    AppendRecords,
    AskOrigin,
    BatchFound,
    ConfirmPosition,
    Idle,
    IngestEffect,
    IngestEvent,
    IngestStops,
    NextPart,
    NothingNew,
    OpenSource,
    OriginKnown,
    RecordsAppended,
    RestoreKeys,
    SourceDown,
    SourceEnded,
    SourceStops,
)
from einmal.ingest.source import Position
from einmal.types import ProducerIdAndEpoch

ORIGIN: Final = "origin"
POSITION: Final = "position"
WINDOW: Final = "window"
_NAMED_MAX: Final = 200
_HINT_LASTING: Final = (
    "nothing of the batch is visible to read_committed: correct what the error names, and start again"
)
_E = TypeVar("_E")
_Steps = Generator[IngestEffect, IngestEvent, _E]


def transactional_id(name: str) -> str:
    """That of the ingester of this name."""
    return f"einmal-ingest-{name}"


def recorded(record: CommitRecord) -> tuple[str, Mapping[str, Any]]:
    """Origin and position of an ingester's commit record. Raises ValueError for one of something else."""
    match record.end:
        case ({"origin": str(origin), "position": dict(position)},):
            return origin, position
    raise ValueError(f"the commit record of {record.transactional_id!r} is not of an ingester")


def recorded_window(record: CommitRecord | None) -> Any:
    """Return what an ingester's commit record keeps of the window of business keys; None: nothing."""
    return None if record is None else record.end[0].get(WINDOW)


class IngestMachine:
    """One run of one ingester. Not reusable after IngestStops."""

    def __init__(self, name: str, run: str, held: Held | None = None) -> None:
        """``run``: the name of this run, which no other run has. ``held``: by the run before it in this process."""
        self._id = transactional_id(name)
        self._run_name = run
        self._checkpoint = ingester_checkpoint(name)
        query = Query(
            transactional_id=self._id, query_id=run, checkpoint=self._checkpoint, is_fresh=True, stateful=False
        )
        self._committer = Committer(query, held)
        self._failure: RunEnded | None = None
        """Failure of the source while its records were written, or one that every other run would meet."""
        self._steps = self._run()

    @property
    def held(self) -> Held | None:
        """The identity of this run, for a restart."""
        return self._committer.held

    @property
    def record(self) -> CommitRecord | None:
        """The last committed record that is known for certain."""
        return self._committer.record

    def start(self) -> IngestEffect:
        """Begin the run."""
        return next(self._steps)

    def step(self, event: IngestEvent) -> IngestEffect:
        """The answer to the last effect."""
        if isinstance(event, protocol.Failed):
            if event.will_again:
                self._failure = RunEnded(event.reason, _HINT_LASTING)
            # See invariant 2: the committer must not make a second attempt.
            event = replace(event, will_again=True)
        return self._steps.send(event)

    # --- the run --------------------------------------------------------------------------------------------------

    def _run(self) -> _Steps[None]:
        try:
            yield from converse(self._committer, self._committer.start(), partial(self._write, {}))
            origin, position = yield from self._position()
            record = self._committer.record
            yield from self._ask(RestoreKeys(recorded_window(record), is_first=record is None))
            if position is not None:
                yield from self._ask(ConfirmPosition(position))
            yield from self._ask(OpenSource(position))
            while True:
                yield from self._next(origin)
        except RunEnded as end:
            yield IngestStops(end.reason, end.hint, end.may_restart)

    def _position(self) -> _Steps[tuple[str, Position | None]]:
        event = yield from self._ask(AskOrigin())
        assert isinstance(event, OriginKnown)
        origin = event.origin
        record = self._committer.record
        if record is None:
            return origin, None
        try:
            known, position = recorded(record)
        except ValueError as error:
            raise RunEnded(str(error), f"{self._id!r} belongs to a pipeline: give the ingester another name") from error
        if known not in (origin, *event.former):
            raise RunEnded(
                f"the source is {origin:.{_NAMED_MAX}}, but the recorded position is one of {known:.{_NAMED_MAX}}",
                f"read the source that {self._id!r} has read, or ingest this one under another name",
            )
        return origin, position

    def _next(self, origin: str) -> _Steps[None]:
        """The next batch, or a pause."""
        event = yield from self._ask(NextPart())
        match event:
            case BatchFound(end):
                position = self._checked(end)
                yield from self._transact(origin, position)
                yield from self._ask(ConfirmPosition(position))
            case NothingNew():
                yield Idle()
            case SourceEnded():
                yield IngestStops("the source has ended", "", may_restart=False, is_done=True)
            case _:
                raise AssertionError(event)

    def _checked(self, end: Position) -> dict[str, Any]:
        """As it will be read from the record: a source must not depend on what JSON does not keep."""
        try:
            position = json.loads(json.dumps(end, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise RunEnded(f"the source's position is not JSON: {error}", "this is a bug of the source") from error
        if not isinstance(position, dict) or position != end:
            raise RunEnded(
                f"the source's position changes when it is written as JSON: {end!r:.{_NAMED_MAX}}",
                "use dictionaries with text as keys, lists, text, whole numbers; this is a bug of the source",
            )
        return position

    def _transact(self, origin: str, position: Mapping[str, Any]) -> _Steps[None]:
        record = self._committer.record
        end = {ORIGIN: origin, POSITION: position}
        batch = Batch(
            query_id=self._run_name,
            checkpoint=self._checkpoint,
            batch_id=0 if record is None else record.batch_id + 1,
            start=None if record is None else record.end,
            end=(end,),
            run=self._run_name,
        )
        try:
            yield from converse(self._committer, self._committer.batch(batch), partial(self._write, end))
        except RunEnded as end:
            # The committer knows only that the batch is aborted.
            raise self._failure or end from None

    def _write(self, end: Mapping[str, Any], identity: ProducerIdAndEpoch) -> _Steps[IngestEvent]:
        event = yield AppendRecords(identity)
        if isinstance(event, RecordsAppended):
            window = {} if event.window is None else {WINDOW: event.window}
            return protocol.Acknowledged(event.outputs, end=({**end, **window},))
        if isinstance(event, SourceDown | SourceStops):
            self._failure = _ended(event)
            return protocol.Failed(event.reason, will_again=True)
        return event

    def _ask(self, effect: IngestEffect) -> _Steps[IngestEvent]:
        event = yield effect
        if isinstance(event, SourceDown | SourceStops):
            raise _ended(event)
        return event


def _ended(event: SourceDown | SourceStops) -> RunEnded:
    return RunEnded(event.reason, event.hint, may_restart=isinstance(event, SourceDown))
