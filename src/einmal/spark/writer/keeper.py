"""The process on the driver's machine that has a query's transaction, from batch to batch (``handover`` explains why).

It is started by a planning worker with the query's options, and listens on a Unix domain socket in a directory of this
user's alone. It ends with the driver's JVM, or when nobody has asked anything for a while. Run as a program:
``python -m einmal.spark.writer.keeper SOCKET PID``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any, Final

from einmal.commit_protocol.batch_plan import Batch
from einmal.commit_protocol.claims import Denied, Output
from einmal.commit_protocol.run_state import Query
from einmal.event_log import EventLog
from einmal.options.sink import SinkOptions, sink_options
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
from einmal.spark.environment.local_files import LocalFiles, RemoteLocation
from einmal.spark.errors import reason_of
from einmal.spark.output.job import for_tasks
from einmal.spark.protocol.checkpoint import Checkpoint, CheckpointError
from einmal.spark.protocol.run import SinkBatch
from einmal.spark.protocol.transaction_run import NoAdditions, TransactionRun
from einmal.spark.writer.handover import STATE_CAVEAT, AttemptEnd, Handover
from einmal.spark.writer.messages import (
    READY,
    Answer,
    CommitBatch,
    GiveUp,
    PlanBatch,
    Refusal,
    Settled,
    Work,
    WriteGrant,
)

_logger = EventLog(__name__)
_IDLE_S: Final = 900.0
_WATCH_S: Final = 0.5
_AGAIN_S: Final = 0.1
_HINT_AGAIN: Final = "start the query again: the next start reads from the commit record what is committed"

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


class Keeper:
    """The run of one query, and whoever asks for it."""

    def __init__(self, options: SinkOptions) -> None:
        """Raises PipelineRefused."""
        assert options.transactional_id is not None
        self._options = options
        self._id = options.transactional_id
        try:
            self._checkpoint = Checkpoint(LocalFiles(options.checkpoint))
        except RemoteLocation as error:
            raise PipelineRefused(
                f'format("einmal") reads the checkpoint without Spark, and cannot read {error}',
                "write_stream(df) of einmal.spark takes every location; or set checkpointLocation to a local directory",
            ) from error
        self._sink = KafkaRowSink(options.client, options.topic, options.group_id)
        host = _own_address(options.client["bootstrap.servers"])
        self._service = ClaimService(ephemeral_identity(), host, host)
        self._handover = Handover()
        self._changed = threading.Condition()
        """Guards the handover."""
        self._running = threading.Lock()
        """Held from a batch's plan to its outcome."""
        self._run: TransactionRun | None = None
        self._token = ""
        self._has_warned = False
        self._plans = 0
        self._asked = time.monotonic()

    @property
    def is_idle(self) -> bool:
        return self._handover.attempt is None and time.monotonic() - self._asked > _IDLE_S

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
            if self._run is None or not self._handover.continues(batch.query_id, batch.batch_id):
                self._start(batch)
            self._warn_of_state()
            self._write(batch, answers)
        except PipelineError as found:
            error = found
        except CheckpointError as found:
            error = PipelineRefused(str(found), "restore the newest checkpoint")
        except Exception as found:
            _logger.error("batch_defect", "batch %(batch)s", batch=batch, exc_info=found)
            error = PipelineFailed(reason_of(found), _HINT_AGAIN)
        with self._changed:
            if batch is not None:
                self._handover.close(batch.query_id, batch.batch_id, error)
            self._changed.notify_all()
        if error is not None:
            self._end_run()
            answers(Refusal.of(error))

    def _next_batch(self) -> Batch:
        """The newest batch of the checkpoint. Raises CheckpointError."""
        newest = self._checkpoint.latest_batch_id()
        if newest is None:
            raise PipelineRefused(
                f"there is no planned batch in {self._checkpoint.name}, as this machine sees it",
                'set .option("checkpointLocation", ...) to a directory on the driver\'s machine',
            )
        return self._checkpoint.planned(newest, self._token)

    def _start(self, batch: Batch) -> None:
        """Acquire the name for a query that has started. Raises PipelineError."""
        self._end_run()
        try:
            missing = self._sink.problems(self._id, None)
            cluster_id = self._sink.identity()
        except SinkError as error:
            raise PipelineRefused(str(error)) from error
        if missing:
            raise PreflightFailed(missing)
        commit_point = TaskCommitPoint(
            self._sink.opened(Opening(name=self._id, sources=None)), self._options.topic, lambda _: None
        )
        commit_point.service = self._service
        query = Query(
            transactional_id=self._id,
            query_id=batch.query_id,
            checkpoint=batch.checkpoint,
            is_fresh=False,
            # What Spark keeps of its state's commit is out of reach.
            stateful=False,
            next_batch_id=batch.batch_id,
            others=self._checkpoint.used_by_others(self._id, cluster_id),
            adopt=self._options.adopt,
            attempts=1,
        )
        self._run = TransactionRun(commit_point, query, NoAdditions(), lambda _: None)
        record = self._run.start().record
        self._token = self._checkpoint.begin_run(self._id, cluster_id)
        if record is not None and record.run:
            self._checkpoint.forget_runs_before(record.run)

    def _warn_of_state(self) -> None:
        """Once, when the checkpoint has state."""
        if not self._has_warned and self._checkpoint.has_state():
            self._has_warned = True
            _logger.warning(
                "state_kept", "%(pipeline)s keeps state. %(caveat)s", pipeline=self._id, caveat=STATE_CAVEAT
            )

    def _write(self, batch: Batch, send: Send) -> None:
        assert self._run is not None
        rows = TaskRows(lambda claims, write_as: self._written(batch.batch_id, claims, write_as, send))
        planned = self._checkpoint.planned(batch.batch_id, self._token)
        if self._run.batch(planned, SinkBatch(batch.batch_id, rows)).already_in:
            send(Work(batch.batch_id, None, self._options.topic, {}))

    def _written(self, batch_id: int, claims: OpenTransaction, write_as: WriteAs, send: Send) -> list[Output]:
        """Let the tasks write; the outputs that they prove. Raises SinkFailed."""
        topic = self._options.topic
        partitions = 0 if topic is None else claims.look_up(topic)
        with self._changed:
            attempt = self._handover.open(batch_id, claims.token)
        now_ms = time.time_ns() // 1_000_000
        grant = WriteGrant(claims.token, write_as, self._service.address, partitions, now_ms)
        try:
            send(Work(batch_id, grant, topic, RedactedDict(for_tasks(self._options.client))))
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

    # --- the verdict ----------------------------------------------------------------------------------------------

    def _commit(self, commit: CommitBatch) -> Settled | Refusal:
        with self._changed:
            attempt = self._handover.commit(commit.proof)
            if isinstance(attempt, Denied):
                return Refusal.of(PipelineFailed(attempt.reason, _HINT_AGAIN))
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
    """The address of this machine from which brokers are reached: executors reach them, too."""
    host, _, port = servers.split(",")[0].strip().rpartition(":")
    family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        # Nothing is sent.
        probe.connect(address)
        return str(probe.getsockname()[0])


# --- the process ------------------------------------------------------------------------------------------------------


def _serve(keeper: Keeper, listener: Listener) -> None:
    while True:
        connection = listener.accept()
        threading.Thread(target=_converse, args=(keeper, connection), daemon=True).start()


def _converse(keeper: Keeper, connection: Connection[Any, Any]) -> None:
    """One question."""
    with connection, contextlib.suppress(OSError, EOFError):
        keeper.answer(connection.recv(), connection.send)


def _answer(line: str) -> None:
    """To the worker that has started this process."""
    sys.stdout.write(line)
    sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def main(home: Path, driver: int) -> None:
    """Until the process ``driver`` has ended, or nobody has asked anything for a while. Standard input has the
    options."""

    def end(*_: object) -> None:
        home.unlink(missing_ok=True)
        os._exit(0)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    try:
        keeper = Keeper(sink_options(json.load(sys.stdin)))
        listener = Listener(str(home), "AF_UNIX", backlog=16)
    except (PipelineError, OSError) as error:
        _answer(str(error))
        return
    threading.Thread(target=_serve, args=(keeper, listener), daemon=True).start()
    _answer(READY)
    while _is_alive(driver) and not keeper.is_idle:
        time.sleep(_WATCH_S)
    end()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
