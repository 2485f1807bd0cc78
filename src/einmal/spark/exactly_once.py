"""One run of an exactly-once query: ``TransactionRun`` on Kafka, and here what a stream has beside it on Spark.

A run begins with ``start``, before Spark plans anything, and then takes one micro-batch after the other. It ends with
the query; after an error it cannot go on, and a new run finds out from the commit record.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from einmal.client.errors import KafkaError, RetriableError
from einmal.pipeline import committer as protocol
from einmal.pipeline.batch_plan import Batch
from einmal.pipeline.commit_record import CommitRecord
from einmal.pipeline.committer import Committer, Held, Query
from einmal.pipeline.positions import are_same, topics_in
from einmal.spark import events
from einmal.spark.checkpoint import Checkpoint, CheckpointError, CheckpointTaken
from einmal.spark.claim_service import ClaimService
from einmal.spark.cluster import KafkaCluster
from einmal.spark.errors import PipelineFenced, PipelineRefused
from einmal.spark.execution import Execution, empty_commit_file, offset_metadata, sources, state_format
from einmal.spark.job import Job
from einmal.spark.offsets import from_json
from einmal.spark.options import SinkOptions
from einmal.spark.transaction_run import Destination, Listener, TransactionRun
from einmal.types import ErrorCode, ProducerIdAndEpoch

_IN_RECORD_MAX: Final = 256 * 1024
"""Characters of Spark's commit file that go into the commit record: some 6,500 state ids. Brokers refuse a record of
1 MiB (max.message.bytes); a longer file is kept beside it in the checkpoint."""
_SELF_CONTAINED: Final = frozenset({"einmal", "kafka"})
"""Sources whose offsets say all there is to know, so that a query can begin at them without the old checkpoint."""

_OF_LAG_ONLY: Final = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.topic_authorization_failed,
        ErrorCode.group_authorization_failed,
        ErrorCode.group_id_not_found,
        ErrorCode.invalid_group_id,
        ErrorCode.illegal_generation,
        ErrorCode.unknown_member_id,
        ErrorCode.stale_member_epoch,
        ErrorCode.fenced_instance_id,
        ErrorCode.rebalance_in_progress,
        ErrorCode.offset_metadata_too_large,
        ErrorCode.invalid_commit_offset_size,
        ErrorCode.unsupported_version,
        ErrorCode.unsupported_for_message_format,
    }
)
"""Refusals of offsets that say nothing about the transaction."""

_logger = logging.getLogger(__name__)


def _concerns_lag_only(error: KafkaError) -> bool:
    """Whether a refusal of source positions leaves the transaction as it was, and nothing is on its way any more.

    A restart goes by the commit record. So only what fences or aborts counts, and an answer that never came: a late
    request could still reach the transaction's coordinator.
    """
    return error.code in _OF_LAG_ONLY or isinstance(error, RetriableError)


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


class ExactlyOnce(TransactionRun):
    """One run. ``Execution`` is given once Spark has started the query."""

    def __init__(self, setting: Setting, held: Held | None = None) -> None:
        """``held``: by the run before this one, where the query is restarted."""
        assert setting.options.transactional_id is not None
        self._setting = setting
        self._query_id = setting.checkpoint.ensure_query_id()
        self._cluster_id = setting.cluster.cluster_id()
        self._token = ""
        committer = Committer(
            Query(
                transactional_id=setting.options.transactional_id,
                query_id=self._query_id,
                checkpoint=setting.checkpoint.name,
                is_fresh=setting.checkpoint.latest_batch_id() is None,
                stateful=setting.stateful,
                next_batch_id=setting.checkpoint.next_batch_id(),
                others=self._others(setting.options.transactional_id),
                adopt=setting.options.adopt,
            ),
            held,
        )
        destination = Destination(
            transactional_id=setting.options.transactional_id,
            client=setting.options.client,
            cluster=setting.cluster,
            service=setting.service,
            job=setting.job,
            tell=setting.tell,
        )
        super().__init__(destination, committer)
        self._execution: Execution | None = None
        self._same_cluster: dict[str, bool] = {}
        self._positions_refused = ""
        """The error that was logged last, of positions that serve only lag tools."""

    def start(self) -> None:
        """Acquire the transactional.id, find the pipeline's position, repair the checkpoint. Raises PipelineError."""
        try:
            self._start()
        except CheckpointTaken as error:
            raise PipelineFenced(
                f"another driver runs on the same checkpoint: {error}", "let only one of them run"
            ) from error
        except CheckpointError as error:
            raise PipelineRefused(str(error), "restore the newest checkpoint") from error

    def _start(self) -> None:
        ready = self._run(self._committer.start())
        checkpoint = self._setting.checkpoint
        self._token = checkpoint.begin_run(self._id, self._cluster_id)
        if ready.record is not None and ready.record.run:
            checkpoint.forget_runs_before(ready.record.run)
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
        if batch_id == 0 and self._begins_empty():
            start = end.end
        self._setting.tell(events.BatchStarted(batch_id, start, end.end))
        ready = self._run(
            self._committer.batch(
                Batch(
                    query_id=self._query_id,
                    checkpoint=self._setting.checkpoint.name,
                    batch_id=batch_id,
                    start=start,
                    end=end.end,
                    run=self._token,
                )
            )
        )
        if ready.already_in:
            self._setting.tell(events.BatchAlreadyIn(batch_id))
            # Sources that count on being read are read; nothing is written.
            frame.write.format("noop").mode("append").save()

    # --- what goes into the transaction beside the output -------------------------------------------------------

    def _commit_text(self) -> str | None:
        assert self._execution is not None
        if self._setting.stateful:
            text = self._execution.commit_text(self._batch_id)
            if len(text) <= _IN_RECORD_MAX:
                return text
            return self._setting.checkpoint.keep_commit_text(self._batch_id, text)
        if self._execution.keeps_state():
            raise PipelineRefused(
                "the query keeps state, which its plan did not show before it started", "please report this query"
            )
        return None

    def _commit_source_positions(self, identity: ProducerIdAndEpoch, end: tuple[Any, ...]) -> protocol.Event:
        group_id = self._setting.options.group_id
        assert group_id is not None
        positions = {}
        for (kind, options), offsets in zip(sources(self._setting.frame), end, strict=False):
            if kind in _SELF_CONTAINED and isinstance(offsets, dict) and self._is_here(options):
                positions.update(from_json(offsets))
        try:
            self._driver.txn_offset_commit(identity, group_id, positions)
        except KafkaError as error:
            if not _concerns_lag_only(error):
                raise
            if error.name != self._positions_refused:
                self._positions_refused = error.name
                _logger.warning(
                    "batch %d: some positions of group %r, which lag tools show, are not committed: %s",
                    self._batch_id,
                    group_id,
                    error,
                )
        return protocol.Done()

    def _others(self, transactional_id: str) -> str:
        """Who ran on the checkpoint last, where that was not this pipeline."""
        last = self._setting.checkpoint.last_run()
        if last is None:
            return ""
        if last.transactional_id != transactional_id:
            return f"under transactional.id {last.transactional_id!r}"
        if None not in (last.cluster_id, self._cluster_id) and last.cluster_id != self._cluster_id:
            return f"in cluster {last.cluster_id}, not in {self._cluster_id}"
        return ""

    # --- the checkpoint -----------------------------------------------------------------------------------------

    def _finish_spark_commit(self, record: CommitRecord) -> protocol.Event:
        """Spark's own commit file of the record's batch, so that a stateful batch never runs again."""
        checkpoint, batch_id = self._setting.checkpoint, record.batch_id
        try:
            if checkpoint.has_commit(batch_id):
                return protocol.Finished()
            if record.run and not checkpoint.has_run(record.run):
                return protocol.Failed(
                    f"batch {batch_id} was committed by a driver that never ran on the checkpoint {checkpoint.name}, "
                    f"but on a copy of it, or on its original ({record.checkpoint}): the state of the committed output "
                    "is there"
                )
            planned = checkpoint.offsets(batch_id)
            if planned is None or not are_same(planned.end, record.end) or checkpoint.latest_batch_id() != batch_id:
                return protocol.Failed(
                    f"the checkpoint {checkpoint.name} is not at batch {batch_id}, the last that was committed"
                )
            assert record.commit_text is not None
            text = checkpoint.whole_commit_text(record.commit_text)
            missing = checkpoint.missing_state(batch_id, text)
            if missing is not None:
                return protocol.Failed(f"the state of batch {batch_id} is incomplete: {missing} does not exist")
            checkpoint.write(f"commits/{batch_id}", text)
        except CheckpointTaken:
            raise
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
        checkpoint, spark = self._setting.checkpoint, self._setting.spark
        if not self._setting.stateful:
            checkpoint.begin_at(end, empty_commit_file(state_format(spark)))
            return
        if not self._begins_empty():
            raise PipelineRefused(
                f"a query with state begins with its batch 0, which Spark's own source fills from startingOffsets on; "
                f"output up to {end} is committed under {self._id!r}",
                f"reset the pipeline, and set startingOffsets to {json.dumps(topics_in(end[0]))}",
            )
        # Its batch 0 is run, so that there is state, and empty, so that it is empty.
        checkpoint.plan_first(end, offset_metadata(spark))

    def _begins_empty(self) -> bool:
        """Whether batch 0 has no rows, as with our source always."""
        return all(kind == "einmal" for kind, _ in sources(self._setting.frame))

    def _is_here(self, options: dict[str, str]) -> bool:
        """Whether a source reads from the cluster that is written to."""
        servers = options.get("kafka.bootstrap.servers", "")
        if servers not in self._same_cluster:
            self._same_cluster[servers] = bool(servers) and self._setting.cluster.is_reached_by(servers)
        return self._same_cluster[servers]
