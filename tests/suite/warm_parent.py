"""Forks for each program that is asked for, with these modules loaded: ``python -m
tests.suite.warm_parent SOCKET LISTENER MODULE...``, which ``warm`` starts.

``SOCKET`` and ``LISTENER`` are descriptors. Who has the other end of the socket asks through it, and it ends with them;
who has the address of the listener asks through a connection of their own, once.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
from typing import Any, Final, TextIO

_NUMBER: Final = struct.Struct("!i")
_REQUEST_BYTES_MAX: Final = 1 << 20


def main() -> list[str]:
    """Returns in each process that is forked, with its arguments; and without any, at the end of the tests."""
    requests, listener = (socket.socket(fileno=int(each)) for each in sys.argv[1:3])
    # Ctrl-C is for the tests and what they have started. The rest is seen by reading.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    for module in sys.argv[3:]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    running: dict[int, int] = {}
    while True:
        source = _asked(requests, listener, woken, running)
        data, descriptors, _flags, _address = socket.recv_fds(source, _REQUEST_BYTES_MAX, 3)
        if source is not requests:
            source.close()
            if not data:
                # It was ended before it could ask.
                continue
        if not data:
            break
        request = json.loads(data)
        output, errors, status = descriptors
        pid = os.fork()
        if pid == 0:
            _become(request, output, errors)
            return [str(argument) for argument in request["arguments"]]
        os.close(output)
        os.close(errors)
        running[pid] = status
        os.write(status, _NUMBER.pack(pid))
    return []


def _asked(
    requests: socket.socket, listener: socket.socket, woken: socket.socket, running: dict[int, int]
) -> socket.socket:
    """Report who has ended, until there is a request: where it is to be read."""
    waiting = select.poll()
    for each in (requests, listener, woken):
        waiting.register(each, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in waiting.poll()}
        if woken.fileno() in ready:
            woken.recv(4096)
            _report_ends(running)
        if requests.fileno() in ready:
            return requests
        if listener.fileno() in ready:
            return listener.accept()[0]


def _report_ends(running: dict[int, int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        whom = running.pop(pid)
        # Its process may have ended meanwhile.
        with contextlib.suppress(BrokenPipeError):
            os.write(whom, _NUMBER.pack(os.waitstatus_to_exitcode(status)))
        os.close(whom)


def _become(request: dict[str, Any], output: int, errors: int) -> None:
    """The process of a program at its start."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX") if sys.platform != "linux" else _highest() + 1)
    sys.stdout = _standard(1, is_line_buffered=os.isatty(1))
    sys.stderr = _standard(2, is_line_buffered=True)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.path[0] = request["cwd"]


def _highest() -> int:
    return max(map(int, os.listdir("/proc/self/fd")))


def _standard(descriptor: int, *, is_line_buffered: bool) -> TextIO:
    return io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False)),
        encoding="utf-8",
        errors="backslashreplace" if descriptor == 2 else "strict",
        line_buffering=is_line_buffered,
    )


if __name__ == "__main__":
    _arguments = main()
    if _arguments:
        _module, *sys.argv[1:] = _arguments
        # Loaded, and yet to be run: it is made once more, and what it has imported is there.
        sys.modules.pop(_module, None)
        # It ends as any program does: with what is done at exit.
        runpy.run_module(_module, run_name="__main__", alter_sys=True)
