"""Python programs of ours that begin with their modules loaded: ``WarmProcess`` in place of ``subprocess.Popen``,
and ``run`` in place of ``subprocess.run``.

A broker spends most of its start on imports. So one process per process of the tests has imported what a broker and a
command need, and forks for each program that is asked for (``tests.suite.warm_parent``). From there on it is a process
like any other: with its own memory, files, working directory and environment, to be killed, stopped and waited for.

What the interpreter itself does at its start is not repeated: its options, and variables like PYTHONHASHSEED. Tests
that are about the start of a program start it themselves (``tests/cli/start/test_run.py``).
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TextIO

_OWN_PROGRAMS: Final = (
    "concurrent.futures.thread",
    "confluent_kafka",
    "einmal.broker.node",
    "einmal.broker.resources.supervision",
    "einmal.cli.app",
    "einmal.cli.commands.ingest",
    "einmal.cli.commands.mirror",
    "einmal.cli.start.run",
    "einmal.client",
    "einmal.log.disk",
    "encodings.idna",
    "uvloop",
)
"""What brokers, commands and clients import, most of it late. None of them starts a thread."""
STREAM_RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
"""What Spark starts for each query that reads from a Python source."""
_STREAM_PROGRAMS: Final = (STREAM_RUNNER, "einmal.spark.source.source")
"""numpy and Arrow, which they import, start a thread each, that has nothing to do before the fork."""
_IF_STREAM: Final = 'if [ "$1 $2" = "-m {module}" ]; then exec {python} -I -S {client} {address} "$@"; fi\n'
_IF_WORKERS: Final = (
    'if [ "$2 $3" = "pyspark_einmal.daemon pyspark.worker" ]; then set -- -m tests.suite.daemon "$3"; fi\n'
)
_NUMBER: Final = struct.Struct("!i")
_REPOSITORY: Final = Path(__file__).parents[2]


class _Parent:
    """The process that forks, while this process lives, for whoever has its address, too."""

    def __init__(self, modules: Iterable[str]) -> None:
        self._lock = threading.Lock()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._folder = tempfile.TemporaryDirectory(prefix="warm-")
        self.address = Path(self._folder.name, "socket")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, listener:
            listener.bind(str(self.address))
            listener.listen()
            descriptors = [theirs.fileno(), listener.fileno()]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.suite.warm_parent", *map(str, descriptors), *modules],
                cwd=_REPOSITORY,
                stdin=subprocess.DEVNULL,
                # Whoever reads what this process prints must not wait for that one.
                stdout=subprocess.DEVNULL,
                pass_fds=descriptors,
            )

    def fork(self, request: Mapping[str, Any], descriptors: list[int]) -> None:
        with self._lock:
            socket.send_fds(self._requests, [json.dumps(request).encode()], descriptors)

    def end(self) -> None:
        # Also where a process that was forked from this one still has it.
        self._requests.shutdown(socket.SHUT_RDWR)
        self._requests.close()
        self._process.wait()
        self._folder.cleanup()


_parents: Final[dict[tuple[int, tuple[str, ...]], _Parent]] = {}
"""Of this process, by the modules that they have loaded; whoever forks from it inherits objects that are not theirs."""
_starting: Final = threading.Lock()


def _parent(modules: tuple[str, ...]) -> _Parent:
    with _starting:
        key = os.getpid(), modules
        if key not in _parents:
            for inherited in [each for each in _parents if each[0] != os.getpid()]:
                del _parents[inherited]
            _parents[key] = _Parent(modules)
        return _parents[key]


def end() -> None:
    """End the processes that fork, where there are some: they have used the time of all that they forked."""
    with _starting:
        for key in [each for each in _parents if each[0] == os.getpid()]:
            _parents.pop(key).end()


def stream_python(script: Path, folder: Path) -> Path:
    """``script``, a worker's Python for Spark, but what Spark starts for each query that reads from a Python source
    begins with its modules loaded. Its imports are a second of CPU, and the tests have hundreds of queries."""
    client, address = _REPOSITORY / "tests" / "suite" / "warm_client.py", _parent(_STREAM_PROGRAMS).address
    *before, last = script.read_text().splitlines(keepends=True)
    assert last.startswith("exec ")
    instead = _IF_STREAM.format(module=STREAM_RUNNER, python=sys.executable, client=client, address=address)
    copy = folder / "python"
    copy.write_text("".join([*before, instead, _IF_WORKERS, last]))
    copy.chmod(0o755)
    return copy


def run(arguments: list[str], *, timeout: float, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """``python -m`` with these arguments, to its end, as ``subprocess.run`` does with captured output."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = WarmProcess(arguments, output=output.fileno(), errors=errors.fileno(), cwd=cwd)
        try:
            status = process.wait(timeout)
        finally:
            process.kill()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(arguments, status, output.read(), errors.read())


class WarmProcess:
    """``python -m`` with these arguments, running; ``stdout`` is a pipe unless ``output`` is a descriptor.

    Has the methods of ``subprocess.Popen`` that tests use.
    """

    def __init__(
        self,
        arguments: list[str],
        *,
        errors: int = 2,
        output: int | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.args = arguments
        self.returncode: int | None = None
        self.stdout: TextIO | None = None
        self._lock = threading.Lock()
        self._status, theirs = os.pipe()
        opened = [theirs]
        if output is None:
            mine, output = os.pipe()
            opened.append(output)
            self.stdout = io.TextIOWrapper(io.FileIO(mine), encoding="utf-8")
        request = {
            "arguments": arguments,
            "cwd": str(Path.cwd() if cwd is None else cwd),
            "env": dict(os.environ if env is None else env),
        }
        try:
            _parent(_OWN_PROGRAMS).fork(request, [output, errors, theirs])
        finally:
            for each in opened:
                os.close(each)
        pid = os.read(self._status, _NUMBER.size)
        assert pid, "the process that forks has ended"
        self.pid: int = _NUMBER.unpack(pid)[0]

    def poll(self) -> int | None:
        return self._wait(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit status; a signal's number is negative. Raises subprocess.TimeoutExpired."""
        status = self._wait(timeout)
        if status is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return status

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            # It may end in between, and nobody waits for it here.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _wait(self, timeout: float | None) -> int | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._lock.acquire(timeout=-1 if timeout is None else timeout):
            return self.returncode
        try:
            if self.returncode is None:
                left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
                waiting = select.poll()
                waiting.register(self._status, select.POLLIN)
                if waiting.poll(left):
                    status = os.read(self._status, _NUMBER.size)
                    assert status, "the process that forks has ended"
                    (self.returncode,) = _NUMBER.unpack(status)
                    os.close(self._status)
            return self.returncode
        finally:
            self._lock.release()
