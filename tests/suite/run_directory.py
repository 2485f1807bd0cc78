"""The directory of a run, which all its worker processes share, and the sign of life of the process that began it.

The first process makes it and keeps a FIFO in it open for writing. Whoever works for the run in the background reads
that FIFO: it ends when the first process does, however that ends.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_VARIABLE: Final = "EINMAL_TEST_RUN"
_LIFELINE: Final = "lifeline"


def begin(directory: Path) -> int:
    """Make the directory of a new run, and of the processes that start from here. The descriptor is its life."""
    directory.mkdir()
    os.mkfifo(directory / _LIFELINE)
    os.environ[_VARIABLE] = str(directory)
    # For both: to open for writing alone would wait for a reader.
    return os.open(directory / _LIFELINE, os.O_RDWR)


def of_this_run() -> Path:
    """The directory. Raises KeyError outside a run."""
    return Path(os.environ[_VARIABLE])


def wait_for_the_end(directory: Path) -> None:
    """Return when the process that began the run has ended, or has closed its lifeline."""
    with (directory / _LIFELINE).open("rb") as lifeline:
        lifeline.read()
