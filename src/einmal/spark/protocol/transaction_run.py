"""Performs what the committer decides on a sink: one run under one name, of a stream or of a batch write.

Every effect of the machine is one verb of the sink, whose answer or error is the machine's next event. After an error
a run cannot continue, and a new one reads the outcome from the commit record. What only a stream adds to its
transactions, it adds through ``Additions``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol

from einmal.commit_protocol import effects as protocol
from einmal.commit_protocol.batch_plan import Batch
from einmal.commit_protocol.commit_record import CommitRecord, UnreadableCommitRecord
from einmal.commit_protocol.committer import Committer
from einmal.commit_protocol.run_state import Held, Query
from einmal.event_log import EventLog
from einmal.pipeline import events
from einmal.pipeline.dead_letters import RejectedRow
from einmal.pipeline.errors import PipelineFailed, PipelineFenced, PipelineRefused
from einmal.sinks.commit_point import (
    ALL_OR_NOTHING,
    OutcomeUnknown,
    RowCommitPoint,
    SinkError,
    SinkFailed,
    SinkFenced,
    event_of,
)
from einmal.sinks.perform import perform
from einmal.spark.errors import reason_of
from einmal.spark.protocol.execution import StateInDoubt
from einmal.spark.protocol.run import SinkBatch
from einmal.types import ProducerIdAndEpoch

_logger = EventLog(__name__)
_IN_TRANSACTION: Final = (protocol.WriteBatch, protocol.WriteCommitRecord, protocol.CommitSourcePositions)
_OUTSIDE_A_BATCH: Final = (protocol.ReadRecord, protocol.AbortHeld, protocol.InitProducerId)
_WILL_AGAIN: Final = frozenset(
    {
        "RowRefused",
        "RecordTooLarge",
        "DataLoss",
        "BadRecord",
        "NoDeadLetters",
        "SchemaDrift",
        "ToleranceExceeded",
        "SchemaChanged",
    }  # fmt: skip
)
"""Raised by a task where a row cannot be written, or its input cannot be read: every other attempt would fail, too."""


class Additions(Protocol):
    """Additions of a stream to a transaction, beside output and commit record."""

    def finish_spark_commit(self, record: CommitRecord) -> protocol.Finished | protocol.Failed:
        """Spark's own commit file of the record's batch, so that a stateful batch never runs again."""

    def commit_text(self, batch: SinkBatch) -> str | None:
        """Spark's own commit file, if the batch that was just written has state. Raises StateInDoubt."""


class NoAdditions:
    """Nothing to add: of a batch write, which has no checkpoint and no state, or where another sink has the state."""

    def finish_spark_commit(self, record: CommitRecord) -> protocol.Finished | protocol.Failed:
        raise AssertionError(f"no state, no commit file: {record}")

    def commit_text(self, _batch: SinkBatch) -> str | None:
        return None


class _Answer(NamedTuple):
    event: protocol.Event
    cause: BaseException | None = None


class TransactionRun:
    """One conversation with the committer at a time. Every method raises PipelineError."""

    def __init__(
        self,
        commit_point: RowCommitPoint,
        query: Query,
        additions: Additions,
        notify: events.Listener,
        held: Held | None = None,
    ) -> None:
        """``held``: by the run before this one, where the query is restarted."""
        self._id = query.transactional_id
        self._commit_point = commit_point
        self._additions = additions
        self._notify = notify
        self._committer = Committer(query, held)
        self._is_undecided = False

    @property
    def held(self) -> Held | None:
        """For the run that follows this one in the same process."""
        return self._committer.held

    @property
    def is_undecided(self) -> bool:
        """The run ended without the outcome of its last request, or its identity has expired: only a new run can
        continue."""
        return self._is_undecided

    def start(self) -> protocol.Ready:
        """Acquire the transactional.id, and read the commit record."""
        return self._converse(self._committer.start(), None)

    def resume_from(self) -> tuple[Any, ...] | None:
        """See ``Committer.resume_from``."""
        return self._committer.resume_from()

    def batch(self, planned: Batch, batch: SinkBatch) -> protocol.Ready:
        """Write one micro-batch, unless it is committed already."""
        return self._converse(self._committer.batch(planned), batch)

    def check(self) -> None:
        """Whether the name is still this run's, and the sink has its last record, between two batches. What else keeps
        the sink from answering, the next batch finds out. Raises PipelineFenced, PipelineRefused."""
        held = self._committer.held
        if held is None or not held.is_current or self._is_undecided:
            return
        try:
            self._commit_point.check(held.identity)
        except SinkFenced as error:
            raise PipelineFenced(str(error), self._commit_point.fenced_hint) from error
        except PipelineRefused:
            raise
        except Exception as error:  # noqa: BLE001 - a sink of the user's own can raise anything
            unknown, reason = (
                "an idle pipeline could not ask whether %(pipeline)r is still its own: %(reason)s",
                reason_of(error),
            )
            _logger.info("ownership_unknown", unknown, pipeline=self._id, reason=reason)

    def rejected(self, batch_id: int) -> Sequence[RejectedRow]:
        """The rows of a committed batch that the sink has rejected."""
        try:
            return self._commit_point.rejected(batch_id)
        except SinkError as error:
            # The batch is committed; a new run finds them.
            self._is_undecided = True
            raise PipelineFailed(str(error), "the next start reads the rejected rows again") from error

    def write(self, batch: SinkBatch) -> protocol.Ready:
        """Write the one batch of a batch write."""
        return self._converse(self._committer.write(), batch)

    def forget(self) -> None:
        """Delete the commit record. Raises SinkError."""
        self._commit_point.forget()

    def abandon(self) -> None:
        """Abort what a batch that is given up has left open."""
        self._commit_point.abandon()

    def close(self) -> None:
        self._commit_point.close()

    # --- the conversation ---------------------------------------------------------------------------------------

    def _converse(self, effect: protocol.Effect, batch: SinkBatch | None) -> protocol.Ready:
        cause: BaseException | None = None
        while True:
            match effect:
                case protocol.Ready():
                    return effect
                case protocol.Refused(reason, hint):
                    raise PipelineRefused(reason, hint)
                case protocol.Dead(reason, hint):
                    raise PipelineFenced(reason, hint) from cause
                case protocol.RestartQuery(reason, hint):
                    raise PipelineFailed(reason, hint) from cause
            answer = self._perform(effect, batch)
            cause = answer.cause or cause
            event = self._overdue(effect, answer.event)
            self._is_undecided = isinstance(event, protocol.Unclear | protocol.Expired)
            effect = self._committer.step(event)

    def _overdue(self, effect: protocol.Effect, event: protocol.Event) -> protocol.Event:
        """A batch that failed after its transaction's time: it was fenced, and so would be the next attempt."""
        if not isinstance(effect, _IN_TRANSACTION) or not isinstance(event, protocol.Failed):
            return event
        reason = self._commit_point.overdue()
        return protocol.Fenced(reason, self._commit_point.fenced_hint) if reason else event

    def _perform(self, effect: protocol.Effect, batch: SinkBatch | None) -> _Answer:
        try:
            return _Answer(self._event(effect, batch))
        except PipelineRefused:
            raise
        except UnreadableCommitRecord as error:
            raise PipelineRefused(
                str(error),
                f"einmal pipeline adopt {self._id} --checkpoint DIR, or einmal pipeline reset {self._id}, replaces it",
            ) from error
        except SinkError as error:
            return _Answer(event_of(error, effect, self._commit_point.fenced_hint), error.__cause__ or error)

    def _event(self, effect: protocol.Effect, batch: SinkBatch | None) -> protocol.Event:
        match effect:
            case protocol.FinishSparkCommit(record):
                return self._additions.finish_spark_commit(record)
            case protocol.WriteBatch(identity) if batch is not None:
                with _explained(effect):
                    return self._stage(identity, batch)
            case protocol.CommitSourcePositions(identity, end) if batch is not None:
                with _explained(effect):
                    self._commit_point.positions(identity, batch.batch_id, end)
                return protocol.Done()
        assert batch is not None or isinstance(effect, _OUTSIDE_A_BATCH), effect
        with _explained(effect):
            event = perform(effect, self._commit_point)
        self._report(effect, event, batch)
        return event

    def _report(self, effect: protocol.Effect, event: protocol.Event, batch: SinkBatch | None) -> None:
        """Report what listeners want to know of a verb that has happened."""
        match effect, event:
            case protocol.InitProducerId(None), protocol.IdentityGranted(identity):
                self._notify(events.NameTaken(self._id, identity.producer_id, identity.producer_epoch))
            case protocol.WriteCommitRecord(_, record), _ if batch is not None:
                self._notify(events.BatchWritten(batch.batch_id, record.records))
            case protocol.EndTxn(_, committed), _ if batch is not None:
                self._notify(events.TransactionEnded(batch.batch_id, committed))

    def _stage(self, identity: ProducerIdAndEpoch, batch: SinkBatch) -> protocol.Acknowledged:
        outputs = self._commit_point.stage(identity, batch.batch_id, batch.rows)
        self._notify(events.OutputWritten(batch.batch_id))
        return protocol.Acknowledged(outputs, self._additions.commit_text(batch))


@contextmanager
def _explained(effect: protocol.Effect) -> Iterator[None]:
    """Whatever a job of the user's, or a sink of his own, can raise, as a SinkError."""
    try:
        yield
    except (SinkError, PipelineRefused, UnreadableCommitRecord):
        raise
    except StateInDoubt as error:
        raise SinkFailed(str(error)) from error
    except Exception as error:
        reason = reason_of(error)
        if isinstance(effect, ALL_OR_NOTHING):
            raise OutcomeUnknown(reason) from error
        raise SinkFailed(reason, will_again=reason.partition(":")[0] in _WILL_AGAIN) from error
