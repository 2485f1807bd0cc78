"""einmal: a Kafka-compatible log with exactly-once transactions, and an exactly-once pipeline on Spark."""

import sys

if sys.argv[:1] == ["-m"] and ("-m", "einmal") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False):
    # Python imports this before ``__main__``, which it has not begun to run.
    from einmal_command import end_on_interrupt

    end_on_interrupt()

from contextlib import suppress
from importlib import import_module

from einmal.compiled import find_compiled

__version__ = "0.1.0"


def _import_kio() -> None:
    """Where hypothesis is installed, kio imports it: that takes seconds and leaves a folder in the working directory.

    A program that wants kio's types as strategies imports hypothesis first.
    """
    if "hypothesis" not in sys.modules:
        sys.modules["hypothesis"] = None  # type: ignore[assignment]
        try:
            with suppress(ImportError):
                import_module("kio.static._phantom")
        finally:
            del sys.modules["hypothesis"]


_import_kio()
find_compiled()
