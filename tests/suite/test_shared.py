"""Claims about the servers that all workers of a run share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from einmal.client import Admin
from tests.interop.einmal_broker import EinmalBroker
from tests.suite.patience import patient
from tests.suite.shared import shared, unique

pytestmark = pytest.mark.system

_ROOT = Path(__file__).parents[2]
_BEGIN = """
import sys, time
from pathlib import Path
from tests.suite import run_directory
life = run_directory.begin(Path(sys.argv[1]))
print(flush=True)
time.sleep(600)
"""
_ASK = "from tests.suite.shared import shared; node = shared('einmal'); print(node.pid, node.bootstrap)"


def exists(pid: int) -> bool:
    # A process that has ended, and that nobody waits for, has no command line; it may end between two looks.
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


def ask(directory: Path) -> tuple[int, str]:
    """A worker's question: the process and the address of the shared broker."""
    environment = os.environ | {"EINMAL_TEST_RUN": str(directory)}
    command = [sys.executable, "-c", _ASK]
    output = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    pid, bootstrap = output.split()
    return int(pid), bootstrap


def test_workers_find_one_server_which_ends_with_the_run_even_if_that_is_killed(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    run = subprocess.Popen([sys.executable, "-c", _BEGIN, str(directory)], cwd=_ROOT, stdout=subprocess.PIPE)
    try:
        assert run.stdout is not None
        run.stdout.readline()
        first = ask(directory)
        assert ask(directory) == first
        assert exists(first[0]), "it outlives the worker that started it"
    finally:
        run.send_signal(signal.SIGKILL)
        run.communicate()
    deadline = time.monotonic() + patient(30)
    while exists(first[0]):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_test_cannot_end_a_shared_server() -> None:
    node: EinmalBroker = shared("einmal")
    with pytest.raises(AssertionError, match="start one of its own"):
        node.kill()
    with Admin(bootstrap_servers=node.bootstrap) as admin:
        assert admin.describe_cluster().brokers


def test_names_for_shared_servers_are_used_once() -> None:
    assert unique("topic") != unique("topic")
    assert str(os.getpid()) in unique("topic"), "nor by another worker"
