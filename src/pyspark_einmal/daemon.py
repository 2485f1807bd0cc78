"""Spark's daemon of Python workers, whose workers are silent when their batch was stopped.

Spark closes the connection to a worker whose task it has ended. Over a Unix domain socket what the worker still has to
send fails at once, and PySpark's daemon would print that as a traceback, although nothing has failed. Run as the main
module, in place of ``pyspark.daemon``.
"""

from __future__ import annotations

import os
import socket
from typing import Final

from pyspark import daemon

_serve = daemon.worker
_KILL: Final = "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"
"""Without it PySpark prints what went wrong, and the worker waits for another task."""


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
    daemon.manager()


if __name__ == "__main__":
    main()
