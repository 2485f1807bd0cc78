"""Ctrl-C, wherever a command is: status 130, and no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.suite.cases import each_case
from tests.suite.patience import patient

pytestmark = pytest.mark.system

_PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
_ENDLESS_END = """
import threading, time
from einmal.cli.interrupts import stop_on_signals
stopping = threading.Event()
stop_on_signals(stopping.set)
print("begun", flush=True)
while not stopping.wait(1):
    pass
print("ending", flush=True)
time.sleep(600)
"""
_INTERRUPTED = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(600)\n"


def script() -> str:
    """What an installer writes as the program ``einmal``."""
    module, _, function = tomllib.loads(_PYPROJECT.read_text())["project"]["scripts"]["einmal"].partition(":")
    return f"from {module} import {function}; {function}()"


@each_case("program", ["script", "python -m einmal"])
@each_case("module", ["pathlib", "typer"])
def test_an_interrupt_during_the_imports_prints_no_traceback(program: str, module: str, tmp_path: Path) -> None:
    """A module of that name in front of the real one sends the signal: einmal itself imports pathlib, its commands
    typer."""
    (tmp_path / f"{module}.py").write_text(_INTERRUPTED)
    arguments = ["-c", script()] if program == "script" else ["-m", "einmal"]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, *arguments, "--version"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=patient(60),
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


@each_case("verb", ["trace", "chaos"])
@each_case("at_interrupt", ["", "signal.signal(signal.SIGINT, lambda *_: sys.exit(0)); "])
def test_a_command_that_the_user_interrupts_ends_its_runner_with_130(
    verb: str, at_interrupt: str, cluster: str
) -> None:
    """Also where the interrupted program itself ends as one that is done."""
    program = f"import signal, sys, time; {at_interrupt}print('begun', file=sys.stderr, flush=True); time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-m", "einmal", verb, "-b", cluster, "--", sys.executable, "-c", program],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        assert "begun\n" in iter(process.stderr.readline, "")
        # As a terminal does it.
        os.killpg(process.pid, signal.SIGINT)
        process.stderr.read()
    assert process.returncode == 130


def test_an_interrupt_that_ends_the_reader_of_stderr_too_is_an_end_between_two_steps() -> None:
    """As in ``einmal mirror run 2>&1 | tee mirror.log``."""
    reader, stderr = os.pipe()
    with subprocess.Popen([sys.executable, "-c", _ENDLESS_END], stdout=subprocess.PIPE, stderr=stderr) as process:
        os.close(stderr)
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        os.close(reader)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"ending\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(patient(60)) == 128 + signal.SIGINT


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_interrupt_ends_at_once_what_ends_between_two_steps(number: signal.Signals) -> None:
    """As a mirror and an ingester do it, whose step may wait for a cluster."""
    with subprocess.Popen(
        [sys.executable, "-c", _ENDLESS_END], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "ending\n"
        process.send_signal(number)
        assert process.wait(patient(60)) == 128 + number
        assert process.stderr.read() == "stopping after this step; once more to stop at once\n"
