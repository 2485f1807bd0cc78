"""Claims about programs that begin with their modules loaded: they are processes like any other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.suite.patience import patient
from tests.suite.warm import STREAM_RUNNER, WarmProcess, stream_python

PROGRAM = """
import os, signal, sys, time
print(sys.argv[1:], __name__, os.getcwd(), os.environ["GIVEN"], os.environ.get("HOME"), flush=True)
print("to stderr", file=sys.stderr)
print("fds", sorted(map(int, os.listdir("/proc/self/fd")))[:-1], flush=True)
if sys.argv[1] == "sleep":
    time.sleep(3600)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[WarmProcess]]:
    (tmp_path / "program_to_run.py").write_text(PROGRAM)
    started: list[WarmProcess] = []
    yield started
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_a_program_has_its_own_arguments_files_environment_and_status(
    tmp_path: Path, started: list[WarmProcess]
) -> None:
    with (tmp_path / "errors").open("w") as errors:
        process = WarmProcess(
            ["program_to_run", "7", "a b"], errors=errors.fileno(), cwd=tmp_path, env={"GIVEN": "value"}
        )
    started.append(process)
    assert process.stdout is not None
    assert process.stdout.read() == f"['7', 'a b'] __main__ {tmp_path} value None\nfds [0, 1, 2]\n"
    assert process.wait(patient(10)) == 7
    assert process.poll() == 7
    assert (tmp_path / "errors").read_text() == "to stderr\n"


def test_programs_of_one_module_are_waited_for_and_killed_one_by_one(
    tmp_path: Path, started: list[WarmProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIVEN", "by the test")
    monkeypatch.chdir(tmp_path)
    first, second, third = (WarmProcess(["program_to_run", "sleep"]) for _ in range(3))
    started += [first, second, third]
    for process in started:
        assert process.stdout is not None and "by the test" in process.stdout.readline()
        assert os.getpgid(process.pid) == os.getpgrp()
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(0.01)
    second.kill()
    assert second.wait(patient(10)) == -signal.SIGKILL
    third.terminate()
    assert third.wait(patient(10)) == -signal.SIGTERM
    first.send_signal(signal.SIGINT)
    assert first.wait(patient(10)) == -signal.SIGINT
    for process in started:
        # Who has ended is nobody to send a signal to.
        process.terminate()
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)


def test_output_goes_to_the_given_files(tmp_path: Path, started: list[WarmProcess]) -> None:
    with (tmp_path / "output").open("w") as output, (tmp_path / "errors").open("w") as errors:
        process = WarmProcess(["einmal", "--version"], output=output.fileno(), errors=errors.fileno())
    started.append(process)
    assert process.stdout is None
    assert process.wait(patient(10)) == 0
    assert (tmp_path / "output").read_text().startswith("einmal ")


def test_spark_gets_a_warm_program_for_what_reads_a_stream_and_a_new_one_for_everything_else(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    script = stream_python(tmp_path / "plain", tmp_path)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"GIVEN": "value"}
        return subprocess.run(
            [script, *arguments], capture_output=True, text=True, timeout=patient(60), cwd=tmp_path, env=environment
        )

    other = run("-c", "import os, sys; print('pyspark' in sys.modules, os.environ['GIVEN']); sys.exit(3)")
    assert (other.returncode, other.stdout) == (3, "False value\n")
    # It fails as the new one does, for nobody listens to it.
    warm, new = (run("-m", STREAM_RUNNER), subprocess.run([sys.executable, "-m", STREAM_RUNNER], capture_output=True))
    assert warm.returncode == new.returncode != 0
    assert warm.stderr.splitlines()[-1] == new.stderr.decode().splitlines()[-1]
