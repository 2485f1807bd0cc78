"""The conversation between the committer and its driver: what the committer asks for, what the driver reports back.

A driver gives a *command*, performs the *effect* that the committer answers with, and reports one *event* for it. The
conversation ends with an effect that needs no answer: Ready, Refused, RestartQuery or Dead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from einmal.commit_protocol.batch_plan import Batch
from einmal.commit_protocol.claims import Output
from einmal.commit_protocol.commit_record import CommitRecord
from einmal.types import ProducerIdAndEpoch

# --- commands: what the driver wants ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """The query starts."""


@dataclass(frozen=True, slots=True)
class NextBatch:
    """Spark is about to run this batch (``foreachBatch`` was called)."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class WriteOnce:
    """Write the one batch of a batch write."""


Command = Start | NextBatch | WriteOnce


# --- effects: what the driver does next ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Read the pipeline's commit record. ``certain``: up to the high watermark, each record by its own transaction's
    marker. Otherwise: what a ``read_committed`` reader gets now. Answer: RecordRead."""

    certain: bool


@dataclass(frozen=True, slots=True)
class AbortHeld:
    """Abort the transaction that the run before this one may have left open. Answer: Ended, Failed (none was open),
    Expired, Fenced or Unclear."""

    identity: ProducerIdAndEpoch


@dataclass(frozen=True, slots=True)
class InitProducerId:
    """Acquire the transactional.id, or (``previous``) a fresh epoch of it.

    Answer: IdentityGranted, Fenced, Expired or Unclear.
    """

    previous: ProducerIdAndEpoch | None


@dataclass(frozen=True, slots=True)
class FinishSparkCommit:
    """Stateful query: write Spark's ``commits/N`` from the record where it is absent. Answer: Finished or Failed."""

    record: CommitRecord


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """Run the batch's job with a new claims table. Answer: Acknowledged, Failed or Fenced."""

    identity: ProducerIdAndEpoch


@dataclass(frozen=True, slots=True)
class WriteCommitRecord:
    """Add the record's partition to the transaction and append it. Answer: Done, Failed, Fenced or Unclear."""

    identity: ProducerIdAndEpoch
    record: CommitRecord


@dataclass(frozen=True, slots=True)
class CommitSourcePositions:
    """TxnOffsetCommit of the batch's end under the pipeline's group, for lag tools, where the sink's cluster knows
    those topics. Answer: as for WriteCommitRecord."""

    identity: ProducerIdAndEpoch
    end: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class EndTxn:
    """Answer: Ended, Fenced, Unclear, or for a commit Failed (the broker requires an abort)."""

    identity: ProducerIdAndEpoch
    committed: bool


@dataclass(frozen=True, slots=True)
class Ready:
    """Nothing to do until the next batch. ``record``: the last committed batch; ``already_in``: so was this one."""

    record: CommitRecord | None
    already_in: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The query must not run as it is. Nothing was written."""

    reason: str
    hint: str


@dataclass(frozen=True, slots=True)
class RestartQuery:
    """The batch is aborted, or undecided. This query ends, and a new start reads the outcome from the record."""

    reason: str
    hint: str


@dataclass(frozen=True, slots=True)
class Dead:
    """Another instance owns the transactional.id, or the transaction outlived its timeout: nothing may be written."""

    reason: str
    hint: str


Effect = (
    ReadRecord
    | AbortHeld
    | InitProducerId
    | FinishSparkCommit
    | WriteBatch
    | WriteCommitRecord
    | CommitSourcePositions
    | EndTxn
    | Ready
    | Refused
    | RestartQuery
    | Dead
)


# --- events: how the driver answers -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordRead:
    record: CommitRecord | None


@dataclass(frozen=True, slots=True)
class IdentityGranted:
    identity: ProducerIdAndEpoch


@dataclass(frozen=True, slots=True)
class Finished:
    """Spark's commit file of the record's batch exists."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Every claim is reported, and every write is acknowledged. ``commit_text``: a stateful batch's ``commits/N``.
    ``end``: the batch's, where a part of it is known only now; else None."""

    outputs: tuple[Output, ...]
    commit_text: str | None = None
    end: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The step is acknowledged."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The transaction is decided. ``next_identity``: from a TV2 response; None: the epoch has not changed."""

    next_identity: ProducerIdAndEpoch | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The step did not happen, and the transaction can be aborted. ``will_again``: every other attempt would fail,
    too."""

    reason: str
    will_again: bool = False


@dataclass(frozen=True, slots=True)
class Fenced:
    """PRODUCER_FENCED or INVALID_PRODUCER_EPOCH from a coordinator, a later epoch in a database. ``hint``: what may
    have happened in this kind of sink."""

    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Expired:
    """INVALID_PRODUCER_ID_MAPPING from a coordinator: the transactional.id has expired, and another instance may have
    acquired it since. Nothing is open under the identity."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unclear:
    """No answer within the client's own retries: the step may have happened."""

    reason: str


Event = RecordRead | IdentityGranted | Finished | Acknowledged | Done | Ended | Failed | Fenced | Expired | Unclear
