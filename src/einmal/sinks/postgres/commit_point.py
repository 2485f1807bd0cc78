"""The verbs of a sink on PostgreSQL: one run of a pipeline under one name.

    look     SELECT
    acquire  the next epoch, for this holder; waits for a COMMIT under way; removes what earlier epochs staged
    read     SELECT ... FOR SHARE, which waits, too
    stage    compare the epoch under FOR SHARE, create the staging table; tasks COPY, each in a transaction of its own
    record   BEGIN; SELECT ... FOR UPDATE: compare epoch, holder and record; INSERT or MERGE; count; record the rows
             that were rejected, where they are tolerated; update the record
    commit   COMMIT

Invariants, and the ordering that keeps them:

1. *The record that is replaced is the one that this run has read or written.* A standby that was promoted may have an
   older one, or an older epoch; a run that survived the failover must not continue above it: rows would be missing.
2. *No staging table is created by a fenced driver.* It is created under FOR SHARE of the row that ``acquire`` changes.
   So the successor, who looks for staging tables after ``acquire``, sees every table of its predecessors.
3. *A COMMIT is undecided unless the server refuses it in a session that lives on.* A session that is terminated while
   it waits for a synchronous standby has committed.
4. *Nobody waits for a dead driver for ever.* The server notices a broken connection; and ``acquire`` ends a session of
   an earlier epoch that holds the row for longer than a COMMIT takes. That session is fenced: it can lose a transaction
   that could still have committed, as with InitProducerId, and its rows are written again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import psycopg

from einmal.commit_protocol.claims import Output
from einmal.commit_protocol.commit_record import CommitRecord
from einmal.event_log import EventLog
from einmal.pipeline import events
from einmal.pipeline.dead_letters import RejectedRow
from einmal.pipeline.errors import PipelineRefused
from einmal.postgresql.errors import cause
from einmal.sinks.batch_rows import BatchRows
from einmal.sinks.commit_point import Identity, RowCommitPoint, SinkError, SinkFailed, SinkFenced
from einmal.sinks.postgres import staging
from einmal.sinks.postgres.modes import apply
from einmal.sinks.postgres.names import RECORDS, staging_name
from einmal.sinks.postgres.options import PostgresOptions
from einmal.sinks.postgres.record_table import HeldRow, RecordTable
from einmal.sinks.postgres.refusals import failed
from einmal.sinks.postgres.rejected_table import RejectedTable
from einmal.sinks.postgres.rejecting import RECORD_COLUMNS, apply_and_reject
from einmal.sinks.postgres.session import Session
from einmal.sinks.postgres.table import TableShape, find_table
from einmal.sinks.rejections import RECORD, Rejections
from einmal.sinks.sink import Opening
from einmal.sinks.stored_record import decoded, described
from einmal.types import ProducerEpoch, ProducerId, ProducerIdAndEpoch

_PREDECESSOR_MS: Final = 5_000
"""How long ``acquire`` waits for a predecessor's transaction before it ends the session: a COMMIT takes less."""
_ACQUIRE: Final = "acquiring the name"
_COMMIT: Final = "committing the batch"
_LOST_HINT: Final = (
    "the server was restored from a backup, or a standby was promoted that lacked its last transactions: delete the "
    "checkpoint of a stateless pipeline, it resumes at the record's end; a stateful one needs a checkpoint as old as "
    "the record"
)
_logger = EventLog(__name__)


@dataclass(frozen=True, slots=True)
class _Read:
    """The record that this run goes by, encoded; None: there was none."""

    text: str | None


class PostgresIdentity(ProducerIdAndEpoch):
    """Identity that ``acquire`` grants: the epoch, the number of the transaction under it, and the holder: random, and
    the same for a run that continues with a held identity."""

    holder: str

    @staticmethod
    def of(epoch: int, number: int, holder: str) -> PostgresIdentity:
        identity = PostgresIdentity(ProducerId(epoch), ProducerEpoch(number))
        identity.holder = holder
        return identity

    def following(self) -> PostgresIdentity:
        return PostgresIdentity.of(self.producer_id, self.producer_epoch + 1, self.holder)


class PostgresCommitPoint(RowCommitPoint):
    """See ``RowCommitPoint``."""

    def __init__(self, options: PostgresOptions, opening: Opening) -> None:
        self._options = options
        self._name = opening.name
        self._is_new = opening.is_new
        self._notify = opening.notify
        self._records = RecordTable(options.schema)
        self._rejected = RejectedTable(options.schema)
        self._session = Session(options.connecting, options.schema, opening.name)
        self._held: PostgresIdentity | None = None
        """Granted to this run."""
        self._last: _Read | None = None
        self._candidate: _Read | None = None
        """``_last`` as the open transaction makes it."""
        self._staged: staging.Staged | None = None
        self._shape: TableShape | None = None
        self._remains: list[staging.Staged] = []
        """Tables that a task still wrote to when they were no longer needed."""

    # --- the record ---------------------------------------------------------------------------------------------

    def look(self) -> CommitRecord | None:
        row = self._session.in_transaction("reading the commit record", lambda: self._row(""))
        return None if row is None else decoded(self._name, row.text)

    def read(self) -> CommitRecord | None:
        row = self._session.in_transaction("reading the commit record", lambda: self._row("FOR SHARE"))
        if self._held is not None:
            _compare_epoch(row, self._held, self._name)
        text = None if row is None else row.text
        record = decoded(self._name, text)
        self._last = _Read(text)
        return record

    def check(self, identity: Identity) -> None:
        row = self._session.in_transaction("reading the commit record", lambda: self._row("FOR SHARE"))
        _compare_epoch(row, self._own_identity, self._name)
        self._compare_record(row)

    def _row(self, lock: str) -> HeldRow | None:
        if not self._records.exists(self._session):
            return None
        return self._records.row(self._session, self._name, lock)

    def acquire(self, held: Identity | None) -> Identity:
        self._session.rollback()
        seen = self._session.in_transaction(_ACQUIRE, self._prepared)
        holder = str(uuid4()) if held is None else _own(held).holder
        epoch = self._raised(None if held is None else _own(held), holder, seen)
        self._held = PostgresIdentity.of(epoch, 0, holder)
        self._session.epoch = epoch
        self._last = None
        staging.remove(self._session, self._options.schema, self._name, epoch)
        return self._held

    def _prepared(self) -> HeldRow | None:
        problem = self._records.problem(self._session)
        if problem is None and self._options.errors.tolerates:
            problem = self._rejected.problem(self._session)
        if problem is not None:
            raise PipelineRefused(*problem)
        return self._records.row(self._session, self._name)

    def _raised(self, held: PostgresIdentity | None, holder: str, seen: HeldRow | None) -> int:
        try:
            return self._raise(held, holder, _PREDECESSOR_MS)
        except psycopg.errors.LockNotAvailable:
            if seen is not None:
                ended = self._session.end_predecessors(seen.epoch)
                terminated = "terminated sessions of an earlier run that held the commit record: %(sessions)s"
                _logger.warning("earlier_sessions_terminated", terminated, sessions=ended)
        except psycopg.Error as error:
            raise failed(error, _ACQUIRE) from cause(error)
        try:
            return self._raise(held, holder, self._options.connecting.lock_timeout_ms)
        except psycopg.Error as error:
            raise failed(error, f"{_ACQUIRE}: its row in {self._records.name} is locked by another session") from cause(
                error
            )

    def _raise(self, held: PostgresIdentity | None, holder: str, wait_ms: int) -> int:
        """Raises psycopg.Error, SinkFenced, OutcomeUnknown."""
        limit = self._options.connecting.lock_timeout_ms
        self._session.begin(_ACQUIRE, lock_timeout=str(min(wait_ms, limit) if limit else wait_ms))
        try:
            if held is None:
                epoch = self._records.acquire(self._session, self._name, holder)
            else:
                again = self._records.acquire_again(self._session, self._name, holder)
                if again is None:
                    raise _lost_or_fenced(self._records.row(self._session, self._name), held, self._name)
                epoch = again
            self._session.commit(_ACQUIRE)
            return epoch
        finally:
            self._session.rollback()

    # --- a batch ------------------------------------------------------------------------------------------------

    def stage(self, identity: Identity, batch_id: int, rows: BatchRows) -> tuple[Output, ...]:
        from einmal.sinks.postgres.copying import copy_rows
        from einmal.sinks.postgres.mapping import mapped
        from einmal.sinks.postgres.preparing import TablePreparation

        self._drop_remains()
        schema = rows.schema
        name = staging_name(self._name, identity.producer_id, identity.producer_epoch, batch_id)

        def create() -> staging.Staged:
            # First: a fenced driver makes nothing.
            row = self._records.row(self._session, self._name, "FOR SHARE")
            record = _compare_epoch(row, self._own_identity, self._name).text
            self._shape = TablePreparation(self._session, self._options, self._name, record).table(schema)
            tolerates = self._options.errors.tolerates
            columns = mapped(schema.without(RECORD), self._shape, self._options)
            columns += RECORD_COLUMNS if tolerates else ()
            staged = staging.Staged(self._options.schema, name, columns, tolerates)
            staging.create(self._session, staged, self._name)
            return staged

        staged: staging.Staged = self._session.in_transaction("creating the staging table", create)
        self._staged = staged
        written = copy_rows(rows, staged, self._options.connecting, self._name, identity.producer_id)
        staged.counts = {report.attempt: report.rows for report in written}
        table = str(self._options.table)
        outputs = tuple(Output(table, report.part, 0, report.rows - 1, report.rows, report.crc) for report in written)
        for output in outputs:
            self._notify(events.PartitionWritten(batch_id, output.topic, output.partition, output.count))
        return outputs

    def record(self, identity: Identity, record: CommitRecord | None) -> None:
        what = "writing the batch"
        self._session.begin(what)
        row = self._records.row(self._session, self._name, "FOR UPDATE")
        _compare_epoch(row, self._own_identity, self._name)
        self._compare_record(row)
        staged = self._staged
        if staged is not None:
            assert self._shape is not None
            if staged.tolerates:
                staging.compare_counts(self._session, staged)
                if record is not None:
                    self._reject(staged, self._shape, record.batch_id)
            elif staged.counts:
                apply(self._session, self._options, self._shape, staged)
            if staged.counts:
                self._compare_table(self._shape)
        self._records.write(self._session, self._name, record)
        self._candidate = _Read(None if record is None else record.encode().decode())
        if staged is not None and not staging.drop_in_transaction(self._session, staged):
            self._remains.append(staged)

    def _reject(self, staged: staging.Staged, shape: TableShape, batch_id: int) -> None:
        rejections = Rejections(self._name, self._options.errors, batch_id, sum(staged.counts.values()))
        if staged.counts:
            apply_and_reject(self._session, self._options, shape, staged, rejections)
        self._rejected.replace(self._session, self._name, batch_id, rejections.rejected)

    def rejected(self, batch_id: int) -> Sequence[RejectedRow]:
        rows: Sequence[RejectedRow] = self._session.in_transaction(
            "reading the rejected rows", lambda: self._rejected.rows(self._session, self._name, batch_id)
        )
        return rows

    def commit(self, identity: Identity) -> Identity | None:
        if self._candidate is None:
            raise SinkFailed(f"{_COMMIT}: no record was written")
        self._session.commit(_COMMIT)
        self._last, self._candidate, self._staged = self._candidate, None, None
        return _own(identity).following()

    def abort(self, identity: Identity) -> Identity | None:
        if self._held is None:
            return self._abort_of_the_run_before(_own(identity))
        self._session.rollback()
        self._candidate = None
        if self._staged is not None:
            self._remains.append(self._staged)
            self._staged = None
        try:
            self._drop_remains()
        except SinkError as error:
            # The transaction is over all the same, and the table has a name that nobody uses again.
            kept = "the staging table of an aborted batch is dropped later: %(error)s"
            _logger.warning("staging_table_kept", kept, error=error)
        return _own(identity).following()

    def _abort_of_the_run_before(self, held: PostgresIdentity) -> PostgresIdentity:
        """Its session may still be committing, which ``acquire`` waits for. What it staged is removed."""

        def compare() -> None:
            _compare_epoch(self._row(""), held, self._name)

        self._session.in_transaction("aborting", compare)
        if not staging.abandoned(self._session, self._options.schema, self._name, held.producer_id):
            raise SinkFailed("nothing is open")
        return held.following()

    def abandon(self) -> None:
        try:
            if self._held is not None:
                self.abort(self._held)
                if self._is_new:
                    self._session.in_transaction("removing the name", self._forget_unused)
        except Exception as error:  # noqa: BLE001 - the error that the user gets is another one
            kept = "what was staged could not be removed; the next start removes it: %(error)s"
            _logger.warning("staged_rows_kept", kept, error=error)

    def forget(self) -> None:
        self.acquire(None)

        def delete() -> None:
            _compare_epoch(self._row("FOR UPDATE"), self._own_identity, self._name)
            self._records.delete(self._session, self._name)

        self._session.in_transaction("deleting the name", delete)

    def _forget_unused(self) -> None:
        """A COMMIT under way holds the row until its record is there."""
        self._records.delete_unused(self._session, self._name, self._own_identity.holder)

    def close(self) -> None:
        self._session.close()

    # --- shared -------------------------------------------------------------------------------------------------

    @property
    def _own_identity(self) -> PostgresIdentity:
        assert self._held is not None, "nothing is acquired"
        return self._held

    def _compare_record(self, row: HeldRow | None) -> None:
        if self._last is None or (row is not None and row.text == self._last.text):
            return
        stored = described(self._name, None if row is None else row.text)
        known = described(self._name, self._last.text)
        raise PipelineRefused(
            f"the last commit of {self._name!r} was {known}, but {self._records.name} now has {stored}: the database "
            "has lost transactions, or the row was changed by hand",
            _LOST_HINT,
        )

    def _compare_table(self, shape: TableShape) -> None:
        """After the INSERT, whose lock keeps everybody from altering the table until COMMIT. Raises SinkFailed."""
        now = find_table(self._session, self._options.table)
        if now is None or (now.name, now.columns, now.problem) != (shape.name, shape.columns, shape.problem):
            raise SinkFailed(f"table {self._options.table} was altered after its columns had been compared")

    def _drop_remains(self) -> None:
        """Drop the remains of this epoch: a task that is being killed may keep one for a moment."""
        for staged in list(self._remains):
            if self._dropped(staged):
                self._remains.remove(staged)

    def _dropped(self, staged: staging.Staged) -> bool:
        def drop() -> bool:
            return staging.drop_in_transaction(self._session, staged)

        done: Any = self._session.in_transaction("dropping a staging table", drop)
        return bool(done)


def _own(identity: Identity) -> PostgresIdentity:
    if not isinstance(identity, PostgresIdentity):
        raise SinkFenced(f"{identity} was granted by another process")
    return identity


def _compare_epoch(row: HeldRow | None, held: PostgresIdentity, name: str) -> HeldRow:
    if row is None or (row.epoch, row.holder) != (held.producer_id, held.holder):
        raise _lost_or_fenced(row, held, name)
    return row


def _lost_or_fenced(row: HeldRow | None, held: PostgresIdentity, name: str) -> SinkError | PipelineRefused:
    if row is None:
        return SinkFenced(f"the row of {name!r} in {RECORDS} was deleted since")
    if row.epoch < held.producer_id:
        return PipelineRefused(
            f"{RECORDS} has epoch {row.epoch} of {name!r}, but {held.producer_id} was granted: the database has lost "
            "transactions",
            _LOST_HINT,
        )
    return SinkFenced(f"another instance has acquired {name!r}: epoch {row.epoch}, this one has {held.producer_id}")
