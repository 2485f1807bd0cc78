"""One server of each kind for a run: started by the first worker that needs it, found by the others, ended with it.

A server belongs to a process of its own, its keeper (``python -m tests.suite.keeper``), because a worker may end before
the others. The keeper publishes the server's object, pickled; a worker that reads it has the same addresses, paths and
methods, but must not end the server: a test that kills one starts its own.

Everything in a shared server is shared: topics, groups, ids, users, databases. ``unique`` makes names for them.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import pickle
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest

from tests.suite.run_directory import of_this_run

_REPOSITORY: Final = Path(__file__).parents[2]
_names = itertools.count()


class Unavailable(Exception):
    """A server cannot be run on this machine; the text names what is missing."""


class NotStarted(Exception):
    """The keeper of a server has failed; the text is its own."""


class ElsewhereProcess:
    """In place of the process of a shared server, in a worker: it can be looked at, and nothing else."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            # As pickle asks.
            raise AttributeError(name)
        raise AssertionError(f"{name}: a shared server is not a test's to end; start one of its own")


class Shareable:
    """A server whose object works in other processes than the one that started it, but for its end.

    Its process is the attribute ``_process``: a Popen.
    """

    _process: Any

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        process = self._process
        state["_process"] = None if process is None else ElsewhereProcess(process.pid)
        return state


@cache
def shared(kind: str) -> Any:
    """The server of a kind (``keeper.KINDS``), running; its test is skipped where it is unavailable.

    Raises NotStarted, and what its start raises.
    """
    directory = of_this_run()
    published = directory / f"{kind}.server"
    with (directory / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not published.exists():
            _start_keeper(kind, published)
    result = pickle.loads(published.read_bytes())
    if isinstance(result, Unavailable):
        pytest.skip(str(result))
    if isinstance(result, Exception):
        raise result
    return result


def _start_keeper(kind: str, published: Path) -> None:
    """Return once it has published its server, or why there is none."""
    log = published.with_suffix(".log")
    with log.open("w") as output:
        keeper = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.suite.keeper", kind, str(published)],
            cwd=_REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            # Ctrl-C is for the tests: the keeper ends when they have.
            start_new_session=True,
        )
    assert keeper.stdout is not None
    with keeper.stdout:
        # It closes its output when it has published, and when it ends.
        keeper.stdout.read()
    if not published.exists():
        raise NotStarted(f"{kind}: {log.read_text()[-4000:]}")
    # It outlives this process, and is nobody's to wait for here.
    keeper.returncode = 0


def unique(what: str) -> str:
    """A name that no other test of the run uses: of a topic, a group, a transactional id, a user, a database."""
    return f"{what}-{os.getpid()}-{next(_names)}"
