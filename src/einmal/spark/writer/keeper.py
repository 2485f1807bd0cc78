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
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any, ClassVar, Final

from einmal.client.errors import KafkaError
from einmal.commit_protocol.batch_plan import Batch
from einmal.commit_protocol.claims import Denied
from einmal.commit_protocol.positions import is_identified
from einmal.commit_protocol.run_state import Query
from einmal.event_log import EventLog
from einmal.options.sink import (
    AT_MOST_ONCE,
    EXACTLY_ONCE,
    SinkOptions,
    new_write_name,
    sink_options,
    without_claims_port,
    write_options,
)
from einmal.pipeline.errors import BatchLost, PipelineError, PipelineFailed, PipelineRefused
from einmal.sinks.commit_point import SinkError, SinkFailed
from einmal.sinks.kafka.outside_transactions import write_plainly
from einmal.sinks.sink import Opening
from einmal.spark.environment.local_files import LocalFiles, RemoteLocation
from einmal.spark.option_log import log_without_effect
from einmal.spark.protocol.checkpoint import Checkpoint
from einmal.spark.protocol.transaction_run import TransactionRun
from einmal.spark.writer.handover import STATE_CAVEAT
from einmal.spark.writer.messages import READY
from einmal.spark.writer.run_keeper import RunKeeper, Send
from einmal.spark.writer.write_keeper import WriteKeeper

_logger = EventLog(__name__)
_WATCH_S: Final = 0.5


class StreamKeeper(RunKeeper):
    """The run of one stream, whose batches are those of its checkpoint. See ``RunKeeper``."""

    IDLE_S: ClassVar = 900.0
    HINT_AGAIN: ClassVar = "start the query again: the next start reads from the commit record what is committed"

    def __init__(self, options: SinkOptions, port: int = 0) -> None:
        """Raises PipelineRefused."""
        super().__init__(options.client, options.transactional_id, options.topic, options.group_id, port)
        self._options = options
        log_without_effect(options.without_effect)
        try:
            self._checkpoint = Checkpoint(LocalFiles(options.checkpoint))
        except RemoteLocation as error:
            raise PipelineRefused(
                f'format("einmal") reads the checkpoint without Spark, and cannot read {error}',
                "write_stream(df) of einmal.spark takes every location; or set checkpointLocation to a local directory",
            ) from error
        self._token = ""

    def _next_batch(self) -> Batch:
        """The newest batch of the checkpoint."""
        newest = self._checkpoint.latest_batch_id()
        if newest is None:
            raise PipelineRefused(
                f"there is no planned batch in {self._checkpoint.name}, as this machine sees it",
                'set .option("checkpointLocation", ...) to a directory on the driver\'s machine',
            )
        # Batch 0 of einmal's own source, whose positions have the identity of their cluster, is empty.
        first = self._checkpoint.offsets(0) if newest == 0 else None
        begins_empty = first is not None and all(map(is_identified, first.end))
        return self._checkpoint.planned(newest, self._token, begins_empty=begins_empty)


class TransactionKeeper(StreamKeeper):
    """Exactly once."""

    def __init__(self, options: SinkOptions, port: int = 0) -> None:
        """Raises PipelineRefused."""
        super().__init__(options, port)
        self._has_warned = False

    def _write(self, batch: Batch, send: Send) -> None:
        run = self._run
        if run is None or not self._handover.continues(batch.query_id, batch.batch_id):
            run = self._start(batch)
        self._warn_of_state()
        planned = replace(batch, run=self._token)
        if run.batch(planned, self._batch_of_tasks(batch.batch_id, send)).already_in:
            self._send_nothing_to_write(batch.batch_id, send)

    def _start(self, batch: Batch) -> TransactionRun:
        """Acquire the name for a query that has started. Raises PipelineError."""
        self._end_run()
        try:
            cluster_id = self._sink.identity()
        except SinkError as error:
            raise PipelineRefused(str(error)) from error
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
        run = self._new_run(query, Opening(name=self._id, sources=None))
        record = run.start().record
        self._token = self._checkpoint.begin_run(self._id, cluster_id)
        if record is not None and record.run:
            self._checkpoint.forget_runs_before(record.run)
        return run

    def _warn_of_state(self) -> None:
        """Once, when the checkpoint has state."""
        if not self._has_warned and self._checkpoint.has_state():
            self._has_warned = True
            _logger.warning(
                "state_kept", "%(pipeline)s keeps state. %(caveat)s", pipeline=self._id, caveat=STATE_CAVEAT
            )


class PlainKeeper(StreamKeeper):
    """At least once or at most once, in no transaction: as ``protocol.at_least_once`` and ``protocol.at_most_once``."""

    def _write(self, batch: Batch, send: Send) -> None:
        is_at_most_once = self._options.guarantee == AT_MOST_ONCE
        if is_at_most_once and not self._checkpoint.begin_batch(batch.batch_id):
            self._send_nothing_to_write(batch.batch_id, send)
            return
        try:
            outputs = write_plainly(
                self._sink.cluster,
                self._service,
                lambda claims, write_as: self._written(batch.batch_id, claims, write_as, send),
                is_at_most_once=is_at_most_once,
            )
            if isinstance(outputs, Denied):
                raise SinkFailed(outputs.reason)
        except (SinkFailed, KafkaError) as error:
            if is_at_most_once:
                raise BatchLost.of(batch.batch_id, str(error)) from error
            raise PipelineFailed(str(error), "start the query again: the batch is written again as a whole") from error


def keeper_of(given: Mapping[str, str]) -> RunKeeper:
    """The keeper of a query, or of a batch write, with these options. Raises PipelineRefused, OptionError."""
    options, port = without_claims_port(given)
    # Spark has a checkpoint for every stream, and batch writes take none.
    if "checkpointlocation" in map(str.lower, given):
        stream = sink_options(options)
        return (TransactionKeeper if stream.guarantee == EXACTLY_ONCE else PlainKeeper)(stream, port)
    return WriteKeeper(write_options(options, new_write_name), port)


# --- the process ------------------------------------------------------------------------------------------------------


def _serve(keeper: RunKeeper, listener: Listener) -> None:
    while True:
        connection = listener.accept()
        threading.Thread(target=_converse, args=(keeper, connection), daemon=True).start()


def _converse(keeper: RunKeeper, connection: Connection[Any, Any]) -> None:
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
        keeper = keeper_of(json.load(sys.stdin))
    except (PipelineError, OSError) as error:
        _answer(str(error))
        return
    try:
        listener = Listener(str(home), "AF_UNIX", backlog=16)
    except OSError as error:
        _answer(f"{home}: {error}\nhint: set TMPDIR to a directory with a short path, on the driver's machine")
        return
    threading.Thread(target=_serve, args=(keeper, listener), daemon=True).start()
    _answer(READY)
    while _is_alive(driver) and not keeper.is_idle:
        time.sleep(_WATCH_S)
    end()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
