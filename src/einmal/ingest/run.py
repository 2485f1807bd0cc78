"""One source in this process: performs the machine's effects until the source ends or it is stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeGuard
from uuid import uuid4

from einmal.client.config import ProducerSettings, dotted, parse
from einmal.client.errors import ConfigError, KafkaError, NotAuthorized, RecordTooLarge
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.commit_protocol import effects as protocol
from einmal.commit_protocol.commit_record import COMMIT_TOPIC, CommitRecord, UnreadableCommitRecord
from einmal.commit_protocol.run_state import Held
from einmal.event_log import EventLog
from einmal.ingest import effects
from einmal.ingest.appender import Appender, LocalAppender
from einmal.ingest.deduplication.business_key import Deduplicate
from einmal.ingest.deduplication.deduplicator import Deduplicator
from einmal.ingest.effects import IngestEffect, IngestEvent
from einmal.ingest.machine import IngestMachine, transactional_id
from einmal.ingest.source import IngestBatch, RecordSource, SourceBusy, SourceFailed, SourceNotice, SourceRefused
from einmal.pauses import DoublingPauses
from einmal.pipeline.errors import PipelineRefused
from einmal.security.redaction import RedactedDict
from einmal.sinks.commit_point import SinkError, SinkFailed
from einmal.sinks.kafka import commit_log
from einmal.sinks.kafka.commit_point import KafkaCommitPoint, KafkaOpening
from einmal.sinks.perform import VERBS, answered, perform
from einmal.types import ErrorCode

POLL_S: Final = 0.2
"""Between two looks at a source that has nothing new."""
_PAUSES_S: Final = DoublingPauses(POLL_S, 30.0)
"""Between two runs, by how many had no commit."""
_RESTARTS_MAX: Final = 5
"""Runs without a commit, one after the other, until ``available_now`` gives up."""
_INTERRUPT_S: Final = 0.5
"""Between two interruptions of a source that waits: it may have begun to wait after the first."""
_NAMED_MAX: Final = 5
_HINT_FENCED: Final = (
    "another ingester has started under this name, or the batch took longer than transaction.timeout.ms: let only one "
    "of them run; raise transaction.timeout.ms, or let the source return smaller batches"
)
_HINT_UNREADABLE: Final = "run the einmal that wrote the record, or a newer one"
_LASTING: Final = frozenset(
    {
        ErrorCode.invalid_record,
        ErrorCode.invalid_required_acks,
        ErrorCode.invalid_timestamp,
        ErrorCode.invalid_topic_exception,
        ErrorCode.message_too_large,
        ErrorCode.policy_violation,
        ErrorCode.record_list_too_large,
        ErrorCode.unsupported_compression_type,
        ErrorCode.unsupported_for_message_format,
    }
)
"""Errors about a record or a topic, not about the state of the cluster."""
_NOT_ALLOWED: Final = ("transactional.id", "enable.idempotence", "acks")
_END: Final = object()
_logger = EventLog(__name__)


def _is_lasting(error: BaseException | None) -> TypeGuard[KafkaError]:
    """Whether a broker answers every other attempt alike."""
    return isinstance(error, KafkaError) and (
        error.code in _LASTING or isinstance(error, (NotAuthorized, RecordTooLarge))
    )


def _performed(effect: object, commit_point: KafkaCommitPoint) -> protocol.Event:
    """Raises SinkError, KafkaError, UnreadableCommitRecord, PipelineRefused."""
    try:
        return perform(effect, commit_point)
    except SinkFailed as error:
        if isinstance(effect, protocol.WriteCommitRecord) and _is_lasting(error.__cause__):
            raise SinkFailed(str(error), will_again=True) from error.__cause__
        raise


def _log_notice(notice: SourceNotice) -> None:
    _logger.warning("ingest_notice", "%(text)s", text=notice.text, kind=notice.kind, subject=notice.subject)


class IngestStopped(Exception):
    """The ingester cannot continue as it is. Nothing is lost: what is not committed is read again."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(f"{reason}\nhint: {hint}" if hint else reason)
        self.reason = reason
        self.hint = hint


class Ingest:
    """Writes the records of a source to topics, each batch in one transaction with the position behind it."""

    def __init__(
        self,
        source: RecordSource,
        config: Mapping[str, Any] | None = None,
        *,
        name: str,
        deduplicate: Deduplicate | None = None,
        notify: Callable[[SourceNotice], None] | None = None,
        committed: Callable[[CommitRecord], None] = lambda record: None,
        **settings: Any,
    ) -> None:
        """``name``: of the ingester, under which its position is recorded. ``config`` and ``settings``: those of a
        producer, as for ``Producer``. ``deduplicate``: duplicates of the source that are not written. ``notify``: logs
        by default. ``committed``: called after each transaction. Raises ConfigError."""
        client = dict(config or {}) | {dotted(key): value for key, value in settings.items()}
        for setting in _NOT_ALLOWED:
            if setting in client:
                raise ConfigError(meaning=f"{setting} is not a setting of an ingester", what_to_do="leave it out")
        self._settings = parse(ProducerSettings, client, {})
        self._client: Mapping[str, str] = RedactedDict(client)
        self._source = source
        self._name = name
        self._deduplicate = deduplicate
        self._deduplicator: Deduplicator | None = None
        self._notify = notify or _log_notice
        self._committed = committed
        self._parts: Iterator[object] | None = None
        self._batch: IngestBatch | None = None
        """Found last, and not written yet."""
        self._restarts = 0
        """Since the source or the sink has last done what it was asked for."""
        self._ends_when_idle = False
        self._has_ended = threading.Event()
        self.stop = threading.Event()

    def run(self, *, available_now: bool = False, spark: Any = None) -> None:
        """Until ``stop`` is set or the source ends; ``available_now``: or has nothing new. To be called once.
        ``spark``: the SparkSession whose tasks read and write the records of a source that can be split; stays open.

        A source or cluster that fails is tried again; only at the first try a cluster that does not answer is an error.
        Raises IngestStopped, KafkaError, and what the source raises by mistake.
        """
        self._ends_when_idle = available_now
        cluster = KafkaCluster(self._client)
        if self._deduplicate is not None:
            self._deduplicator = Deduplicator(self._deduplicate, self._name, cluster, self._notify)
        held: Held | None = None
        threading.Thread(target=self._interrupt_source, name="einmal-ingest-stop", daemon=True).start()
        appender: Appender = LocalAppender(self._settings, self._client, cluster, self._notify)
        try:
            if spark is not None:
                appender = self._on_spark(spark, cluster)
            while not self.stop.is_set():
                held = self._run_once(cluster, appender, held)
                self.stop.wait(_PAUSES_S.after(self._restarts))
            if available_now:
                for notice in self._source.unfinished():
                    self._notify(notice)
                self._refuse_what_is_set_aside()
        finally:
            self._has_ended.set()
            self.stop.set()
            appender.close()
            cluster.close()

    def _interrupt_source(self) -> None:
        self.stop.wait()
        while not self._has_ended.is_set():
            self._source.interrupt()
            self._has_ended.wait(_INTERRUPT_S)

    def _refuse_what_is_set_aside(self) -> None:
        """Everything else is written."""
        if aside := self._source.set_aside():
            first = ", ".join(notice.subject for notice in aside[:_NAMED_MAX])
            others = f" and {len(aside) - _NAMED_MAX} others" if len(aside) > _NAMED_MAX else ""
            raise IngestStopped(
                f"not ingested: {first}{others}; everything else is", "each was reported, with a way past"
            )

    def _on_spark(self, spark: Any, cluster: KafkaCluster) -> Appender:
        from einmal.ingest.spark_appender import SparkAppender

        if self._deduplicate is not None:
            raise IngestStopped(
                "duplicates of the source are removed by one process, which knows all keys",
                "ingest without --spark, or without deduplicate",
            )
        try:
            return SparkAppender(spark, self._source, cluster, self._client)
        except (SourceRefused, PipelineRefused) as error:
            raise IngestStopped(error.reason, error.hint) from error

    def _run_once(self, cluster: KafkaCluster, appender: Appender, held: Held | None) -> Held | None:
        """One run of the machine; the identity that the next one inherits."""
        commit_point = self._opened(cluster)
        machine = IngestMachine(self._name, uuid4().hex, held)
        try:
            cluster.create_topic(COMMIT_TOPIC, commit_log.PARTITIONS, commit_log.TOPIC_CONFIG)
            self._converse(machine, commit_point, appender)
        except KafkaError as error:
            if self._restarts == 0:
                raise
            self._failed(str(error), "")
        except PipelineRefused as error:
            raise IngestStopped(error.reason, error.hint) from error
        except UnreadableCommitRecord as error:
            raise IngestStopped(str(error), _HINT_UNREADABLE) from error
        finally:
            self._close_parts()
            commit_point.abandon()
            commit_point.close()
        return machine.held

    def _opened(self, cluster: KafkaCluster) -> KafkaCommitPoint:
        return KafkaCommitPoint(
            KafkaOpening(
                transactional_id=transactional_id(self._name),
                client=self._client,
                cluster=cluster,
            )
        )

    def _converse(self, machine: IngestMachine, commit_point: KafkaCommitPoint, appender: Appender) -> None:
        effect = machine.start()
        while not self.stop.is_set():
            if isinstance(effect, effects.IngestStops):
                if effect.is_done:
                    self.stop.set()
                elif effect.may_restart:
                    self._failed(effect.reason, effect.hint)
                else:
                    raise IngestStopped(effect.reason, effect.hint)
                return
            event = self.perform(effect, commit_point, appender)
            if isinstance(effect, protocol.EndTxn) and effect.committed and isinstance(event, protocol.Ended):
                self._restarts = 0
            effect = machine.step(event)
            if isinstance(effect, effects.ConfirmPosition) and isinstance(event, protocol.Ended):
                assert machine.record is not None
                if self._deduplicator is not None:
                    self._deduplicator.committed()
                self._committed(machine.record)

    def _failed(self, reason: str, hint: str) -> None:
        """Raises IngestStopped where it is not to be tried again."""
        self._restarts += 1
        if self._ends_when_idle and self._restarts > _RESTARTS_MAX:
            raise IngestStopped(reason, hint)
        self._notify(SourceNotice("restart", self._name, f"{reason}; trying again. {hint}".rstrip()))

    # --- effects ----------------------------------------------------------------------------------------------------

    def perform(self, effect: IngestEffect, commit_point: KafkaCommitPoint, appender: Appender) -> IngestEvent:
        """One effect, and its answer."""
        if isinstance(effect, effects.Idle):
            self._restarts = 0
            if self._ends_when_idle:
                self.stop.set()
            self.stop.wait(POLL_S)
            return effects.Resumed()
        try:
            if isinstance(effect, VERBS):
                return answered(effect, lambda: _performed(effect, commit_point), _HINT_FENCED)
            if isinstance(effect, effects.AppendRecords):
                return answered(effect, lambda: self._append(effect, commit_point, appender), _HINT_FENCED)
            if isinstance(effect, effects.RestoreKeys):
                return self._restore_keys(effect)
            return self._ask_source(effect)
        except SourceFailed as error:
            return effects.SourceDown(error.reason, error.hint)
        except SourceRefused as error:
            return effects.SourceStops(error.reason, error.hint)

    def _append(
        self, effect: effects.AppendRecords, commit_point: KafkaCommitPoint, appender: Appender
    ) -> effects.RecordsAppended:
        batch, self._batch = self._batch, None
        assert batch is not None, "a batch is appended once"
        now_ms = time.time_ns() // 1_000_000
        if self._deduplicator is not None:
            batch = self._deduplicator.without_duplicates(batch, now_ms)
        try:
            outputs = appender.append(batch, commit_point, effect.identity, now_ms)
        except SinkError as error:
            cause = error.__cause__
            if isinstance(cause, NotAuthorized):
                raise SourceRefused(str(error), "permit it in the ACLs of the cluster") from error
            if _is_lasting(cause):
                raise SourceRefused(str(error), cause.what_to_do) from error
            raise
        if self._deduplicator is None:
            return effects.RecordsAppended(outputs)
        return effects.RecordsAppended(outputs, self._deduplicator.stage(outputs, effect.identity.producer_id))

    def _restore_keys(self, effect: effects.RestoreKeys) -> IngestEvent:
        try:
            if self._deduplicator is not None:
                self._deduplicator.restore(effect.recorded, is_first=effect.is_first)
        except KafkaError as error:
            return effects.SourceDown(f"the keys of written records cannot be read: {error}", "")
        return effects.SourceReady()

    def _ask_source(self, effect: IngestEffect) -> IngestEvent:
        match effect:
            case effects.AskOrigin():
                return effects.OriginKnown(self._source.origin(), tuple(self._source.former_origins()))
            case effects.OpenSource(position):
                self._close_parts()
                self._parts = iter(self._source.read(position))
                return effects.SourceReady()
            case effects.ConfirmPosition(position):
                self._source.confirm(position)
                return effects.SourceReady()
            case effects.NextPart():
                return self._next_part()
            case _:
                raise AssertionError(effect)

    def _next_part(self) -> IngestEvent:
        assert self._parts is not None
        while not self.stop.is_set():
            match next(self._parts, _END):
                case IngestBatch() as batch:
                    self._batch = batch
                    return effects.BatchFound(batch.end)
                case SourceNotice() as notice:
                    self._notify(notice)
                case SourceBusy():
                    continue
                case None:
                    return effects.NothingNew()
                case end if end is _END:
                    return effects.SourceEnded()
                case other:
                    raise SourceRefused(
                        f"the source returned {other!r:.200}, which is no IngestBatch", "this is a bug of the source"
                    )
        return effects.NothingNew()

    def _close_parts(self) -> None:
        parts, self._parts = self._parts, None
        if close := getattr(parts, "close", None):
            close()
