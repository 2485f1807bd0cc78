"""The driver's side of one exactly-once pipeline: which step comes next, whatever has just happened.

Theory of operation. A micro-batch is one Kafka transaction. Executors write under the driver's producer id and epoch;
the driver alone opens and ends the transaction, and puts the commit record (what batch this was, up to which offsets)
inside it. So the answer to "is batch N in?" is a record that is visible if and only if the output of batch N is.

    start   look at the record  ->  InitProducerId  ->  read the record for certain  ->  finish Spark's commit file
    restart look at the record  ->  abort under the held epoch  ->  InitProducerId(held)  ->  as above
    batch   compare  ->  (new epoch)  ->  write  ->  commit record  ->  source positions  ->  EndTxn

What keeps it right:

1. The record is compared before anything is fenced: a copied transactional.id must not stop the pipeline that owns it.
   A refusal rests on a second, certain read: what the first one found may be out of date.
2. It is read again after InitProducerId, up to the high watermark, and every record of ours is judged by its own
   transaction's marker: until then the predecessor's last batch may be committed, or may not. (The last stable offset
   would do too, but other pipelines' open transactions in the same partition hold it back.)
3. Every transaction has an epoch of its own. TV2 gives one with each EndTxn. Before, InitProducerId must bump it: a
   late produce of the previous transaction would be accepted into this one otherwise, and this one's first batches,
   with sequences that the broker has seen before, would be acknowledged without being written.
4. An EndTxn without an answer is never followed by another decision: the query ends, and the next start reads the
   record.
5. A failed stateless batch is aborted and written again. A stateful one is not: Spark keeps the state of the first
   successful attempt, which a second attempt's output would not agree with. The query is restarted instead.
6. A driver that restarts its query keeps its identity (KIP-360): the coordinator refuses it if a newer instance has
   started since. It first aborts under that identity, which only the owner can: Apache Kafka compares the epoch of
   EndTxn, but not that of an InitProducerId that finds a transaction open.

The machine performs nothing. ``start`` and ``batch`` begin a conversation, each effect is answered by one event through
``step``, until the effect is one of the last four, which need no answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from einmal.pipeline.batch_plan import (
    AlreadyIn,
    Batch,
    Plan,
    QueryStart,
    Refuse,
    plan_ahead,
    plan_batch,
    plan_start,
    plan_version,
)
from einmal.pipeline.claims import Output, digest
from einmal.pipeline.commit_record import CommitRecord
from einmal.types import ProducerIdAndEpoch

WRITE_ATTEMPTS_MAX: Final = 4
"""As often as Spark tries a task (spark.task.maxFailures) do we write a stateless batch."""


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
    """Run the batch's job with a new claims table. Answer: Written, Failed or Fenced."""

    identity: ProducerIdAndEpoch


@dataclass(frozen=True, slots=True)
class WriteCommitRecord:
    """Add the record's partition to the transaction and append it. Answer: Done, Failed, Fenced or Unclear."""

    identity: ProducerIdAndEpoch
    record: CommitRecord


@dataclass(frozen=True, slots=True)
class CommitSourcePositions:
    """TxnOffsetCommit of the batch's end under the pipeline's group, for lag tools, where the target cluster knows
    those topics. Answer: as for WriteCommitRecord."""

    identity: ProducerIdAndEpoch
    end: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class EndTxn:
    """Answer: Ended, Fenced, Unclear, or for a commit Failed (the broker has asked for an abort)."""

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
class Restart:
    """The batch is aborted, or undecided; this query ends, and a new start finds out from the record."""

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
    | Restart
    | Dead
)


# --- events: what came of it --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordRead:
    record: CommitRecord | None


@dataclass(frozen=True, slots=True)
class IdentityGranted:
    identity: ProducerIdAndEpoch


@dataclass(frozen=True, slots=True)
class Finished:
    """Spark's commit file of the record's batch is there."""


@dataclass(frozen=True, slots=True)
class Written:
    """Every claim is reported and every answer is in. ``commit_text``: a stateful batch's ``commits/N``."""

    outputs: tuple[Output, ...]
    commit_text: str | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The step is acknowledged."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The transaction is decided. ``next_identity``: TV2's answer; None: the epoch has not moved."""

    next_identity: ProducerIdAndEpoch | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The step did not happen, and the transaction can be aborted. ``will_again``: so will every other attempt."""

    reason: str
    will_again: bool = False


@dataclass(frozen=True, slots=True)
class Fenced:
    """PRODUCER_FENCED or INVALID_PRODUCER_EPOCH from a coordinator."""

    reason: str


@dataclass(frozen=True, slots=True)
class Expired:
    """INVALID_PRODUCER_ID_MAPPING from a coordinator: it has forgotten the transactional.id, or another instance has
    acquired it after that. Nothing is open under the identity."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unclear:
    """No answer within the client's own retries: the step may have happened."""

    reason: str


Event = RecordRead | IdentityGranted | Finished | Written | Done | Ended | Failed | Fenced | Expired | Unclear


class _Phase(Enum):
    NEW = auto()
    LOOKING = auto()
    CONFIRMING = auto()
    ABORTING_HELD = auto()
    FENCING = auto()
    READING = auto()
    FINISHING = auto()
    READY = auto()
    BUMPING = auto()
    READING_AGAIN = auto()
    WRITING = auto()
    RECORDING = auto()
    POSITIONING = auto()
    COMMITTING = auto()
    ABORTING = auto()
    OVER = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What is known when the query starts. ``query_id`` as in the checkpoint's ``metadata``; ``is_fresh``: the
    checkpoint has no batch yet. ``next_batch_id`` and ``others``: see ``QueryStart``. ``version``: not a query at all,
    but one batch write with this number."""

    transactional_id: str
    query_id: str
    checkpoint: str
    is_fresh: bool
    stateful: bool
    next_batch_id: int = 0
    others: str = ""
    adopt: bool = False
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """What a run that ended in this process leaves to the next one. ``is_current`` is False where an InitProducerId was
    not answered: the epoch may have moved, and no transaction is open."""

    identity: ProducerIdAndEpoch
    is_current: bool = True


class Committer:
    """One run of one query. Not reusable after Refused, Restart or Dead."""

    def __init__(self, query: Query, held: Held | None = None) -> None:
        """``held``: by the run before this one, if the query is restarted in the same process."""
        self._query = query
        self._phase = _Phase.NEW
        self._record: CommitRecord | None = None
        self._identity: ProducerIdAndEpoch | None = None if held is None else held.identity
        self._identity_is_current = held is None or held.is_current
        self._is_restart = held is not None
        self._epoch_is_used = False
        self._adopt = query.adopt
        self._batch: Batch | None = None
        self._candidate: CommitRecord | None = None
        self._attempts = 0
        self._failure = ""
        self._refusal: Refuse | None = None
        self._written_batch_id: int | None = None

    @property
    def record(self) -> CommitRecord | None:
        """The last commit record that is known for certain, or was written by this run."""
        return self._record

    @property
    def held(self) -> Held | None:
        """The identity of this run, for a restart."""
        return None if self._identity is None else Held(self._identity, self._identity_is_current)

    def resume_from(self) -> tuple[Any, ...] | None:
        """Where a fresh checkpoint must begin because output up to there is committed; None: where its options say."""
        assert self._phase is _Phase.READY, self._phase
        return self._record.end if self._record is not None and self._query.is_fresh else None

    def start(self) -> Effect:
        assert self._phase is _Phase.NEW, self._phase
        self._phase = _Phase.LOOKING
        return ReadRecord(certain=False)

    def batch(self, batch: Batch) -> Effect:
        """Spark is about to run this batch (``foreachBatch`` was called)."""
        assert self._phase is _Phase.READY, self._phase
        if self._written_batch_id == batch.batch_id:
            return self._refuse(
                f"batch {batch.batch_id} is written a second time in one foreachBatch, which holds one transaction",
                "write all outputs of a batch through one call, with a topic column",
            )
        plan = plan_batch(self._record, batch, adopt=self._adopt)
        if isinstance(plan, Refuse):
            return self._refuse(plan.reason, plan.hint)
        if isinstance(plan, AlreadyIn):
            if not self._query.stateful:
                return Ready(self._record, already_in=True)
            return self._refuse(
                f"batch {batch.batch_id} is already committed, but Spark runs it again: its state would not be that of "
                "the committed output",
                "restart the query: the start finishes the checkpoint from the commit record",
            )
        self._batch = batch
        self._attempts = 0
        return self._begin()

    def write(self) -> Effect:
        """Write the one batch of a batch write. To be called after a ``start`` that did not find it in already."""
        assert self._phase is _Phase.READY and self._query.version is not None, self._phase
        self._batch = Batch(
            query_id=self._query.query_id,
            checkpoint=self._query.checkpoint,
            batch_id=self._query.version,
            start=None,
            end=(),
        )
        return self._begin()

    def step(self, event: Event) -> Effect:
        """The answer to the last effect."""
        if isinstance(event, Fenced):
            return self._over(
                Dead(
                    event.reason,
                    "another instance has started under this transactional.id, or the batch took longer than "
                    "transaction.timeout.ms: give each pipeline its own name; raise kafka.transaction.timeout.ms, or "
                    "make batches smaller with maxOffsetsPerTrigger",
                )
            )
        if isinstance(event, Expired) and self._phase is not _Phase.ABORTING_HELD:
            return self._over(
                Restart(
                    f"the transactional.id {self._query.transactional_id!r} has expired: {event.reason}",
                    "it was idle for longer than the brokers' transactional.id.expiration.ms; the restart acquires it "
                    "again, unless another instance has",
                )
            )
        if isinstance(event, Unclear):
            self._identity_is_current = self._phase not in (_Phase.FENCING, _Phase.BUMPING)
            return self._over(Restart(event.reason, "the next start reads from the commit record what became of it"))
        match self._phase:
            case _Phase.LOOKING | _Phase.CONFIRMING:
                return self._step_look(event)
            case _Phase.ABORTING_HELD | _Phase.FENCING | _Phase.READING | _Phase.FINISHING:
                return self._step_start(event)
            case _Phase.BUMPING:
                return self._bumped(event)
            case _Phase.READING_AGAIN:
                return self._step_read_again(event)
            case _Phase.WRITING | _Phase.RECORDING | _Phase.POSITIONING:
                return self._step_write(event)
            case _Phase.COMMITTING:
                return self._step_commit(event)
            case _Phase.ABORTING:
                return self._step_abort(event)
            case _:
                raise AssertionError(f"{event} in {self._phase}")

    # --- start ----------------------------------------------------------------------------------------------

    def _step_look(self, event: Event) -> Effect:
        match self._phase, event:
            case _Phase.LOOKING, RecordRead(record) if isinstance(refusal := self._plan_start(record), Refuse):
                self._phase, self._refusal = _Phase.CONFIRMING, refusal
                return ReadRecord(certain=True)
            case _, RecordRead(record):
                return self._judge_start(record) or self._acquire()
            case _Phase.CONFIRMING, Failed() if self._refusal is not None:
                # Another driver's transaction is open: nothing speaks against the first impression.
                return self._refuse_start(self._refusal.reason, self._refusal.hint)
            case _, Failed(reason):
                return self._over(Restart(reason, "nothing was written"))
            case phase, _:
                raise AssertionError(f"{event} in {phase}")

    def _acquire(self) -> Effect:
        if self._identity is not None and self._identity_is_current:
            self._phase = _Phase.ABORTING_HELD
            return AbortHeld(self._identity)
        self._phase = _Phase.FENCING
        return InitProducerId(self._identity)

    def _step_start(self, event: Event) -> Effect:
        match self._phase, event:
            case _Phase.ABORTING_HELD, Ended(next_identity):
                self._identity = next_identity or self._identity
                self._phase = _Phase.FENCING
                return InitProducerId(self._identity)
            case _Phase.ABORTING_HELD, Failed() | Expired():
                self._phase = _Phase.FENCING
                return InitProducerId(self._identity)
            case _Phase.FENCING, IdentityGranted(identity):
                self._identity, self._identity_is_current = identity, True
                self._phase = _Phase.READING
                return ReadRecord(certain=True)
            case _Phase.READING, RecordRead(record):
                if answer := self._judge_start(record) or self._judge_ahead(record):
                    return answer
                self._record = record
                if self._query.stateful and self._is_mine(record) and record is not None and record.commit_text:
                    self._phase = _Phase.FINISHING
                    return FinishSparkCommit(record)
                return self._ready()
            case _Phase.FINISHING, Finished():
                return self._ready()
            case _Phase.FINISHING, Failed(reason):
                return self._refuse(reason, "restore the newest checkpoint; state and committed output do not agree")
            case _, Failed(reason):
                return self._over(Restart(reason, "nothing was written"))
            case phase, _:
                raise AssertionError(f"{event} in {phase}")

    def _judge_start(self, record: CommitRecord | None) -> Effect | None:
        """The end of the start, if the record asks for one."""
        match self._plan_start(record):
            case Refuse(reason, hint):
                return self._refuse_start(reason, hint)
            case AlreadyIn():
                # Nobody is fenced for it: a later version may be under way.
                return self._over(Ready(record, already_in=True))
            case _:
                return None

    def _refuse_start(self, reason: str, hint: str) -> Effect:
        if self._is_restart:
            # It ran: whoever has changed the record since has superseded it.
            return self._over(Dead(reason, hint))
        return self._refuse(reason, hint)

    def _plan_start(self, record: CommitRecord | None) -> Plan:
        query = self._query
        if query.version is not None:
            return plan_version(record, query.version)
        return plan_start(record, self._query_start, stateful=query.stateful, adopt=self._adopt)

    def _judge_ahead(self, record: CommitRecord | None) -> Effect | None:
        if self._query.version is not None:
            return None
        plan = plan_ahead(record, self._query_start, adopt=self._adopt)
        return self._refuse(plan.reason, plan.hint) if isinstance(plan, Refuse) else None

    @property
    def _query_start(self) -> QueryStart:
        query = self._query
        return QueryStart(
            query_id=query.query_id,
            checkpoint=query.checkpoint,
            next_batch_id=query.next_batch_id,
            others=query.others,
        )

    def _is_mine(self, record: CommitRecord | None) -> bool:
        return record is not None and record.query_id == self._query.query_id

    def _ready(self) -> Effect:
        self._phase = _Phase.READY
        return Ready(self._record)

    # --- a batch --------------------------------------------------------------------------------------------

    def _begin(self) -> Effect:
        assert self._identity is not None
        if self._epoch_is_used:
            self._phase = _Phase.BUMPING
            return InitProducerId(self._identity)
        self._attempts += 1
        self._epoch_is_used = True
        self._phase = _Phase.WRITING
        return WriteBatch(self._identity)

    def _bumped(self, event: Event) -> Effect:
        match event:
            case IdentityGranted(identity):
                assert self._identity is not None and identity != self._identity
                is_same_producer = identity.producer_id == self._identity.producer_id
                self._identity = identity
                self._epoch_is_used = False
                if is_same_producer:
                    return self._begin()
                # The epochs ran out, or the id had expired: another instance may have come and gone since.
                self._phase = _Phase.READING_AGAIN
                return ReadRecord(certain=True)
            case Failed(reason):
                return self._over(Restart(reason, "nothing of this batch was written"))
            case _:
                raise AssertionError(f"{event} in {self._phase}")

    def _step_read_again(self, event: Event) -> Effect:
        match event:
            case RecordRead(record) if record == self._record:
                return self._begin()
            case RecordRead(record):
                return self._over(
                    Dead(
                        f"the commit record is no longer this driver's: {self._record} has become {record}",
                        "another instance has run under this transactional.id since: give each pipeline its own",
                    )
                )
            case Failed(reason):
                return self._over(Restart(reason, "nothing of this batch was written"))
            case _:
                raise AssertionError(f"{event} in {self._phase}")

    def _step_write(self, event: Event) -> Effect:
        assert self._identity is not None and self._batch is not None
        match self._phase, event:
            case _, Failed(reason, will_again):
                if will_again:
                    self._attempts = WRITE_ATTEMPTS_MAX
                return self._abort(reason)
            case _Phase.WRITING, Written(outputs, commit_text):
                return self._write_record(outputs, commit_text)
            case _Phase.RECORDING, Done():
                self._phase = _Phase.POSITIONING
                return CommitSourcePositions(self._identity, self._batch.end)
            case _Phase.POSITIONING, Done():
                return self._commit()
            case phase, _:
                raise AssertionError(f"{event} in {phase}")

    def _write_record(self, outputs: tuple[Output, ...], commit_text: str | None) -> Effect:
        assert self._identity is not None and self._batch is not None
        batch = self._batch
        assert (commit_text is not None) == self._query.stateful
        self._candidate = CommitRecord(
            transactional_id=self._query.transactional_id,
            query_id=batch.query_id,
            checkpoint=batch.checkpoint,
            batch_id=batch.batch_id,
            end=batch.end,
            records=sum(output.count for output in outputs),
            digest=digest(outputs),
            commit_text=commit_text,
            run=batch.run,
        )
        self._phase = _Phase.RECORDING
        return WriteCommitRecord(self._identity, self._candidate)

    def _commit(self) -> Effect:
        assert self._identity is not None
        self._phase = _Phase.COMMITTING
        return EndTxn(self._identity, committed=True)

    def _abort(self, reason: str) -> Effect:
        assert self._identity is not None
        self._failure = reason
        self._phase = _Phase.ABORTING
        return EndTxn(self._identity, committed=False)

    def _step_commit(self, event: Event) -> Effect:
        match event:
            case Ended(next_identity):
                assert self._batch is not None
                self._moved(next_identity)
                self._record, self._candidate = self._candidate, None
                self._written_batch_id = self._batch.batch_id
                self._adopt = False
                return self._ready()
            case Failed(reason):
                return self._abort(reason)
            case _:
                raise AssertionError(f"{event} in {self._phase}")

    def _step_abort(self, event: Event) -> Effect:
        match event:
            case Ended(next_identity):
                self._moved(next_identity)
            case _:
                raise AssertionError(f"{event} in {self._phase}")
        if self._query.stateful:
            return self._over(
                Restart(
                    f"the batch was aborted: {self._failure}",
                    "a stateful batch is not written again in place: restart the query, it replays the batch from the "
                    "state before it",
                )
            )
        if self._attempts >= WRITE_ATTEMPTS_MAX:
            return self._over(
                Restart(
                    f"the batch was aborted: {self._failure}",
                    "mend the cause, then start the query again: nothing of the batch is visible to read_committed",
                )
            )
        return self._begin()

    def _moved(self, next_identity: ProducerIdAndEpoch | None) -> None:
        if next_identity is not None:
            assert next_identity != self._identity, "every transaction has an epoch of its own"
            self._identity = next_identity
            self._epoch_is_used = False

    # --- ends -----------------------------------------------------------------------------------------------

    def _refuse(self, reason: str, hint: str) -> Effect:
        return self._over(Refused(reason, hint))

    def _over(self, effect: Effect) -> Effect:
        self._phase = _Phase.OVER
        return effect
