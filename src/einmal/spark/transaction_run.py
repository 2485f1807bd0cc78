"""What the committer decides, performed on Kafka: one run under one transactional id, of a stream or of a batch write.

Every effect of the machine has one method here, and its answer is the machine's next event. After an error a run cannot
go on, and a new one finds out from the commit record. What only a stream has (a checkpoint, source positions, state)
is its own: ``spark.exactly_once``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame

from einmal.client import TransactionDriver
from einmal.client.errors import (
    FatalError,
    KafkaError,
    ProducerFenced,
    RecordTooLarge,
    RetriableError,
    UnknownOutcome,
    UnknownTopic,
)
from einmal.pipeline import committer as protocol
from einmal.pipeline.claims import Denied, Output
from einmal.pipeline.commit_record import COMMIT_TOPIC, CommitRecord, UnreadableCommitRecord
from einmal.pipeline.committer import Committer
from einmal.pipeline.positions import short
from einmal.spark import events
from einmal.spark.claim_service import ClaimService, TopicTable, Transaction
from einmal.spark.cluster import KafkaCluster
from einmal.spark.commit_log import CommitLog, Uncertain
from einmal.spark.errors import PipelineFailed, PipelineFenced, PipelineRefused, reason_of
from einmal.spark.execution import StateInDoubt
from einmal.spark.job import Job
from einmal.spark.options import TRANSACTION_TIMEOUT_MS
from einmal.types import ErrorCode, ProducerIdAndEpoch, TopicPartition, TransactionVersion

_IN_TRANSACTION: Final = (protocol.WriteBatch, protocol.WriteCommitRecord, protocol.CommitSourcePositions)
_COMMIT_TOPIC_GONE: Final = (
    ", and with it the proof of what is committed: restore it, or start once with einmal.adopt=true if the output is "
    "known to be complete up to the start of this batch"
)
Listener = Callable[[events.Event], None]
_MARKER_S: Final = 30.0
"""How long the marker of a transaction that has ended may take to appear."""
_WILL_AGAIN: Final = frozenset({"RowRefused", "RecordTooLarge", "DataLoss"})
"""What a task raises where a row cannot be written, or its input cannot be read: no other attempt could."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where the transactions of a run go, and who is told. ``client``: settings under Kafka's names. ``is_new``: nobody
    can have used the transactional.id before."""

    transactional_id: str
    client: Mapping[str, str]
    cluster: KafkaCluster
    service: ClaimService
    job: Job
    tell: Listener
    is_new: bool = False


class TransactionRun:
    def __init__(self, destination: Destination, committer: Committer) -> None:
        self._destination = destination
        self._id = destination.transactional_id
        self._committer = committer
        self._timeouts = _timeouts(destination.client)
        self._driver = self._new_driver()
        self._log = CommitLog(destination.cluster, destination.client, self._id, is_new=destination.is_new)
        self._version = TransactionVersion.TV_1
        self._is_empty = True
        self._batch_id = -1
        self._frame: DataFrame | None = None
        self._cause: BaseException | None = None
        self._began: float | None = None
        """When the first partition was claimed: from then on the coordinator may count the transaction's time."""
        self._open: ProducerIdAndEpoch | None = None
        """Whose transaction has been begun, and not yet been ended."""
        self.is_undecided = False
        """The run ended without knowing what became of its last request, or its identity has expired: only a new run
        can go on."""

    @property
    def held(self) -> protocol.Held | None:
        """For the run that follows this one in the same process."""
        return self._committer.held

    def close(self) -> None:
        self._driver.close()

    def abandon(self) -> None:
        """Abort what is open, if that goes: whoever gives up in mid-batch leaves no readers waiting."""
        identity, self._open = self._open, None
        if identity is not None and not self._is_empty:
            with contextlib.suppress(KafkaError):
                self._driver.end_txn(identity, committed=False)

    # --- what only a stream has ---------------------------------------------------------------------------------

    def _finish_spark_commit(self, record: CommitRecord) -> protocol.Event:
        raise AssertionError(f"no checkpoint, no commit file: {record}")

    def _commit_source_positions(self, _identity: ProducerIdAndEpoch, _end: tuple[Any, ...]) -> protocol.Event:
        return protocol.Done()

    def _commit_text(self) -> str | None:
        """Spark's own commit file, if the batch that was just written has state. Raises StateInDoubt."""
        return None

    # --- the machine's effects ----------------------------------------------------------------------------------

    def _run(self, effect: protocol.Effect) -> protocol.Ready:
        while True:
            match effect:
                case protocol.Ready():
                    return effect
                case protocol.Refused(reason, hint):
                    raise PipelineRefused(reason, hint)
                case protocol.Dead(reason, hint):
                    raise PipelineFenced(reason, hint) from self._cause
                case protocol.Restart(reason, hint):
                    raise PipelineFailed(reason, hint) from self._cause
            event = self._overdue(effect, self._perform(effect))
            self.is_undecided = isinstance(event, protocol.Unclear | protocol.Expired)
            effect = self._committer.step(event)

    def _overdue(self, effect: protocol.Effect, event: protocol.Event) -> protocol.Event:
        """A batch that failed after its transaction's time: the coordinator has fenced it, and would the next try."""
        if not isinstance(effect, _IN_TRANSACTION) or not isinstance(event, protocol.Failed):
            return event
        took = 0.0 if self._began is None else time.monotonic() - self._began
        if took < self._timeouts[0] / 1000:
            return event
        return protocol.Fenced(f"the batch took {took:.0f} s, its transaction may {self._timeouts[0] / 1000:.0f} s")

    def _perform(self, effect: protocol.Effect) -> protocol.Event:
        try:
            return self._performed(effect)
        except UnreadableCommitRecord as error:
            raise PipelineRefused(
                str(error),
                f"einmal pipeline adopt {self._id} --checkpoint DIR, or einmal pipeline reset {self._id}, replaces it",
            ) from error
        except Uncertain as error:
            self._cause = error
            return protocol.Failed(str(error))
        except UnknownOutcome as error:
            self._cause = error
            return protocol.Unclear(str(error))
        except KafkaError as error:
            self._cause = error
            return self._refused(effect, error)

    def _performed(self, effect: protocol.Effect) -> protocol.Event:
        match effect:
            case protocol.ReadRecord(certain):
                return protocol.RecordRead(self._log.read(_MARKER_S) if certain else self._log.look())
            case protocol.AbortHeld(identity):
                return protocol.Ended(self._driver.end_txn(identity, committed=False))
            case protocol.InitProducerId(previous):
                return self._init_producer_id(previous)
            case protocol.FinishSparkCommit(record):
                return self._finish_spark_commit(record)
            case protocol.WriteBatch(identity):
                return self._write_batch(identity)
            case protocol.WriteCommitRecord(identity, record):
                return self._write_commit_record(identity, record)
            case protocol.CommitSourcePositions(identity, end):
                return self._commit_source_positions(identity, end)
            case protocol.EndTxn(identity, committed):
                return self._end_txn(identity, committed)
            case _:
                raise AssertionError(effect)

    def _refused(self, effect: protocol.Effect, error: KafkaError) -> protocol.Event:
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

    def _new_driver(self) -> TransactionDriver:
        client = dict(self._destination.client) | {"transactional.id": self._id}
        return TransactionDriver(client | {"transaction.timeout.ms": str(self._timeouts[0])})

    def _init_producer_id(self, previous: ProducerIdAndEpoch | None) -> protocol.Event:
        try:
            identity = self._driver.init_producer_id(previous)
        except FatalError as error:
            if error.code is not ErrorCode.invalid_transaction_timeout or len(self._timeouts) == 1:
                raise
            # The cluster's transaction.max.timeout.ms is lower; only trying tells without the right to read it.
            del self._timeouts[0]
            self._driver.close()
            self._driver = self._new_driver()
            return self._init_producer_id(previous)
        self._version = self._driver.transaction_version
        self._is_empty = True
        if previous is None:
            self._destination.tell(events.NameTaken(self._id, identity.producer_id, identity.producer_epoch))
        return protocol.IdentityGranted(identity)

    def _write_batch(self, identity: ProducerIdAndEpoch) -> protocol.Event:
        self._began = None
        self._open = identity
        transaction = Transaction(
            TopicTable(self._destination.cluster.partition_count),
            add=lambda target: self._claimed(identity, target),
            reported=lambda output: self._destination.tell(
                events.PartitionWritten(self._batch_id, output.topic, output.partition, output.count)
            ),
        )
        self._destination.service.begin(transaction)
        try:
            outputs = self._outputs(transaction, identity)
            if isinstance(outputs, Denied):
                return protocol.Failed(outputs.reason)
            self._destination.tell(events.OutputWritten(self._batch_id))
            return protocol.Written(outputs, self._commit_text())
        except (KafkaError, PipelineRefused):
            raise
        except StateInDoubt as error:
            self._cause = error
            return protocol.Failed(str(error))
        except Exception as error:  # noqa: BLE001 - whatever a job of the user's can raise
            self._cause = error
            reason = reason_of(error)
            return protocol.Failed(reason, will_again=reason.partition(":")[0] in _WILL_AGAIN)
        finally:
            self._destination.service.end()

    def _outputs(self, transaction: Transaction, identity: ProducerIdAndEpoch) -> tuple[Output, ...] | Denied:
        assert self._frame is not None
        collected = self._destination.job.run(
            self._frame,
            transaction,
            batch_id=self._batch_id,
            transactional_id=self._id,
            identity=identity,
            transaction_version=self._version,
        )
        if collected:
            self._is_empty = False
        return transaction.close(collected)

    def _write_commit_record(self, identity: ProducerIdAndEpoch, record: CommitRecord) -> protocol.Event:
        try:
            # A topic that is gone would be waited for as long as a delivery may take.
            self._destination.cluster.partitions([COMMIT_TOPIC])
        except UnknownTopic as error:
            self._cause = error
            return protocol.Failed(f"{COMMIT_TOPIC} was deleted while the pipeline ran{_COMMIT_TOPIC_GONE}", True)
        self._add(identity, self._log.partition)
        self._log.write(record, identity, self._version)
        self._destination.tell(events.BatchWritten(self._batch_id, record.records))
        return protocol.Done()

    def _end_txn(self, identity: ProducerIdAndEpoch, committed: bool) -> protocol.Event:
        self._open = None
        if self._is_empty and not committed and self._version < TransactionVersion.TV_2:
            # The coordinator knows of no transaction, and would answer INVALID_TXN_STATE.
            self._destination.tell(events.TransactionEnded(self._batch_id, committed))
            return protocol.Ended(None)
        following = self._driver.end_txn(identity, committed=committed)
        self._is_empty = True
        self._destination.tell(events.TransactionEnded(self._batch_id, committed))
        return protocol.Ended(following)

    def _claimed(self, identity: ProducerIdAndEpoch, target: TopicPartition) -> None:
        self._add(identity, target)
        self._destination.tell(events.PartitionClaimed(self._batch_id, target.topic, target.partition))

    def _add(self, identity: ProducerIdAndEpoch, target: TopicPartition) -> None:
        self._is_empty = False
        if self._began is None:
            self._began = time.monotonic()
        self._driver.add_partitions(identity, [target])


def _timeouts(client: Mapping[str, str]) -> list[int]:
    """Transaction timeouts to ask for, in order: the user's, else Kafka's default maximum and lower ones."""
    chosen = client.get("transaction.timeout.ms")
    return [int(chosen)] if chosen is not None else [TRANSACTION_TIMEOUT_MS, 300_000, 60_000]
