"""Spark's daemon of Python workers, whose workers begin with our modules, and are silent when their batch was stopped.

Each worker is a fork, and imports what its task needs. What a task of ours imports costs 0.6 s of CPU; half of that
starts no thread, and so can be imported before the fork (numpy and Arrow start some).

Spark closes the connection to a worker whose task it has ended. Over a Unix domain socket what the worker still has to
send fails at once, and PySpark's daemon would print that as a traceback, although nothing has failed. Run as the main
module, in place of ``pyspark.daemon``.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
from typing import Final

from pyspark import daemon

_serve = daemon.worker
_KILL: Final = "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"
"""Without it PySpark prints what went wrong, and the worker waits for another task."""
LOADED_MODULES: Final = ("einmal.spark.environment.python_worker", "einmal.sinks.kafka.open_transaction")


def worker(sock: socket.socket, authenticated: bool) -> int:
    """In a process of its own: one task. Its exit code."""
    os.environ[_KILL] = "1"
    try:
        return _serve(sock, authenticated)
    except ConnectionError:
        # As PySpark's: this process cannot serve another task.
        os._exit(1)


def main() -> None:
    """Until Spark closes standard input."""
    daemon.worker = worker
    for module in LOADED_MODULES:
        importlib.import_module(module)
    # A collection in a worker would copy the pages of what it finds.
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
