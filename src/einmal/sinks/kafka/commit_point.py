"""The verbs of a commit point, in a Kafka transaction under the run's transactional.id.

Tasks write under the identity of the driver (``claim_service``); what they have written is staged because no
``read_committed`` reader sees it before EndTxn. Errors of the client become errors of a commit point here, and nowhere
else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from einmal.client import PreparedTxnState
from einmal.client.aio.producing.transaction_requests import KeptTransaction
from einmal.client.cores.producer_batch import TOPIC_LIMITS
from einmal.client.errors import (
    FatalError,
    KafkaError,
    ProducerFenced,
    RetriableError,
    UnknownOutcome,
    UnknownTopic,
)
from einmal.client.records import OffsetAndMetadata, WrittenRange
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.commit_protocol.batch_plan import ADOPT_ONCE
from einmal.commit_protocol.claims import Denied, Output
from einmal.commit_protocol.commit_record import COMMIT_TOPIC, CommitRecord
from einmal.commit_protocol.positions import short
from einmal.options.sink import TWO_PHASE_COMMIT
from einmal.pipeline import events
from einmal.pipeline.errors import PipelineRefused
from einmal.sinks.batch_rows import BatchRows
from einmal.sinks.commit_point import (
    CommitPoint,
    Identity,
    IdentityExpired,
    OutcomeUnknown,
    RowCommitPoint,
    SinkError,
    SinkFailed,
    SinkFenced,
)
from einmal.sinks.kafka.batches import write_all
from einmal.sinks.kafka.claim_service import ClaimService
from einmal.sinks.kafka.commit_log import CommitLog, Uncertain
from einmal.sinks.kafka.open_transaction import OpenTransaction, TopicTable, WriteAs
from einmal.sinks.kafka.source_positions import SourcePositions
from einmal.sinks.kafka.transactions import KafkaTransactions
from einmal.types import ErrorCode, TopicPartition

_COMMIT_TOPIC_GONE: Final = (
    f", and with it the proof of what is committed: restore it, or {ADOPT_ONCE} if the output is "
    "known to be complete up to the start of this batch"
)
_MARKER_S: Final = 30.0
"""How long the marker of a transaction that has ended may take to appear."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOpening:
    """``client``: settings under Kafka's names. ``positions``: None where none are read. ``is_new``: nobody can have
    used the transactional.id before. ``two_phase``: its transactions can be prepared."""

    transactional_id: str
    client: Mapping[str, str]
    cluster: KafkaCluster
    positions: SourcePositions | None = None
    is_new: bool = False
    two_phase: bool = False


class KafkaCommitPoint(CommitPoint):
    """See ``CommitPoint``."""

    fenced_hint: ClassVar[str] = (
        "another instance has started under this transactional.id, or the batch took longer than "
        "transaction.timeout.ms: use one transactional.id per pipeline; raise kafka.transaction.timeout.ms, or "
        "make batches smaller with maxOffsetsPerTrigger"
    )

    def __init__(self, opening: KafkaOpening) -> None:
        self._id = opening.transactional_id
        self._cluster = opening.cluster
        self._positions = opening.positions
        self._transactions = KafkaTransactions(opening.client, self._id, two_phase=opening.two_phase)
        self._log = CommitLog(opening.cluster, opening.client, self._id, is_new=opening.is_new)
        self._cluster_id = functools.cache(opening.cluster.cluster_id)
        self._has_begun = False
        """A transaction was begun by this run: what is aborted before may be the run's before this one."""
        self._record_is_elsewhere = opening.two_phase
        """The database of a two-phase commit has the record."""
        self._is_recorded = False

    def look(self) -> CommitRecord | None:
        with _errors():
            return self._log.look()

    def acquire(self, held: Identity | None) -> Identity:
        with _errors(_refused_at_first if held is None else None):
            if held is None:
                self._check_undecided()
            return self._transactions.init_producer_id(held)

    def _check_undecided(self) -> None:
        """InitProducerId would abort what a database may have committed. Raises PipelineRefused."""
        transaction = self._cluster.open_transaction(self._id)
        if transaction is not None and transaction.is_two_phase:
            raise PipelineRefused(
                f"{self._id!r} has a transaction of a two-phase commit open, {transaction.producer_id}:"
                f"{transaction.producer_epoch}, which its database may have committed",
                f"start it once with kafka.{TWO_PHASE_COMMIT}, as it ran before: that ends the transaction as the "
                f"database has decided; without a database: einmal txn abort {self._id}",
            )

    def cluster_id(self) -> str | None:
        """Return the id of the topics' cluster."""
        with _errors():
            return self._cluster_id()

    def keep(self) -> KeptTransaction:
        """As ``acquire``, but what the former owner has left open is kept: for a two-phase commit."""
        with _errors(_refused_at_first):
            return self._transactions.keep_prepared_txn()

    def prepared(self, identity: Identity) -> PreparedTxnState:
        """The name by which a database commits the transaction; empty if nothing was written in it."""
        return self._transactions.prepared(identity)

    def complete(self, kept: KeptTransaction, committed: PreparedTxnState) -> Identity:
        """End what was kept as a database has decided; the identity of the next transaction."""
        with _errors():
            return self._transactions.complete(kept, committed)

    def read(self) -> CommitRecord | None:
        with _errors():
            return self._log.read(_MARKER_S)

    def check(self, identity: Identity) -> None:
        """Asks the coordinator. One that has forgotten the name knows of no successor."""
        with _errors():
            transaction = self._cluster.transaction(self._id)
        if transaction is None:
            return
        if transaction.producer_id != identity.producer_id or transaction.producer_epoch > identity.producer_epoch:
            raise SinkFenced(
                f"PRODUCER_FENCED: another instance has acquired {self._id!r} (producer id {transaction.producer_id}, "
                f"epoch {transaction.producer_epoch}; this one has {identity.producer_id}, {identity.producer_epoch})"
            )

    def stage_by_tasks(
        self,
        identity: Identity,
        service: ClaimService | None,
        run: Callable[[OpenTransaction, WriteAs], list[Output]],
        *,
        claimed: Callable[[TopicPartition], None] = lambda partition: None,
        reported: Callable[[Output], None] = lambda output: None,
    ) -> tuple[Output, ...]:
        """``run`` is a job whose tasks claim partitions at ``service`` before they write, and returns what they have
        written. ``service``: None where they run in this process."""

        def add(partition: TopicPartition) -> None:
            self._transactions.add(identity, partition)
            claimed(partition)

        claims = OpenTransaction(TopicTable(self._cluster.partition_count), add=add, reported=reported)
        self._begin(identity)
        if service is not None:
            service.begin(claims)
        try:
            write_as = WriteAs(self._id, identity, self._transactions.version)
            # A task that is fenced has failed: the coordinator has the last word.
            with _errors(_failed):
                outputs = claims.close(run(claims, write_as))
        finally:
            if service is None:
                claims.close(())
            else:
                service.end()
        if isinstance(outputs, Denied):
            raise SinkFailed(outputs.reason)
        return outputs

    def record(self, identity: Identity, record: CommitRecord | None) -> None:
        if not self._transactions.is_open:
            self._begin(identity)

        def too_large(error: KafkaError) -> SinkError | None:
            if record is None or error.code not in TOPIC_LIMITS:
                return None
            return SinkFailed(
                f"the commit record has {len(record.encode()):,} bytes ({short(record.end)}): {error} "
                f"The limit is {TOPIC_LIMITS[error.code]} of {COMMIT_TOPIC}.",
                will_again=True,
            )

        with _errors(too_large):
            try:
                # A topic that is gone would be waited for as long as a delivery may take.
                self._cluster.partitions([COMMIT_TOPIC])
            except UnknownTopic as error:
                reason = f"{COMMIT_TOPIC} was deleted while the pipeline ran{_COMMIT_TOPIC_GONE}"
                raise SinkFailed(reason, will_again=True) from error
            self._transactions.add(identity, self._log.partition)
            self._log.write(record, identity, self._transactions.version)
        self._is_recorded = True

    def positions(self, identity: Identity, batch_id: int, end: tuple[Any, ...]) -> None:
        if self._positions is not None:
            with _errors():
                self._positions.commit(self._transactions, identity, batch_id, end)

    def append(
        self, identity: Identity, batches: Iterable[tuple[TopicPartition, bytes]]
    ) -> dict[TopicPartition, WrittenRange]:
        """Write encoded batches inside the transaction, from this process; where they are. Sequences of a partition
        begin at 0, in one call per transaction."""
        if not self._transactions.is_open:
            self._begin(identity)
        with _errors(_failed), self._log.writer.begun(identity, self._transactions.version) as writer:
            return write_all(writer, batches, lambda partition: self._transactions.add(identity, partition))

    def commit_offsets(
        self, identity: Identity, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]
    ) -> None:
        """Offsets of a group, inside the transaction."""
        with _errors():
            self._transactions.commit_offsets(identity, group_id, offsets)

    def commit(self, identity: Identity) -> Identity | None:
        assert self._is_recorded or self._record_is_elsewhere, "rows are committed with their record"
        with _errors():
            return self._transactions.end(identity, committed=True)

    def abort(self, identity: Identity) -> Identity | None:
        if not self._has_begun:
            with _errors(_unknown_if_retriable):
                return self._transactions.abort_held(identity)
        # Nothing more can be done about an error here: the coordinator's timeout or the next start aborts.
        with _errors(_unknown):
            return self._transactions.end(identity, committed=False)

    def overdue(self) -> str:
        """A batch that failed after its transaction's time: the coordinator has fenced it, and would fence the next
        attempt."""
        took, limit = self._transactions.age_s, self._transactions.timeout_s
        return "" if took < limit else f"the batch took {took:.0f} s, its transaction may {limit:.0f} s"

    def forget(self) -> None:
        """A tombstone in no transaction: compaction deletes the record."""
        with _errors():
            self._log.forget()

    def abandon(self) -> None:
        self._transactions.abandon()

    def close(self) -> None:
        self._log.close()
        self._transactions.close()

    def _begin(self, identity: Identity) -> None:
        self._has_begun = True
        self._is_recorded = False
        self._transactions.begin(identity)


class KafkaRowCommitPoint(KafkaCommitPoint, RowCommitPoint):
    """Topics that take rows: Arrow's, which this process writes."""

    def __init__(self, opening: KafkaOpening, topic: str | None, notify: events.Listener) -> None:
        """``topic``: None where each row has its own."""
        super().__init__(opening)
        self._client = opening.client
        self._topic = topic
        self._notify = notify

    def stage(self, identity: Identity, batch_id: int, rows: BatchRows) -> tuple[Output, ...]:
        # Mirrors and ingesters run without pyarrow.
        from einmal.sinks.kafka.arrow_job import ArrowJob

        job = ArrowJob(self._client, self._topic, self._log.writer)
        return self._stage_batch(
            identity, batch_id, None, lambda claims, write_as: job.run(rows, claims, batch_id, write_as)
        )

    def _stage_batch(
        self,
        identity: Identity,
        batch_id: int,
        service: ClaimService | None,
        run: Callable[[OpenTransaction, WriteAs], list[Output]],
    ) -> tuple[Output, ...]:
        """``stage_by_tasks``, with events."""

        def claimed(partition: TopicPartition) -> None:
            self._notify(events.PartitionClaimed(batch_id, partition.topic, partition.partition))

        def reported(output: Output) -> None:
            self._notify(events.PartitionWritten(batch_id, output.topic, output.partition, output.count))

        return self.stage_by_tasks(identity, service, run, claimed=claimed, reported=reported)


# --- errors -----------------------------------------------------------------------------------------------------

Meaning = Callable[[KafkaError], SinkError | None]
"""Function that returns what an error means to one verb; None: what it means to every verb."""


@contextmanager
def _errors(meaning: Meaning | None = None) -> Iterator[None]:
    """Raises SinkError for the client's errors; PipelineRefused where no pipeline was running yet."""
    try:
        yield
    except Uncertain as error:
        raise SinkFailed(str(error)) from error
    except KafkaError as error:
        raise (None if meaning is None else meaning(error)) or _meaning(error) from error


def _meaning(error: KafkaError) -> SinkError:
    if isinstance(error, ProducerFenced):
        return SinkFenced(str(error))
    if error.code is ErrorCode.invalid_producer_id_mapping:
        return IdentityExpired(str(error))
    if isinstance(error, UnknownOutcome):
        return OutcomeUnknown(str(error))
    return SinkFailed(str(error))


def _failed(error: KafkaError) -> SinkError | None:
    """A write: whatever became of it, nothing is committed before EndTxn."""
    return SinkFailed(str(error)) if isinstance(error, (ProducerFenced, UnknownOutcome)) else None


def _refused_at_first(error: KafkaError) -> SinkError | None:
    if not isinstance(error, FatalError) or isinstance(error, ProducerFenced):
        return None
    if error.code is ErrorCode.invalid_producer_id_mapping:
        return None
    raise PipelineRefused(str(error)) from error


def _unknown_if_retriable(error: KafkaError) -> SinkError | None:
    return OutcomeUnknown(str(error)) if isinstance(error, RetriableError) else None


def _unknown(error: KafkaError) -> SinkError | None:
    if isinstance(error, ProducerFenced) or error.code is ErrorCode.invalid_producer_id_mapping:
        return None
    return OutcomeUnknown(str(error))
