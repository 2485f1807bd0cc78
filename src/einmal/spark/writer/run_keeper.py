"""Whatever a keeper does for streams and for batch writes alike: it lets tasks write, and waits for the verdict.

A subclass knows which batch Spark is about to run, and how its run begins.
"""

from __future__ import annotations

import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from einmal.client.config import addresses
from einmal.commit_protocol.batch_plan import Batch
from einmal.commit_protocol.claims import Denied, Output
from einmal.commit_protocol.run_state import Query
from einmal.event_log import EventLog
from einmal.pipeline.errors import PipelineError, PipelineFailed, PipelineRefused, PreflightFailed
from einmal.security.ephemeral_identity import ephemeral_identity
from einmal.security.redaction import RedactedDict
from einmal.sinks.batch_rows import BatchRows
from einmal.sinks.commit_point import Identity, SinkError, SinkFailed
from einmal.sinks.kafka.claim_service import ClaimService
from einmal.sinks.kafka.commit_point import KafkaRowCommitPoint
from einmal.sinks.kafka.open_transaction import OpenTransaction, WriteAs
from einmal.sinks.kafka.sink import KafkaRowSink
from einmal.sinks.sink import Opening
from einmal.spark.errors import reason_of
from einmal.spark.output.job import for_tasks
from einmal.spark.protocol.checkpoint import CheckpointError
from einmal.spark.protocol.run import SinkBatch
from einmal.spark.protocol.transaction_run import NoAdditions, TransactionRun
from einmal.spark.writer.handover import AttemptEnd, Handover
from einmal.spark.writer.messages import Answer, CommitBatch, GiveUp, PlanBatch, Refusal, Settled, Work, WriteGrant

_logger = EventLog(__name__)
_AGAIN_S: Final = 0.1

Send = Callable[[Answer], None]


@dataclass(frozen=True, slots=True)
class TaskRows(BatchRows):
    """Rows that tasks of Spark's write, which this process did not start. ``write_by_tasks``: lets them, and waits."""

    write_by_tasks: Callable[[OpenTransaction, WriteAs], list[Output]]

    @property
    def schema(self) -> Any:
        raise AssertionError("the planning worker has checked the columns")

    def without(self, column: str) -> Any:
        raise AssertionError(column)

    def select(self, columns: Any) -> Any:
        raise AssertionError(columns)

    def write(self, write: Any) -> Any:
        raise AssertionError("tasks encode and write by themselves")


class TaskCommitPoint(KafkaRowCommitPoint):
    """See ``RowCommitPoint``; it stages ``TaskRows``."""

    service: ClaimService

    def stage(self, identity: Identity, batch_id: int, rows: BatchRows) -> tuple[Output, ...]:
        assert isinstance(rows, TaskRows)
        return self._stage_batch(identity, batch_id, self.service, rows.write_by_tasks)


class RunKeeper(ABC):
    """The run of one query or write, and whoever asks for it."""

    IDLE_S: ClassVar[float]
    """How long it stays when nobody asks anything."""
    HINT_AGAIN: ClassVar[str]

    def __init__(
        self, client: Mapping[str, str], name: str | None, topic: str | None, group_id: str | None, port: int
    ) -> None:
        """``client``: settings under Kafka's names; ``name``: the transactional.id, if there are transactions;
        ``port``: for claims."""
        self._client = client
        self._id = name or ""
        self._topic = topic
        self._sink = KafkaRowSink(client, topic, group_id)
        host = _own_address(client["bootstrap.servers"])
        self._service = ClaimService(ephemeral_identity(), host, host, port)
        self._handover = Handover()
        self._changed = threading.Condition()
        """Guards the handover."""
        self._running = threading.Lock()
        """Held from a batch's plan to its outcome."""
        self._run: TransactionRun | None = None
        self._plans = 0
        self._asked = time.monotonic()

    @property
    def claims_port(self) -> int:
        return self._service.address.port

    @property
    def is_idle(self) -> bool:
        return not self._running.locked() and time.monotonic() - self._asked > self.IDLE_S

    def answer(self, question: object, send: Send) -> None:
        self._asked = time.monotonic()
        try:
            match question:
                case PlanBatch():
                    self._plan(send)
                case CommitBatch():
                    send(self._commit(question))
                case GiveUp(batch_id):
                    self._give_up("Spark has given the batch up", batch_id)
                    send(Settled())
                case _:
                    raise AssertionError(question)
        finally:
            self._asked = time.monotonic()

    # --- a batch, from its plan to its outcome: in the thread of the planning worker's connection -----------------

    def _plan(self, send: Send) -> None:
        """Open the batch, send what its tasks need, and wait for the verdict. Whoever asks last has the run."""
        self._plans += 1
        mine = self._plans
        while True:
            if mine != self._plans:
                send(Refusal.of(PipelineFailed("the query has been started again meanwhile")))
                return
            self._give_up("Spark has planned a batch again")
            # Whoever has it may open a batch only now.
            if self._running.acquire(timeout=_AGAIN_S):
                break
        try:
            self._run_batch(send)
        finally:
            self._running.release()

    def _give_up(self, reason: str, batch_id: int | None = None) -> None:
        with self._changed:
            self._handover.give_up(reason, batch_id)
            self._changed.notify_all()

    def _run_batch(self, send: Send) -> None:
        answers = _Once(send)
        error: PipelineError | None = None
        batch: Batch | None = None
        try:
            batch = self._next_batch()
            self._write(batch, answers)
        except PipelineError as failure:
            error = failure
        except CheckpointError as failure:
            error = PipelineRefused(str(failure), "restore the newest checkpoint")
        except Exception as defect:
            _logger.error("batch_defect", "batch %(batch)s", batch=batch, exc_info=defect)
            error = PipelineFailed(reason_of(defect), self.HINT_AGAIN)
        self._asked = time.monotonic()
        with self._changed:
            if batch is not None:
                self._handover.close(batch.query_id, batch.batch_id, error)
            self._changed.notify_all()
        if error is not None:
            self._end_run()
            answers(Refusal.of(error))

    @abstractmethod
    def _next_batch(self) -> Batch:
        """The batch that Spark is about to run. Raises PipelineError, CheckpointError."""

    @abstractmethod
    def _write(self, batch: Batch, send: Send) -> None:
        """Let the batch be written and committed, unless it is in. Raises PipelineError."""

    def _new_run(self, query: Query, opening: Opening) -> TransactionRun:
        """A run of this query, which has not started. Raises PipelineError."""
        try:
            missing = self._sink.problems(self._id, None) or self._sink.transaction_problems()
        except SinkError as error:
            raise PipelineRefused(str(error)) from error
        if missing:
            raise PreflightFailed(missing)
        commit_point = TaskCommitPoint(self._sink.opened(opening), self._topic, lambda _: None)
        commit_point.service = self._service
        self._run = TransactionRun(commit_point, query, NoAdditions(), lambda _: None)
        return self._run

    def _batch_of_tasks(self, batch_id: int, send: Send) -> SinkBatch:
        return SinkBatch(batch_id, TaskRows(lambda claims, write_as: self._written(batch_id, claims, write_as, send)))

    def _written(self, batch_id: int, claims: OpenTransaction, write_as: WriteAs, send: Send) -> list[Output]:
        """Let the tasks write; the outputs that they prove. Raises SinkFailed."""
        topic = self._topic
        partitions = 0 if topic is None else claims.look_up(topic)
        with self._changed:
            attempt = self._handover.open(batch_id, claims.token)
        now_ms = time.time_ns() // 1_000_000
        grant = WriteGrant(claims.token, write_as, self._service.address, partitions, now_ms)
        try:
            send(Work(batch_id, grant, topic, RedactedDict(for_tasks(self._client))))
        except OSError as error:
            raise SinkFailed(f"the worker that planned the batch has ended: {error}") from error
        with self._changed:
            self._changed.wait_for(lambda: attempt.verdict is not None)
        if attempt.verdict is AttemptEnd.GIVE_UP:
            raise SinkFailed(attempt.reason)
        return list(attempt.outputs)

    def _end_run(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.abandon()
            run.close()

    def _send_nothing_to_write(self, batch_id: int, send: Send) -> None:
        send(Work(batch_id, None, self._topic, {}))

    # --- the verdict ----------------------------------------------------------------------------------------------

    def _commit(self, commit: CommitBatch) -> Settled | Refusal:
        with self._changed:
            attempt = self._handover.commit(commit.proof)
            if isinstance(attempt, Denied):
                return Refusal.of(PipelineFailed(attempt.reason, self.HINT_AGAIN))
            self._changed.notify_all()
            self._changed.wait_for(lambda: attempt.is_over)
        return Settled() if attempt.failure is None else Refusal.of(attempt.failure)


class _Once:
    """Sends the first answer only: the one who asked for a plan hears nothing of the batch's end."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_sent = False

    def __call__(self, answer: Answer) -> None:
        if not self._is_sent:
            self._is_sent = True
            self._send(answer)


def _own_address(servers: str) -> str:
    """The address of this machine from which brokers are reached: executors reach them, too. Raises PipelineRefused."""
    failures = []
    for host, port in addresses(servers):
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind, protocol) as probe:
                # Nothing is sent.
                probe.connect(address)
                return str(probe.getsockname()[0])
        except OSError as error:
            failures.append(f"{host}:{port}: {error.strerror or error}")
    raise PipelineRefused(
        f"no address of kafka.bootstrap.servers leads anywhere: {'; '.join(failures)}",
        "correct kafka.bootstrap.servers, or the names of the driver's machine",
    )
