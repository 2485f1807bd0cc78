"""Sinks with one defect each, on SQLite: what the battery must catch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from einmal.commit_protocol.claims import Output
from einmal.commit_protocol.commit_record import CommitRecord, UnreadableCommitRecord
from einmal.options.values import Options
from einmal.sinks import embedded
from einmal.sinks.commit_point import Identity, RowCommitPoint, SinkError, SinkFailed, following
from einmal.sinks.embedded import COMMITS, EmbeddedCommitPoint
from einmal.sinks.sink import Opening
from einmal.sinks.sqlite import SQLiteSink
from einmal.sinks.staged_files import StagedFile, StagedFiles


class _Broken(EmbeddedCommitPoint):
    """Only gives access to what the defects need, and lacks the second defence: a record that is not the last one of
    this run ends it, which hides most defects."""

    def record(self, identity: Identity, record: CommitRecord | None) -> None:
        self._last = None
        super().record(identity, record)

    def _in_another_transaction(self, statement: str, values: Sequence[Any]) -> None:
        with self._connection() as connection:
            connection.execute(statement, list(values))


class WithoutEpoch(_Broken):
    """The epoch is not compared."""

    def _compare(self, connection: Any, _identity: Identity) -> tuple[Any, ...]:
        row = embedded._row(connection, self._name)
        assert row is not None
        return row


class ComparedTooEarly(_Broken):
    """The epoch is compared before the transaction, not in it."""

    def record(self, identity: Identity, record: CommitRecord | None) -> None:
        with self._connection() as connection:
            super()._compare(connection, identity)
        # As if the rows were loaded here.
        time.sleep(0.005)
        self._is_recording = True
        try:
            super().record(identity, record)
        finally:
            self._is_recording = False

    _is_recording = False

    def _compare(self, connection: Any, identity: Identity) -> tuple[Any, ...]:
        if not self._is_recording:
            return super()._compare(connection, identity)
        row = embedded._row(connection, self._name)
        assert row is not None
        return row


class RecordBefore(_Broken):
    """The record is in a transaction of its own, before that of the rows."""

    def record(self, identity: Identity, record: CommitRecord | None) -> None:
        text = None if record is None else record.encode().decode()
        self._in_another_transaction(f"UPDATE {COMMITS} SET record = ? WHERE pipeline = ?", [text, self._name])
        super().record(identity, record)


class RecordAfter(_Broken):
    """The record is in a transaction of its own, after that of the rows."""

    _text: str | None = None

    def record(self, identity: Identity, record: CommitRecord | None) -> None:
        self._text = None if record is None else record.encode().decode()
        with self._connection() as connection:
            row = embedded._row(connection, self._name)
        super().record(identity, record)
        assert row is not None
        self._transaction.execute(f"UPDATE {COMMITS} SET record = ? WHERE pipeline = ?", [row[1], self._name])
        self._transaction.execute("COMMIT")
        self._transaction.execute("BEGIN IMMEDIATE")

    def commit(self, identity: Identity) -> Identity:
        if self._transaction is not None:
            self._transaction.execute(f"UPDATE {COMMITS} SET record = ? WHERE pipeline = ?", [self._text, self._name])
        return super().commit(identity)


class CommitsWhileStaging(_Broken):
    """Rows are visible when they are staged."""

    def stage(self, identity: Identity, batch_id: int, frame: Any) -> tuple[Output, ...]:
        outputs = super().stage(identity, batch_id, frame)
        with self._connection() as connection:
            self._database.load(connection, self._table, self._files.compared(identity))
        return outputs

    def record(self, identity: Identity, record: CommitRecord | None) -> None:
        self._files._reported.pop(identity, None)
        super().record(identity, record)


class WithoutCounts(_Broken):
    """The number of staged rows is not compared with what the tasks have reported."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._files.compared = lambda identity: tuple(  # type: ignore[method-assign]
            file for file in self._files._reported.get(identity, ()) if file.path.exists()
        )

    def record(self, identity: Identity, record: CommitRecord | None) -> None:
        with contextlib.suppress(SinkFailed):
            super().record(identity, record)


class AllFiles(_Broken):
    """Every staged file is loaded, not only those of attempts that count."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        compared = self._files.compared

        def all_files(identity: Identity) -> tuple[StagedFile, ...]:
            counted = compared(identity)
            if not counted:
                return ()
            others = sorted(set(counted[0].path.parent.glob("*.parquet")) - {file.path for file in counted})
            return counted + tuple(_described(path) for path in others)

        self._files.compared = all_files  # type: ignore[method-assign]


class KeepsStaging(_Broken):
    """What a dead predecessor has staged stays."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._files.discard_before = lambda epoch: None  # type: ignore[method-assign]


class RemovesAllStaging(_Broken):
    """What other pipelines have staged is removed, too."""

    def acquire(self, held: Identity | None) -> Identity:
        identity = super().acquire(held)
        for home in self._files._home.parent.glob("*"):
            other = StagedFiles(home.parent, self._name)
            other._home = home
            if home != self._files._home:
                other.discard_before(2**31)
        return identity


class AbortsHalf(_Broken):
    """An abort leaves what is staged."""

    def abort(self, identity: Identity) -> Identity:
        self._rollback()
        return following(identity)


class SameIdentity(_Broken):
    """Two transactions have one identity."""

    def commit(self, identity: Identity) -> Identity:
        super().commit(identity)
        return identity


class EpochsBeginAgain(_Broken):
    """A name that was deleted begins with its first epoch again."""

    def acquire(self, held: Identity | None) -> Identity:
        with contextlib.suppress(SinkFailed):
            self._in_another_transaction(
                f"UPDATE {COMMITS} SET epoch = coalesce((SELECT epoch FROM {COMMITS} WHERE pipeline = ?), 0) "
                "WHERE pipeline = ''",
                [self._name],
            )
        return super().acquire(held)


class TrustsHeldIdentities(_Broken):
    """A restart in the same process fences a newer driver."""

    def acquire(self, held: Identity | None) -> Identity:
        return super().acquire(None)

    def abort(self, identity: Identity) -> Identity:
        self._files.discard(identity)
        return following(identity)


class FoldsNames(_Broken):
    """Names that differ in case only are one pipeline."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._name = self._name.lower()


class TakesAnyRecord(_Broken):
    """An idle run goes by whatever record the sink has."""

    def record(self, identity: Identity, record: CommitRecord | None) -> None:
        EmbeddedCommitPoint.record(self, identity, record)

    def check(self, identity: Identity) -> None:
        with contextlib.suppress(UnreadableCommitRecord):
            self.read()


class LookFences(_Broken):
    """Looking at the record acquires the name."""

    def look(self) -> CommitRecord | None:
        with contextlib.suppress(SinkError):
            self.acquire(None)
        return super().look()


class ForgetsNothing(_Broken):
    """A deleted record is still there."""

    def record(self, identity: Identity, record: CommitRecord | None) -> None:
        super().record(identity, record)
        if record is None:
            self.abandon()
            self._transaction = self._database.connect()
            self._database.begin(self._transaction)

    def forget(self) -> None:
        self.acquire(None)


class HidesDamage(_Broken):
    """A record that cannot be read is none."""

    def look(self) -> CommitRecord | None:
        return _or_none(super().look)

    def read(self) -> CommitRecord | None:
        return _or_none(super().read)


MUTANTS: dict[type[_Broken], str] = {
    WithoutEpoch: "test_older_driver_commits_in_no_order_of_the_verbs",
    ComparedTooEarly: "test_commit_and_acquire_at_once_have_one_winner",
    RecordBefore: "test_rows_and_record_become_visible_together",
    RecordAfter: "test_rows_and_record_become_visible_together",
    CommitsWhileStaging: "test_rows_and_record_become_visible_together",
    WithoutCounts: "test_lost_staged_rows_are_found_missing",
    AllFiles: "test_rows_of_an_attempt_that_does_not_count_are_not_taken",
    KeepsStaging: "test_run_that_ends_after_a_verb_leaves_the_batch_whole:stage",
    RemovesAllStaging: "test_staged_rows_of_another_pipeline_are_left_alone",
    AbortsHalf: "test_aborted_batch_is_written_again_by_the_same_run:stage",
    SameIdentity: "test_every_transaction_has_an_identity_of_its_own",
    EpochsBeginAgain: "test_driver_of_before_a_deleted_record_commits_no_more",
    TrustsHeldIdentities: "test_restart_with_a_held_identity_does_not_fence_a_newer_driver",
    FoldsNames: "test_every_name_has_a_record_of_its_own",
    TakesAnyRecord: "test_driver_does_not_continue_above_another_record:idle",
    LookFences: "test_look_fences_nobody",
    ForgetsNothing: "test_forgotten_name_leaves_no_record",
    HidesDamage: "test_damaged_record_is_reported_and_can_be_replaced",
}
"""The test that catches each, with its parameter."""


class BrokenSink(SQLiteSink):
    def __init__(self, options: Options, kind: type[_Broken]) -> None:
        super().__init__(options)
        self._kind = kind

    def commit_point(self, opening: Opening) -> RowCommitPoint:
        return self._kind(self._database, self._table, self._staging, opening, self._errors)


def _described(path: Any) -> StagedFile:
    from google_crc32c import value
    from pyarrow import parquet

    data = path.read_bytes()
    return StagedFile(path, parquet.read_metadata(path).num_rows, len(data), value(data))


def _or_none(read: Any) -> CommitRecord | None:
    with contextlib.suppress(UnreadableCommitRecord):
        return read()  # type: ignore[no-any-return]
    return None
