"""Report of what a command waits for, on stderr: at once, and on a terminal every five seconds for how long by now."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from einmal.cli.printing.messages import note

_EVERY_S: Final = 5.0


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """``what`` is a phrase, such as "starting Spark"."""
    begun = time.monotonic()
    is_over = threading.Event()

    def tell() -> None:
        while not is_over.wait(_EVERY_S):
            note(f"{what}: {time.monotonic() - begun:.0f} s")

    note(what)
    # A log needs no more than the line above.
    if sys.stderr.isatty():
        threading.Thread(target=tell, name="einmal-waiting", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
