"""Performs what the committer decides on Kafka: one run under one transactional.id, of a stream or of a batch write.

Every effect of the machine has one method here, which returns the machine's next event. After an error a run cannot
continue, and a new one reads the outcome from the commit record. What only a stream adds to its transactions, it adds
through ``Additions``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from einmal.client.errors import (
    FatalError,
    KafkaError,
    ProducerFenced,
    RecordTooLarge,
    RetriableError,
    UnknownOutcome,
    UnknownTopic,
)
from einmal.pipeline import effects as protocol
from einmal.pipeline.batch_plan import Batch
from einmal.pipeline.claims import Denied, Output
from einmal.pipeline.commit_record import COMMIT_TOPIC, CommitRecord, UnreadableCommitRecord
from einmal.pipeline.committer import Committer
from einmal.pipeline.positions import short
from einmal.pipeline.run_state import Held, Query
from einmal.spark import events
from einmal.spark.errors import PipelineFailed, PipelineFenced, PipelineRefused, reason_of
from einmal.spark.output.claim_service import OpenTransaction, TopicTable
from einmal.spark.output.resources import SinkResources
from einmal.spark.output.writer import WriteAs
from einmal.spark.protocol.commit_log import CommitLog, Uncertain
from einmal.spark.protocol.execution import StateInDoubt
from einmal.spark.protocol.kafka_transactions import KafkaTransactions
from einmal.spark.protocol.run import CurrentBatch
from einmal.types import ErrorCode, ProducerIdAndEpoch, TopicPartition

_IN_TRANSACTION: Final = (protocol.WriteBatch, protocol.WriteCommitRecord, protocol.CommitSourcePositions)
_COMMIT_TOPIC_GONE: Final = (
    ", and with it the proof of what is committed: restore it, or start once with einmal.adopt=true if the output is "
    "known to be complete up to the start of this batch"
)
_MARKER_S: Final = 30.0
"""How long the marker of a transaction that has ended may take to appear."""
_WILL_AGAIN: Final = frozenset(
    {"RowRefused", "RecordTooLarge", "DataLoss", "BadRecord", "NoDeadLetters", "SchemaDrift", "ToleranceExceeded"}
)
"""Raised by a task where a row cannot be written, or its input cannot be read: every other attempt would fail, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where the transactions of a run go, and their listener. ``client``: settings under Kafka's names. ``is_new``:
    nobody can have used the transactional.id before."""

    transactional_id: str
    client: Mapping[str, str]
    resources: SinkResources
    notify: events.Listener
    is_new: bool = False


class Additions(Protocol):
    """What a stream adds to a transaction, beside output and commit record."""

    def finish_spark_commit(self, record: CommitRecord) -> protocol.Finished | protocol.Failed:
        """Spark's own commit file of the record's batch, so that a stateful batch never runs again."""

    def commit_text(self, batch: CurrentBatch) -> str | None:
        """Spark's own commit file, if the batch that was just written has state. Raises StateInDoubt."""

    def commit_positions(
        self, transactions: KafkaTransactions, identity: ProducerIdAndEpoch, batch_id: int, end: tuple[Any, ...]
    ) -> None:
        """Commit the source positions at the batch's end. Raises KafkaError."""


class NoAdditions:
    """A batch write has no checkpoint, no state and no positions."""

    def finish_spark_commit(self, record: CommitRecord) -> protocol.Finished | protocol.Failed:
        raise AssertionError(f"no checkpoint, no commit file: {record}")

    def commit_text(self, _batch: CurrentBatch) -> str | None:
        return None

    def commit_positions(
        self, _transactions: KafkaTransactions, _identity: ProducerIdAndEpoch, _batch_id: int, _end: tuple[Any, ...]
    ) -> None:
        """Nothing is read."""


class _Answer(NamedTuple):
    event: protocol.Event
    cause: BaseException | None = None


class TransactionRun:
    """One conversation with the committer at a time. Every method raises PipelineError."""

    def __init__(self, destination: Destination, query: Query, additions: Additions, held: Held | None = None) -> None:
        """``held``: by the run before this one, where the query is restarted."""
        self._destination = destination
        self._id = destination.transactional_id
        self._resources = destination.resources
        self._additions = additions
        self._committer = Committer(query, held)
        self._transactions = KafkaTransactions(destination.client, self._id)
        self._log = CommitLog(destination.resources.cluster, destination.client, self._id, is_new=destination.is_new)
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

    def batch(self, planned: Batch, batch: CurrentBatch) -> protocol.Ready:
        """Write one micro-batch, unless it is committed already."""
        return self._converse(self._committer.batch(planned), batch)

    def write(self, batch: CurrentBatch) -> protocol.Ready:
        """Write the one batch of a batch write."""
        return self._converse(self._committer.write(), batch)

    def forget(self) -> None:
        """Let compaction delete the commit record. Raises KafkaError."""
        self._log.forget()

    def abandon(self) -> None:
        """Abort what a batch that is given up has left open."""
        self._transactions.abandon()

    def close(self) -> None:
        self._transactions.close()

    # --- the conversation ---------------------------------------------------------------------------------------

    def _converse(self, effect: protocol.Effect, batch: CurrentBatch | None) -> protocol.Ready:
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
        """A batch that failed after its transaction's time: the coordinator has fenced it, and would fence the next
        attempt."""
        if not isinstance(effect, _IN_TRANSACTION) or not isinstance(event, protocol.Failed):
            return event
        took, limit = self._transactions.age_s, self._transactions.timeout_s
        if took < limit:
            return event
        return protocol.Fenced(f"the batch took {took:.0f} s, its transaction may {limit:.0f} s")

    def _perform(self, effect: protocol.Effect, batch: CurrentBatch | None) -> _Answer:
        try:
            if batch is not None and isinstance(effect, protocol.WriteBatch):
                return self._write_batch(effect.identity, batch)
            if batch is not None and isinstance(effect, protocol.WriteCommitRecord):
                return self._write_commit_record(effect.identity, effect.record, batch)
            return _Answer(self._request(effect, batch))
        except UnreadableCommitRecord as error:
            raise PipelineRefused(
                str(error),
                f"einmal pipeline adopt {self._id} --checkpoint DIR, or einmal pipeline reset {self._id}, replaces it",
            ) from error
        except Uncertain as error:
            return _Answer(protocol.Failed(str(error)), error)
        except UnknownOutcome as error:
            return _Answer(protocol.Unclear(str(error)), error)
        except KafkaError as error:
            return _Answer(_event_of(error, effect), error)

    def _request(self, effect: protocol.Effect, batch: CurrentBatch | None) -> protocol.Event:
        match effect:
            case protocol.ReadRecord(certain):
                return protocol.RecordRead(self._log.read(_MARKER_S) if certain else self._log.look())
            case protocol.AbortHeld(identity):
                return protocol.Ended(self._transactions.abort_held(identity))
            case protocol.InitProducerId(previous):
                return self._init_producer_id(previous)
            case protocol.FinishSparkCommit(record):
                return self._additions.finish_spark_commit(record)
            case protocol.CommitSourcePositions(identity, end) if batch is not None:
                self._additions.commit_positions(self._transactions, identity, batch.batch_id, end)
                return protocol.Done()
            case protocol.EndTxn(identity, committed) if batch is not None:
                following = self._transactions.end(identity, committed=committed)
                self._destination.notify(events.TransactionEnded(batch.batch_id, committed))
                return protocol.Ended(following)
            case _:
                raise AssertionError((effect, batch))

    def _init_producer_id(self, previous: ProducerIdAndEpoch | None) -> protocol.Event:
        identity = self._transactions.init_producer_id(previous)
        if previous is None:
            self._destination.notify(events.NameTaken(self._id, identity.producer_id, identity.producer_epoch))
        return protocol.IdentityGranted(identity)

    # --- a batch ------------------------------------------------------------------------------------------------

    def _write_batch(self, identity: ProducerIdAndEpoch, batch: CurrentBatch) -> _Answer:
        notify, batch_id = self._destination.notify, batch.batch_id

        def claimed(target: TopicPartition) -> None:
            self._transactions.add(identity, target)
            notify(events.PartitionClaimed(batch_id, target.topic, target.partition))

        def reported(output: Output) -> None:
            notify(events.PartitionWritten(batch_id, output.topic, output.partition, output.count))

        claims = OpenTransaction(TopicTable(self._resources.cluster.partition_count), add=claimed, reported=reported)
        self._transactions.begin(identity)
        self._resources.service.begin(claims)
        try:
            write_as = WriteAs(self._id, identity, self._transactions.version)
            outputs = claims.close(self._resources.job.run(batch.frame, claims, batch_id, write_as))
            if isinstance(outputs, Denied):
                return _Answer(protocol.Failed(outputs.reason))
            notify(events.OutputWritten(batch_id))
            return _Answer(protocol.Acknowledged(outputs, self._additions.commit_text(batch)))
        except (KafkaError, PipelineRefused):
            raise
        except StateInDoubt as error:
            return _Answer(protocol.Failed(str(error)), error)
        except Exception as error:  # noqa: BLE001 - whatever a job of the user's can raise
            reason = reason_of(error)
            return _Answer(protocol.Failed(reason, will_again=reason.partition(":")[0] in _WILL_AGAIN), error)
        finally:
            self._resources.service.end()

    def _write_commit_record(self, identity: ProducerIdAndEpoch, record: CommitRecord, batch: CurrentBatch) -> _Answer:
        try:
            # A topic that is gone would be waited for as long as a delivery may take.
            self._resources.cluster.partitions([COMMIT_TOPIC])
        except UnknownTopic as error:
            reason = f"{COMMIT_TOPIC} was deleted while the pipeline ran{_COMMIT_TOPIC_GONE}"
            return _Answer(protocol.Failed(reason, will_again=True), error)
        self._transactions.add(identity, self._log.partition)
        self._log.write(record, identity, self._transactions.version)
        self._destination.notify(events.BatchWritten(batch.batch_id, record.records))
        return _Answer(protocol.Done())


def _event_of(error: KafkaError, effect: protocol.Effect) -> protocol.Event:
    """What an effect's error means to the committer. Raises PipelineRefused where no pipeline was running yet."""
    if isinstance(error, ProducerFenced) and not isinstance(effect, protocol.WriteBatch):
        return protocol.Fenced(str(error))
    if error.code is ErrorCode.invalid_producer_id_mapping:
        return protocol.Expired(str(error))
    match effect:
        case protocol.WriteCommitRecord(_, record) if isinstance(error, RecordTooLarge):
            return protocol.Failed(
                f"the commit record has {len(record.encode()):,} bytes ({short(record.end)}): {error} Raise "
                f"max.message.bytes of {COMMIT_TOPIC}, and kafka.max.request.size.",
                will_again=True,
            )
        case protocol.InitProducerId(None) if isinstance(error, FatalError):
            raise PipelineRefused(str(error)) from error
        case protocol.AbortHeld() if isinstance(error, RetriableError):
            return protocol.Unclear(str(error))
        case protocol.EndTxn(_, False):
            # Nothing more can be done about it here: the coordinator's timeout or the next start aborts.
            return protocol.Unclear(str(error))
        case _:
            return protocol.Failed(str(error))
