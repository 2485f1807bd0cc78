"""Bytes to stdout such that it is known how many have left, whatever interrupts: a signal, a closed pipe, a full disk.

Buffers do not report it, and without one (``PYTHONUNBUFFERED``) a signal can come between a write and its count.
"""

from __future__ import annotations

import io
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from einmal.cli.printing.output import output_failures

_CHUNK_BYTES: Final = select.PIPE_BUF
"""As many a writable pipe takes without waiting (POSIX), so that no signal waits for a reader."""
_ENDING: Final = (signal.SIGINT, signal.SIGTERM)


class CountedOutput:
    """stdout; ``written`` counts its bytes."""

    def __init__(self) -> None:
        self.written = 0
        sys.stdout.flush()
        self._raw = getattr(sys.stdout.buffer, "raw", sys.stdout.buffer)
        try:
            self._waits_for = [self._raw.fileno()]
        except io.UnsupportedOperation:
            self._waits_for = []

    def write(self, data: bytes) -> None:
        """All of them, at once. Raises OutputFailed, BrokenPipeError, and what a signal's handler raises; ``written``
        is right then, too."""
        view = memoryview(data)
        while view:
            if self._waits_for:
                select.select([], self._waits_for, [])
            with output_failures(), _signals_held_back():
                count = self._raw.write(view[:_CHUNK_BYTES]) or 0
                self.written += count
            view = view[count:]


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Those that end a command are handled at the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {}
    try:
        for signal_number in _ENDING:
            handlers[signal_number] = signal.signal(signal_number, lambda number, _frame: came.append(number))
        yield
    finally:
        for signal_number, handler in handlers.items():
            signal.signal(signal_number, handler)
        for number in came:
            signal.raise_signal(number)
