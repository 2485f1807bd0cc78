"""The interface of all that a pipeline writes to: the verbs of ``commit_protocol/committer``, on one commit point.

Theory of operation. A sink keeps two things beside the rows, under the pipeline's name: an *epoch*, and the *commit
record* (which batch, up to which source positions). Both are changed in the transaction that makes the rows visible, so
"is batch N committed?" has one answer, and it is in the sink.

    look     the record, as anybody may read it: nothing is fenced
    acquire  the next epoch of the name: whoever had the one before can commit nothing more
    read     the record for certain: nobody can change it any more without this epoch
    stage    rows, written by tasks, to where no reader sees them; where the rows are records, each runtime's own
    record   the driver's transaction begins: compare the epoch, make the staged rows part of it, set the record
    commit   rows and record become visible together
    abort    what was staged is removed

Invariants that every sink keeps (``einmal.testing.sinks`` tests them):

1. *Only the driver commits.* Tasks stage, and a task that runs twice, or lives longer than its batch, changes nothing:
   the driver takes the rows of the attempts that Spark counts, and compares their number with what they reported.
2. *The epoch is compared in the transaction that commits*, under the lock that ``acquire`` needs to change it.
3. *An answer that does not come is no answer.* ``commit`` raises OutcomeUnknown: the run ends, and the next one reads.
4. *What a dead predecessor staged is removed, and nothing else*: names carry pipeline, epoch and batch.
5. *The record that a commit replaces is the one that this run has read or committed*: a sink that was restored has an
   older one, perhaps under the same epoch, and lacks the rows since. ``check`` compares, and never takes another one.

Errors report what happened, and the run decides (``perform``, ``spark.protocol.transaction_run``). An exception that is
none of these is taken for the worst that it can mean: after ``commit``, ``abort`` and ``acquire`` the outcome is
unknown, every other step has failed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from einmal.commit_protocol import effects as protocol
from einmal.commit_protocol.claims import Output
from einmal.commit_protocol.commit_record import CommitRecord
from einmal.pipeline.dead_letters import RejectedRow
from einmal.sinks.batch_rows import BatchRows
from einmal.types import ProducerEpoch, ProducerIdAndEpoch

Identity = ProducerIdAndEpoch
"""Identity that ``acquire`` grants: in Kafka the producer id and epoch. Elsewhere ``producer_id`` is the epoch of the
name, and ``producer_epoch`` counts the transactions under it. Every transaction has an identity of its own."""


class SinkError(Exception):
    """Raised by the verbs of a sink; the message is the reason that the user reads."""


class SinkFenced(SinkError):
    """Another instance has acquired the name since."""


class IdentityExpired(SinkError):
    """The sink has forgotten the identity. Nothing is open under it, and another instance may have acquired the
    name."""


class OutcomeUnknown(SinkError):
    """No answer: the step may have happened."""


class SinkFailed(SinkError):
    """The step did not happen, and the transaction can be aborted. ``will_again``: every other attempt would fail,
    too."""

    def __init__(self, reason: str, *, will_again: bool = False) -> None:
        super().__init__(reason)
        self.will_again = will_again


ALL_OR_NOTHING: Final = (protocol.InitProducerId, protocol.AbortHeld, protocol.EndTxn)
"""After an error that nobody has explained, these may have happened. Every other effect did not."""


def event_of(error: SinkError, effect: protocol.Effect, fenced_hint: str) -> protocol.Event:
    """Return the event by which the committer learns of a verb that has failed."""
    match error:
        case SinkFenced():
            return protocol.Fenced(str(error), fenced_hint)
        case IdentityExpired():
            return protocol.Expired(str(error))
        case SinkFailed() if not isinstance(effect, protocol.EndTxn) or effect.committed:
            return protocol.Failed(str(error), will_again=error.will_again)
        case _:
            # Nothing more can be done about an abort: the next start removes the rest.
            return protocol.Unclear(str(error))


def following(identity: Identity) -> Identity:
    """The identity of the next transaction under the same epoch of a name, for sinks other than Kafka."""
    return Identity(identity.producer_id, ProducerEpoch(identity.producer_epoch + 1))


class CommitPoint(ABC):
    """Commit point of one run under one name. Called by one thread at a time; PipelineRefused may be raised by every
    verb where the pipeline must not run as it is."""

    fenced_hint: ClassVar[str] = "another instance has started under this transactional.id: use one per pipeline"
    """Hint at what a user should look at where a run was fenced."""

    @abstractmethod
    def look(self) -> CommitRecord | None:
        """The last committed record, or None. It may be out of date by the time of the answer. Raises SinkError."""

    @abstractmethod
    def acquire(self, held: Identity | None) -> Identity:
        """Raise the epoch of the name, durably. ``held``: the identity of the run before this one in the same process;
        SinkFenced, if somebody has acquired the name since."""

    @abstractmethod
    def read(self) -> CommitRecord | None:
        """The last committed record for certain: to be called after ``acquire``. Raises SinkFenced, SinkError."""

    @abstractmethod
    def record(self, identity: Identity, record: CommitRecord | None) -> None:
        """Open the transaction, and put what was staged, if anything was, and the record into it (None: delete the
        record).

        Raises SinkFailed, SinkFenced, OutcomeUnknown.
        """

    @abstractmethod
    def commit(self, identity: Identity) -> Identity | None:
        """Make rows and record visible; the identity of the next transaction (None: ``acquire`` grants it).

        Raises SinkFenced, OutcomeUnknown, and SinkFailed if it is certain that nothing was committed.
        """

    @abstractmethod
    def abort(self, identity: Identity) -> Identity | None:
        """Undo what was staged and recorded; the identity of the next transaction. Also for what the run before this
        one left open under a held identity. Raises SinkFailed if nothing is open, SinkFenced, OutcomeUnknown."""

    def positions(self, identity: Identity, batch_id: int, end: tuple[Any, ...]) -> None:
        """Show the source positions to tools that look for them in the sink. By default there are none."""
        return

    def rejected(self, batch_id: int) -> Sequence[RejectedRow]:
        """The rows of a committed batch that the sink has rejected, as its transaction has recorded them; also for
        the next driver. By default a row that is rejected fails the batch. Raises SinkError."""
        return ()

    def overdue(self) -> str:
        """Why the open transaction can no longer be committed, if its time is over. By default no time ends it."""
        return ""

    def check(self, identity: Identity) -> None:
        """Whether the name still has this identity and the record is still the last one of this run, for a pipeline
        that has nothing to write: without it, an idle one would notice neither its successor nor a restored sink.
        The default is for sinks whose ``read`` changes nothing that ``record`` or ``commit`` compare.

        Raises SinkFenced, PipelineRefused, SinkError."""
        self.read()

    def forget(self) -> None:
        """Delete the record of a name that nobody will ask for again."""
        identity = self.acquire(None)
        self.record(identity, None)
        self.commit(identity)

    def abandon(self) -> None:
        """Let go of what an error has left open, so that no reader waits for it. Raises nothing."""
        return

    def close(self) -> None:
        """Release connections; nothing is aborted."""
        return


class RowCommitPoint(CommitPoint):
    """A commit point that takes the rows of a batch, too."""

    @abstractmethod
    def stage(self, identity: Identity, batch_id: int, rows: BatchRows) -> tuple[Output, ...]:
        """Write the rows of a batch durably to where no reader sees them; the number of rows by table and task.

        Raises SinkFailed, SinkFenced, and what running the tasks raises.
        """


@dataclass(frozen=True, slots=True)
class Committed:
    """A pipeline's last committed record, and when it was written (ms). ``problem``: why it cannot be read."""

    transactional_id: str
    record: CommitRecord | None
    timestamp: int
    problem: str = ""
