"""Ctrl-C and SIGTERM for commands that end between two steps, and at once when they come again."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Final

from einmal.cli.printing.messages import note

_NUMBERS: Final = (signal.SIGINT, signal.SIGTERM)


def stop_on_signals(stop: Callable[[], None]) -> None:
    """``stop``: returns at once; the command then ends by itself."""

    def begin(_number: int, _frame: FrameType | None) -> None:
        for number in _NUMBERS:
            signal.signal(number, _end)
        stop()
        # Whoever reads stderr, such as tee, may have ended by the same Ctrl-C; and it may have come within a print.
        with contextlib.suppress(OSError, RuntimeError):
            note("stopping after this step; once more to stop at once")

    for number in _NUMBERS:
        signal.signal(number, begin)


def _end(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)
