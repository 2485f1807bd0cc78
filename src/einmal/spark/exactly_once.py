"""One run of an exactly-once query: performs what ``pipeline.committer`` decides, on Kafka and on Spark.

A run begins with ``start``, before Spark plans anything, and then takes one micro-batch after the other. It ends with
the query; after an error it cannot go on, and a new run finds out from the commit record. Every effect of the machine
has one method here, and its answer is the machine's next event.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from einmal.client import TransactionDriver
from einmal.client.errors import FatalError, KafkaError, ProducerFenced, UnknownOutcome
from einmal.pipeline import committer as protocol
from einmal.pipeline.batch_plan import Batch
from einmal.pipeline.claims import Denied, Output
from einmal.pipeline.commit_record import CommitRecord, UnreadableCommitRecord
from einmal.pipeline.committer import Committer, Query
from einmal.spark import events
from einmal.spark.checkpoint import Checkpoint, CheckpointError
from einmal.spark.claim_service import ClaimService, TopicTable, Transaction
from einmal.spark.cluster import KafkaCluster
from einmal.spark.commit_log import CommitLog, StillOpen
from einmal.spark.errors import PipelineFailed, PipelineFenced, PipelineRefused, reason_of
from einmal.spark.execution import Execution, StateInDoubt, empty_commit_file, sources, state_format
from einmal.spark.job import Job
from einmal.spark.offsets import from_json
from einmal.spark.options import TRANSACTION_TIMEOUT_MS, SinkOptions
from einmal.types import ErrorCode, ProducerIdAndEpoch, TransactionVersion

_IN_TRANSACTION: Final = (protocol.WriteBatch, protocol.WriteCommitRecord, protocol.CommitSourcePositions)
Listener = Callable[[events.Event], None]
_SELF_CONTAINED: Final = frozenset({"einmal", "kafka"})
"""Sources whose offsets say all there is to know, so that a query can begin at them without the old checkpoint."""
_MARKER_S: Final = 30.0
"""How long the marker of a transaction that has ended may take to appear."""
_IDENTITY_LOST: Final = frozenset({ErrorCode.invalid_producer_id_mapping})


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a run works with; the same for every run of a query."""

    spark: SparkSession
    options: SinkOptions
    frame: DataFrame
    stateful: bool
    cluster: KafkaCluster
    checkpoint: Checkpoint
    service: ClaimService
    job: Job
    tell: Listener


class ExactlyOnce:
    """One run. ``Execution`` is given once Spark has started the query."""

    def __init__(self, setting: Setting) -> None:
        assert setting.options.transactional_id is not None
        self._setting = setting
        self._id = setting.options.transactional_id
        self._query_id = setting.checkpoint.ensure_query_id()
        self._is_fresh = setting.checkpoint.latest_batch_id() is None
        self._committer = Committer(
            Query(
                transactional_id=self._id,
                query_id=self._query_id,
                checkpoint=setting.checkpoint.name,
                is_fresh=self._is_fresh,
                stateful=setting.stateful,
                adopt=setting.options.adopt,
            )
        )
        self._timeouts = _timeouts(setting.options.client)
        self._driver = self._new_driver()
        self._log = CommitLog(setting.cluster, setting.options.client, self._id)
        self._version = TransactionVersion.TV_1
        self._is_empty = True
        self._batch_id = -1
        self._frame: DataFrame | None = None
        self._execution: Execution | None = None
        self._cause: BaseException | None = None
        self._began = 0.0
        self._same_cluster: dict[str, bool] = {}
        self.is_undecided = False
        """The run ended without knowing what became of its last request: only a new run can find out."""

    def start(self) -> None:
        """Take the name, learn where the pipeline stands, mend the checkpoint. Raises PipelineError."""
        self._run(self._committer.start())
        resume = self._committer.resume_from()
        if resume is not None:
            self._resume(resume)

    def batch(self, frame: DataFrame, batch_id: int, execution: Execution) -> None:
        """Write one micro-batch, once. Raises PipelineError."""
        self._frame, self._batch_id, self._execution, self._cause = frame, batch_id, execution, None
        end = self._setting.checkpoint.offsets(batch_id)
        before = self._setting.checkpoint.offsets(batch_id - 1) if batch_id > 0 else None
        assert end is not None, f"Spark runs batch {batch_id} without having written its offsets"
        start = None if before is None else before.end
        self._setting.tell(events.BatchStarted(batch_id, start, end.end))
        ready = self._run(
            self._committer.batch(
                Batch(
                    query_id=self._query_id,
                    checkpoint=self._setting.checkpoint.name,
                    batch_id=batch_id,
                    start=start,
                    end=end.end,
                )
            )
        )
        if ready.already_in:
            self._setting.tell(events.BatchAlreadyIn(batch_id))
            # Sources that count on being read are read; nothing is written.
            frame.write.format("noop").mode("append").save()

    def close(self) -> None:
        self._driver.close()

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
            self.is_undecided = isinstance(event, protocol.Unclear)
            effect = self._committer.step(event)

    def _overdue(self, effect: protocol.Effect, event: protocol.Event) -> protocol.Event:
        """A batch that failed after its transaction's time: the coordinator has fenced it, and would the next try."""
        if not isinstance(effect, _IN_TRANSACTION) or not isinstance(event, protocol.Failed):
            return event
        took = time.monotonic() - self._began
        if took < self._timeouts[0] / 1000:
            return event
        return protocol.Fenced(f"the batch took {took:.0f} s, its transaction may {self._timeouts[0] / 1000:.0f} s")

    def _perform(self, effect: protocol.Effect) -> protocol.Event:
        try:
            match effect:
                case protocol.ReadRecord(certain):
                    return protocol.RecordRead(self._log.read(_MARKER_S) if certain else self._log.look())
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
        except UnreadableCommitRecord as error:
            raise PipelineRefused(str(error)) from error
        except StillOpen as error:
            self._cause = error
            return protocol.Failed(str(error))
        except UnknownOutcome as error:
            self._cause = error
            return protocol.Unclear(str(error))
        except KafkaError as error:
            self._cause = error
            return self._refused(effect, error)

    def _refused(self, effect: protocol.Effect, error: KafkaError) -> protocol.Event:
        is_fenced = isinstance(error, ProducerFenced) or error.code in _IDENTITY_LOST
        if is_fenced and not isinstance(effect, protocol.WriteBatch):
            return protocol.Fenced(str(error))
        match effect:
            case protocol.InitProducerId(None) if isinstance(error, FatalError):
                raise PipelineRefused(str(error)) from error
            case protocol.EndTxn(_, False):
                # Nothing more can be done about it here: the coordinator's timeout or the next start aborts.
                return protocol.Unclear(str(error))
            case _:
                return protocol.Failed(str(error))

    def _new_driver(self) -> TransactionDriver:
        client = dict(self._setting.options.client) | {"transactional.id": self._id}
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
            self._setting.tell(events.NameTaken(self._id, identity.producer_id, identity.producer_epoch))
        return protocol.IdentityGranted(identity)

    def _write_batch(self, identity: ProducerIdAndEpoch) -> protocol.Event:
        self._began = time.monotonic()
        transaction = Transaction(
            TopicTable(self._setting.cluster.partition_count),
            add=lambda target: self._add(identity, target),
            reported=lambda output: self._setting.tell(
                events.PartitionWritten(self._batch_id, output.topic, output.partition, output.count)
            ),
        )
        self._setting.service.begin(transaction)
        try:
            assert self._frame is not None and self._execution is not None
            outputs = self._outputs(transaction, identity)
            if isinstance(outputs, Denied):
                return protocol.Failed(outputs.reason)
            commit_text = self._execution.commit_text(self._batch_id) if self._setting.stateful else None
            if not self._setting.stateful and self._execution.keeps_state():
                raise PipelineRefused(
                    "the query keeps state, which its plan did not show before it started", "please report this query"
                )
            return protocol.Written(outputs, commit_text)
        except (KafkaError, PipelineRefused):
            raise
        except StateInDoubt as error:
            self._cause = error
            return protocol.Failed(str(error))
        except Exception as error:  # noqa: BLE001 - whatever a job of the user's can raise
            self._cause = error
            return protocol.Failed(reason_of(error))
        finally:
            self._setting.service.end()

    def _outputs(self, transaction: Transaction, identity: ProducerIdAndEpoch) -> tuple[Output, ...] | Denied:
        assert self._frame is not None
        collected = self._setting.job.run(
            self._frame,
            transaction,
            transactional_id=self._id,
            identity=identity,
            transaction_version=self._version,
        )
        if collected:
            self._is_empty = False
        return transaction.close(collected)

    def _write_commit_record(self, identity: ProducerIdAndEpoch, record: CommitRecord) -> protocol.Event:
        self._add(identity, self._log.partition)
        self._log.write(record, identity, self._version)
        self._setting.tell(events.BatchWritten(self._batch_id, record.records))
        return protocol.Done()

    def _commit_source_positions(self, identity: ProducerIdAndEpoch, end: tuple[Any, ...]) -> protocol.Event:
        group_id = self._setting.options.group_id
        assert group_id is not None
        positions = {}
        for (kind, options), offsets in zip(sources(self._setting.frame), end, strict=False):
            if kind in _SELF_CONTAINED and isinstance(offsets, dict) and self._is_here(options):
                positions.update(from_json(offsets))
        self._driver.txn_offset_commit(identity, group_id, positions)
        return protocol.Done()

    def _end_txn(self, identity: ProducerIdAndEpoch, committed: bool) -> protocol.Event:
        if self._is_empty and not committed and self._version < TransactionVersion.TV_2:
            # The coordinator knows of no transaction, and would answer INVALID_TXN_STATE.
            self._setting.tell(events.TransactionEnded(self._batch_id, committed))
            return protocol.Ended(None)
        following = self._driver.end_txn(identity, committed=committed)
        self._is_empty = True
        self._setting.tell(events.TransactionEnded(self._batch_id, committed))
        return protocol.Ended(following)

    def _add(self, identity: ProducerIdAndEpoch, target: Any) -> None:
        self._is_empty = False
        self._driver.add_partitions(identity, [target])

    # --- the checkpoint -----------------------------------------------------------------------------------------

    def _finish_spark_commit(self, record: CommitRecord) -> protocol.Event:
        """Spark's own commit file of the record's batch, so that a stateful batch never runs again."""
        checkpoint, batch_id = self._setting.checkpoint, record.batch_id
        try:
            if checkpoint.has_commit(batch_id):
                return protocol.Finished()
            planned = checkpoint.offsets(batch_id)
            if planned is None or planned.end != record.end or checkpoint.latest_batch_id() != batch_id:
                return protocol.Failed(
                    f"the checkpoint {checkpoint.name} is not at batch {batch_id}, the last that was committed"
                )
            assert record.commit_text is not None
            checkpoint.write(f"commits/{batch_id}", record.commit_text)
        except CheckpointError as error:
            return protocol.Failed(str(error))
        return protocol.Finished()

    def _resume(self, end: tuple[Any, ...]) -> None:
        kinds = [kind for kind, _ in sources(self._setting.frame)]
        if not kinds or not _SELF_CONTAINED.issuperset(kinds) or len(kinds) != len(end):
            raise PipelineRefused(
                f"the checkpoint {self._setting.checkpoint.name} is new, but output up to {end} is committed under "
                f"{self._id!r}, and sources {kinds} cannot be told to begin there",
                "restore the checkpoint, or give the pipeline another transactional.id",
            )
        self._setting.checkpoint.begin_at(end, empty_commit_file(state_format(self._setting.spark)))

    def _is_here(self, options: dict[str, str]) -> bool:
        """Whether a source reads from the cluster that is written to."""
        servers = options.get("kafka.bootstrap.servers", "")
        if servers not in self._same_cluster:
            self._same_cluster[servers] = bool(servers) and self._setting.cluster.is_reached_by(servers)
        return self._same_cluster[servers]


def _timeouts(client: Mapping[str, str]) -> list[int]:
    """Transaction timeouts to ask for, in order: the user's, else Kafka's default maximum and lower ones."""
    chosen = client.get("transaction.timeout.ms")
    return [int(chosen)] if chosen is not None else [TRANSACTION_TIMEOUT_MS, 300_000, 60_000]
