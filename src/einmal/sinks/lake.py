"""A lake table as a sink: data files first, then one commit of the table that has them and the record.

What Delta Lake and Iceberg share; each of them is a ``LakeTable``. A commit of the table names the snapshot that it was
prepared on, and fails if there is a later one. So the epoch is compared on the very snapshot that the commit follows:

    acquire   snapshot -> next epoch, committed alone; a conflict begins again
    record    epoch compared; staged files are moved below the table's directory, where no snapshot names them
    commit    snapshot -> epoch and columns compared -> files and record committed on this snapshot; a conflict begins
              again

Every try of a commit is one request, whose refusal is certain; the libraries' own retries, which would put the commit
on a snapshot that nobody has checked, are switched off. An error of a commit that is no refusal is resolved by
reading: its identity is nobody else's. One of ``acquire`` is not: a driver that acquires the name at the same time
makes the same state, and would be taken for this one.

The state of a name in the table also has the identity of the last transaction that was committed under it. A successor
removes moved files only of transactions *after* that one, and only once its own epoch is committed: until then a
catalog may still receive the commit that names them. Whatever is earlier is committed or was removed by its own run.
"""

from __future__ import annotations

import contextlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final

from einmal.commit_protocol.claims import Output
from einmal.commit_protocol.commit_record import CommitRecord, UnreadableCommitRecord
from einmal.options.values import OptionError, Options
from einmal.pipeline import events
from einmal.pipeline.errors import PipelineRefused
from einmal.sinks import stored_record
from einmal.sinks.batch_rows import BatchRows
from einmal.sinks.commit_point import (
    Committed,
    Identity,
    OutcomeUnknown,
    RowCommitPoint,
    SinkError,
    SinkFailed,
    SinkFenced,
    following,
)
from einmal.sinks.row_schema import ArrayRowType, MapRowType, RowSchema, RowType
from einmal.sinks.sink import Opening, RowSink
from einmal.sinks.staged_files import FieldIds, StagedFile, StagedFiles
from einmal.types import ProducerEpoch, ProducerId

_TRIES_MAX: Final = 100
"""Commits of other writers that one of ours lets pass."""
_PAUSE_S: Final = 0.01
_KEPT: Final = frozenset(
    [
        "boolean",
        "byte",
        "short",
        "integer",
        "long",
        "float",
        "double",
        "decimal",
        "string",
        "binary",
        "date",
        "timestamp",
        "timestamp_ntz",
    ]
)
"""Types, by Spark's names, that data files keep as they are."""
NULLABILITY: Final = ("nullable", "containsNull", "valueContainsNull")
"""Fields of a type as JSON."""
STAGING: Final = "_einmal"
"""Below the table's directory: readers and VACUUM ignore names that begin so."""


@dataclass(frozen=True, slots=True)
class LakeState:
    """State of a name in a table. ``committed``: the last transaction with rows or a record; ``record``: the
    text of the commit record."""

    epoch: int = 0
    committed: Identity = Identity(ProducerId(-1), ProducerEpoch(-1))
    record: str | None = None
    timestamp_ms: int = 0
    is_forgotten: bool = False
    """Only of a commit: it removes the state, and no epoch of the name is granted again."""


class SnapshotSuperseded(Exception):
    """Somebody has committed since the snapshot; nothing was written."""


class LakeTable(ABC):
    """One table. ``snapshot`` is what the library has loaded; every method raises what the library raises."""

    ignores_case: ClassVar[bool] = False
    """Whether no two columns, and no two fields of a struct, may differ in case alone."""

    @property
    @abstractmethod
    def label(self) -> str:
        """The table, for a reader."""

    @property
    @abstractmethod
    def root(self) -> Path:
        """The directory of the table, which exists."""

    @property
    def data(self) -> Path:
        """The directory of its data files."""
        return self.root

    @abstractmethod
    def load(self) -> Any:
        """The newest snapshot; None: there is no table."""

    @abstractmethod
    def state(self, snapshot: Any, name: str) -> LakeState:
        """Return the state of a name that may be new."""

    def next_epoch(self, snapshot: Any, name: str) -> int:
        """The lowest that nobody can have been granted."""
        return self.state(snapshot, name).epoch + 1

    @abstractmethod
    def names(self, snapshot: Any) -> Sequence[str]:
        """All names that have a state."""

    @abstractmethod
    def identity(self, snapshot: Any) -> str:
        """The table's own."""

    def owner(self, snapshot: Any) -> str:
        """Return the id by which tables differ that have one directory, one after the other; empty: only one can."""
        return ""

    def field_ids(self, snapshot: Any) -> FieldIds:
        """Return the numbers by which readers find the columns in a file; none where they go by names."""
        return {}

    @abstractmethod
    def commit(self, snapshot: Any, name: str, state: LakeState, files: Sequence[StagedFile]) -> None:
        """One try on this snapshot. Raises SnapshotSuperseded, and SinkFailed where nothing was sent."""

    def clear(self, name: str) -> None:
        """Remove what is in the directory of a name that was forgotten. Raises OSError."""
        return

    @abstractmethod
    def create(self, schema: RowSchema) -> None:
        """The table, for rows of this schema."""

    @abstractmethod
    def differences(self, snapshot: Any, schema: RowSchema) -> list[tuple[str, str]]:
        """Why rows of this schema cannot be appended: what is wrong, and a hint."""


class LakeCommitPoint(RowCommitPoint):
    def __init__(self, table: LakeTable, opening: Opening) -> None:
        self._table = table
        self._name = opening.name
        self._notify = opening.notify
        self._epoch: ProducerId | None = None
        self._schema: RowSchema | None = None
        """Columns of the rows that were staged last."""
        self._ids: FieldIds = {}
        """Numbers that these have in their files."""
        self._recorded: tuple[Identity, str | None] | None = None
        """The open transaction, and its record."""
        self._published: tuple[StagedFile, ...] = ()
        self._staged: StagedFiles | None = None
        self._owner: str | None = None
        """See ``LakeTable.owner``: of the table that this run has acquired."""
        self._last: stored_record.Known | None = None
        """The record that this run has read or committed, encoded; None: it has done neither."""

    def look(self) -> CommitRecord | None:
        with library_errors():
            snapshot = self._table.load()
            if snapshot is None:
                return None
            return stored_record.decoded(self._name, self._table.state(snapshot, self._name).record)

    def acquire(self, held: Identity | None) -> Identity:
        def next_epoch(snapshot: Any, state: LakeState) -> LakeState:
            if held is not None:
                _compare(self._name, state, held)
            return replace(state, epoch=self._table.next_epoch(snapshot, self._name))

        state = self._commit(next_epoch, (), is_own=lambda _: False)
        self._epoch, self._last = ProducerId(state.epoch), None
        with library_errors():
            files = self._files()
            for identity in files.transactions(state.epoch):
                self._remove(files, identity, state)
            if self._owner:
                # Of releases that did not distinguish the tables: what these have moved may be another table's.
                self._files_of("").discard_before(state.epoch)
        return Identity(self._epoch, ProducerEpoch(0))

    def read(self) -> CommitRecord | None:
        assert self._epoch is not None, "read follows acquire"
        with library_errors():
            state = self._current(Identity(self._epoch, ProducerEpoch(0)))
            self._last = (state.record,)
            return stored_record.decoded(self._name, state.record)

    def check(self, identity: Identity) -> None:
        with library_errors():
            self._compare_record(self._current(identity))

    def stage(self, identity: Identity, batch_id: int, rows: BatchRows) -> tuple[Output, ...]:
        with library_errors():
            snapshot, _ = self._snapshot(identity)
            self._schema = rows.schema
            self._check(snapshot)
            self._ids = self._ids_in(snapshot)
            files = self._files()
            files.check_unpublished(identity, batch_id, self._table.data)
        outputs = files.write(rows, self._table.label, identity, batch_id, self._ids)
        for output in outputs:
            self._notify(events.PartitionWritten(batch_id, output.topic, output.partition, output.count))
        return outputs

    def record(self, identity: Identity, record: CommitRecord | None) -> None:
        assert self._recorded is None, "one transaction at a time"
        with library_errors():
            self._current(identity)
            self._published = self._files().publish(identity, self._table.data)
        self._recorded = identity, None if record is None else record.encode().decode()

    def commit(self, identity: Identity) -> Identity:
        if self._recorded is None or self._recorded[0] != identity:
            raise SinkFailed("no transaction is open")
        record = self._recorded[1]

        def committed(snapshot: Any, state: LakeState) -> LakeState:
            _compare(self._name, state, identity)
            self._compare_record(state)
            if self._published:
                # The table may have been altered since the rows were staged.
                self._check(snapshot)
                if self._ids_in(snapshot) != self._ids:
                    raise SinkFailed(f"a column of {self._table.label} was replaced by another one of its name")
            return LakeState(state.epoch, identity, record, time.time_ns() // 1_000_000)

        try:
            self._commit(committed, self._published, is_own=self._has)
        except (SinkFenced, OutcomeUnknown, PipelineRefused):
            self.abandon()
            raise
        self._last = (record,)
        self.abandon()
        # The outcome is known. What cannot be removed now is removed by the next run.
        with contextlib.suppress(OSError):
            self._files().discard(identity)
        return following(identity)

    def abort(self, identity: Identity) -> Identity:
        self.abandon()
        with library_errors():
            state = self._current(identity)
            files = self._files()
            if self._epoch is None and identity not in files.transactions(identity.producer_id + 1):
                raise SinkFailed(f"nothing is open under epoch {identity.producer_id}")
            # The commit of the run before this one may still name what that has moved: ``acquire`` removes it.
            if self._epoch is not None or not files.is_published(identity, self._table.data):
                self._remove(files, identity, state)
        return following(identity)

    def forget(self) -> None:
        identity = self.acquire(None)

        def forgotten(_snapshot: Any, state: LakeState) -> LakeState:
            _compare(self._name, state, identity)
            return LakeState(state.epoch, is_forgotten=True)

        self._commit(forgotten, (), is_own=lambda _: False)
        # What cannot be removed now is in nobody's way.
        with contextlib.suppress(OSError):
            self._table.clear(self._name)
            self._files().clear()

    def abandon(self) -> None:
        self._recorded, self._published = None, ()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _files(self) -> StagedFiles:
        if self._staged is None:
            assert self._owner is not None, "a snapshot was loaded"
            self._staged = self._files_of(self._owner)
        return self._staged

    def _files_of(self, owner: str) -> StagedFiles:
        files = StagedFiles(self._table.root / STAGING / "staging", self._name, strict=True)
        if owner:
            files.belong_to(owner)
        return files

    def _current(self, identity: Identity) -> LakeState:
        """Raises SinkFenced where the epoch is another one."""
        return self._snapshot(identity)[1]

    def _snapshot(self, identity: Identity) -> tuple[Any, LakeState]:
        snapshot = self._table.load()
        state = LakeState() if snapshot is None else self._state(snapshot)
        _compare(self._name, state, identity)
        return snapshot, state

    def _state(self, snapshot: Any) -> LakeState:
        """Raises PipelineRefused where it is of another table."""
        owner = self._table.owner(snapshot)
        if self._owner not in (None, owner):
            raise PipelineRefused(
                f"{self._table.label} is another table than the one that this run has acquired: it was renamed or "
                "dropped, and created again",
                "start the pipeline again: it compares its checkpoint with the table, and reports what to do",
            )
        self._owner = owner
        return self._table.state(snapshot, self._name)

    def _compare_record(self, state: LakeState) -> None:
        """Raises PipelineRefused."""
        cause = "the table was rolled back or restored"
        stored_record.compare(self._name, self._last, state.record, self._table.label, cause)

    def _check(self, snapshot: Any) -> None:
        """Raises SinkFailed where the staged rows cannot be appended to this snapshot."""
        assert self._schema is not None, "rows were staged"
        if problems := _unwritable(self._schema, self._table) or self._table.differences(snapshot, self._schema):
            reason = "; ".join(f"{problem} ({hint})" for problem, hint in problems)
            raise SinkFailed(reason, will_again=True)

    def _ids_in(self, snapshot: Any) -> FieldIds:
        assert self._schema is not None, "rows were staged"
        return {
            path: number for path, number in self._table.field_ids(snapshot).items() if path[0] in self._schema.names
        }

    def _commit(
        self,
        change: Callable[[Any, LakeState], LakeState],
        files: Sequence[StagedFile],
        *,
        is_own: Callable[[LakeState], bool],
    ) -> LakeState:
        """Commit what ``change`` makes of a snapshot and its state, on this snapshot. ``is_own``: whether the table has
        this state, and it can only be of this commit. Raises SinkFailed, OutcomeUnknown, and what ``change``
        raises."""
        refusal: SnapshotSuperseded | None = None
        for _ in range(_TRIES_MAX):
            with library_errors():
                snapshot = self._table.load()
                if snapshot is None:
                    raise SinkFailed(f"there is no table {self._table.label}")
                state = change(snapshot, self._state(snapshot))
            try:
                self._table.commit(snapshot, self._name, state, files)
            except SnapshotSuperseded as error:
                refusal = error
                if is_own(state):
                    # A request that the library repeated met its own commit.
                    return state
                time.sleep(_PAUSE_S)
            except SinkFailed:
                raise
            except Exception as error:
                if not is_own(state):
                    raise OutcomeUnknown(f"commit of {self._table.label}: {error}") from error
                return state
            else:
                return state
        raise SinkFailed(
            f"{self._table.label} refused {_TRIES_MAX} commits, as if each came after one of another writer: {refusal}"
        )

    def _has(self, state: LakeState) -> bool:
        """Whether an error came after its commit."""
        try:
            snapshot = self._table.load()
            return snapshot is not None and self._table.state(snapshot, self._name) == state
        except Exception:  # noqa: BLE001 - the commit's own error is reported
            return False

    def _remove(self, files: StagedFiles, identity: Identity, state: LakeState) -> bool:
        """Remove what a transaction without a known outcome has staged, and moved if it is not committed."""
        if identity > state.committed:
            files.unpublish(identity, self._table.data)
        return files.discard(identity)


class LakeSink(RowSink):
    """See ``LakeTable``."""

    @property
    @abstractmethod
    def lake_table(self) -> LakeTable:
        """Opened by the first question."""

    @property
    def table(self) -> str:
        return self.lake_table.label

    def commit_point(self, opening: Opening) -> RowCommitPoint:
        return LakeCommitPoint(self.lake_table, opening)

    def identity(self) -> str | None:
        with library_errors():
            snapshot = self.lake_table.load()
            return None if snapshot is None else self.lake_table.identity(snapshot)

    def problems(self, name: str, schema: RowSchema | None) -> list[tuple[str, str]]:
        with library_errors():
            if schema is not None:
                return prepare_table(self.lake_table, schema)
            if self.lake_table.load() is None:
                hint = "create it: the columns of its rows are known only with the first batch"
                return [(f"there is no table {self.lake_table.label}", hint)]
            return []

    def committed(self) -> Mapping[str, Committed]:
        with library_errors():
            table = self.lake_table
            snapshot = table.load()
            states = {} if snapshot is None else {name: table.state(snapshot, name) for name in table.names(snapshot)}
        return {
            name: stored_record.committed(name, state.record, state.timestamp_ms)
            for name, state in sorted(states.items())
            if state.record is not None
        }


def mounted_directory(options: Options, example: str) -> Path:
    """Return the directory that option ``path`` names, as an absolute path. Raises OptionError for a URL."""
    path = options.required("path", example)
    if "://" in path:
        raise OptionError(
            f'option "path" is a directory, not {path!r}\n'
            f"hint: name a directory that the driver and all executors mount, such as {example}; object stores are not "
            "supported"
        )
    return Path(path).absolute()


def without_nullability(kind: Any) -> Any:
    """A type as JSON, without what may differ between rows and table."""
    if isinstance(kind, dict):
        skipped = (*NULLABILITY, "metadata")
        return {name: without_nullability(value) for name, value in kind.items() if name not in skipped}
    return [without_nullability(field) for field in kind] if isinstance(kind, list) else kind


def prepare_table(table: LakeTable, schema: RowSchema) -> list[tuple[str, str]]:
    """Create the table if it does not exist; what is wrong with it for rows of this schema."""
    if problems := _unwritable(schema, table):
        return problems
    if (snapshot := table.load()) is None:
        table.create(schema)
        snapshot = table.load()
    return table.differences(snapshot, schema)


def _unwritable(schema: RowSchema, table: LakeTable) -> list[tuple[str, str]]:
    """Return the problems of what no file of a lake table can have: found before the table is created, where they would
    be for good."""
    if not schema.names:
        return [("the rows have no columns", "select some")]
    why = ": the table ignores case" if table.ignores_case else ""
    twice = sorted(set(_twice(schema, "", ignores_case=table.ignores_case)))
    problems = [(f"there are two columns {name!r}{why}", "rename one") for name in twice]
    for field in schema:
        if "\0" in field.name or not field.name:
            problems.append((f"no column can be named {field.name!r}", "rename it"))
        if (kind := _without_counterpart(field.type)) is not None:
            what = f"column {field.name!r} has type {field.type}: no lake table keeps {kind}"
            problems.append((what, "cast it to the type that it is to have, or drop it"))
    return problems


def _twice(kind: RowType, path: str, *, ignores_case: bool) -> Iterator[str]:
    """The columns, and fields of structs, that have the name of another one."""
    match kind:
        case RowSchema():
            names = [name.lower() if ignores_case else name for name in kind.names]
            yield from (f"{path}{name}" for name in names if names.count(name) > 1)
            for field in kind:
                yield from _twice(field.type, f"{path}{field.name}.", ignores_case=ignores_case)
        case ArrayRowType():
            yield from _twice(kind.element, path, ignores_case=ignores_case)
        case MapRowType():
            yield from _twice(kind.key, path, ignores_case=ignores_case)
            yield from _twice(kind.value, path, ignores_case=ignores_case)


def _without_counterpart(kind: RowType) -> str | None:
    """The first type in this one that is not kept: ``void``, of a NULL without a type, is one."""
    match kind:
        case RowSchema():
            inner = [field.type for field in kind]
            return next(filter(None, map(_without_counterpart, inner)), None) if inner else "a struct without fields"
        case ArrayRowType():
            return _without_counterpart(kind.element)
        case MapRowType():
            return next(filter(None, map(_without_counterpart, (kind.key, kind.value))), None)
    return None if kind.kind in _KEPT else str(kind)


def _compare(name: str, state: LakeState, identity: Identity) -> None:
    """Raises SinkFenced, PipelineRefused."""
    stored_record.compare_epoch(name, identity.producer_id, state.epoch, "the table")
    if state.epoch != identity.producer_id:
        raise SinkFenced(
            f"epoch {state.epoch} of {name!r} was acquired since this run acquired epoch {identity.producer_id}"
        )


@contextlib.contextmanager
def library_errors() -> Iterator[None]:
    """Errors of a library as those of a sink."""
    try:
        yield
    except (SinkError, PipelineRefused, UnreadableCommitRecord, SnapshotSuperseded, AssertionError):
        raise
    except Exception as error:
        raise SinkFailed(f"{type(error).__name__}: {error}") from error


def state_as_json(state: LakeState) -> str:
    """All of a state but its epoch."""
    return json.dumps({"committed": list(state.committed), "record": state.record, "timestamp_ms": state.timestamp_ms})
