"""Claims about wall clocks that jump, with real processes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from einmal.local.clocks import Clocks, ClocksMissing
from tests.suite.patience import patient

pytestmark = pytest.mark.system

_REPORT: Final = """
import sys, time
for _ in sys.stdin:
    print(time.time(), time.monotonic(), flush=True)
"""

_WAIT: Final = """
import ctypes, time
c = ctypes.CDLL(None)
attributes, condition, mutex = (ctypes.create_string_buffer(64) for _ in range(3))
c.pthread_condattr_init(attributes)
c.pthread_condattr_setclock(attributes, time.CLOCK_MONOTONIC)
c.pthread_cond_init(condition, attributes)
c.pthread_mutex_init(mutex, None)
c.pthread_mutex_lock(mutex)
began = time.monotonic()
seconds, nanoseconds = divmod(time.monotonic_ns() + 500_000_000, 10**9)
c.pthread_cond_timedwait(condition, mutex, (ctypes.c_long * 2)(seconds, nanoseconds))
print(time.monotonic() - began)
"""
"""As a JVM waits: until a time of the monotonic clock."""


@pytest.mark.skipif(sys.platform != "linux", reason="libfaketime is built for Linux")
def test_one_clock_jumps_forth_and_back_and_no_process_is_started_anew(tmp_path: Path) -> None:
    clocks = Clocks(tmp_path, 2)
    command = [sys.executable, "-I", "-c", _REPORT]
    with (
        subprocess.Popen([*clocks.command(1), *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first,
        subprocess.Popen([*clocks.command(2), *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as second,
    ):

        def ahead(process: subprocess.Popen[bytes]) -> float:
            """How far its clock is ahead; the other clock of the system is never touched."""
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            wall, monotonic = map(float, process.stdout.readline().split())
            assert abs(monotonic - time.monotonic()) < patient(10)
            return wall - time.time()

        def is_ahead(process: subprocess.Popen[bytes], seconds: float) -> bool:
            deadline = time.monotonic() + patient(10)
            while abs(ahead(process) - seconds) > 60.0:
                if time.monotonic() > deadline:
                    return False
            return True

        for seconds in (0.0, 3_600.0, -86_400.0, 0.0):
            clocks.set(1, seconds)
            assert is_ahead(first, seconds) and is_ahead(second, 0.0)
        first.kill()
        second.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="libfaketime is built for Linux")
def test_a_thread_that_waits_until_a_monotonic_time_sleeps(tmp_path: Path) -> None:
    """Otherwise nodes of Apache Kafka use a processor each while nothing happens, and do not start in minutes."""
    command = [*Clocks(tmp_path, 1).command(1), sys.executable, "-I", "-c", _WAIT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) >= 0.49


def test_without_the_library_an_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("einmal.local.clocks.find_spec", lambda _name: None)
    with pytest.raises(ClocksMissing, match=r"libfaketime is not installed\nhint: pip install '.*\[chaos\]'"):
        Clocks(tmp_path, 1)
