"""A README's commands, run as its reader would run them: in its order, in one folder, against a broker that runs.

A command is a line of a ``console`` block that begins with ``$``; the lines below it are what it prints, where ``…``
stands for anything within a line. What sets up an installation and a broker is not run but must read the same in every
README, except for the broker's settings. ``einmal run`` is killed in the middle and run again.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

ROOT: Final = Path(__file__).parents[2]
SET_UP: Final = ("make setup", ". .venv/bin/activate", "einmal start --data-dir build/examples/broker")
_LIMIT_S: Final = 900.0
_BLOCK: Final = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TIMES: Final = re.compile(r"timestamp \d+")
_RECORDS: Final = re.compile(r"^batch(?:es)? [\d-]+: ([\d,]+) records", re.MULTILINE)
_QUICK: Final = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""A JVM that lives for seconds compiles less."""


@dataclass(frozen=True, slots=True)
class Step:
    """A command, and its output in the README."""

    command: str
    printed: str

    @property
    def pipeline(self) -> str:
        """The command that runs a pipeline, without the loop around it; empty: there is none."""
        found = re.search(r"^(?:for [^;]*; do )?(einmal run [^;&]*)", self.command)
        return found[1].rstrip() if found else ""


def steps(readme: Path, set_up: Sequence[str] = SET_UP) -> Iterator[Step]:
    """Everything after the set-up, which must be there."""
    found = [
        Step(command, printed)
        for block in _BLOCK.findall(readme.read_text())
        for command, printed in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    ]
    *preparing, starting = [each.command for each in found[: len(set_up)]]
    # The broker of an example may have settings of its own.
    is_set_up = preparing == [*set_up[:-1]] and starting.startswith(set_up[-1])
    assert is_set_up, f"{readme} begins with {[*preparing, starting]}"
    return (each for each in found[len(set_up) :] if each.command not in set_up)


class Reader:
    """Somebody who types the commands of a README into a shell, in ``folder``."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.folder = folder
        self.bootstrap = bootstrap
        self.environment = os.environ | _QUICK
        self.environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment["KAFKA_BROKERS"] = bootstrap
        (folder / "build" / "examples").mkdir(parents=True)
        for name in ("examples", "LICENSE"):
            (folder / name).symlink_to(ROOT / name)

    def follow(
        self, readme: Path, *, kill_in: str = "", set_up: Sequence[str] = SET_UP, skip: Sequence[str] = ()
    ) -> None:
        """Run every step, and compare what is printed. ``kill_in``: the pipeline that is killed in the middle.
        ``skip``: further commands that set something up."""
        for step in steps(readme, set_up):
            if step.command in skip:
                continue
            if not step.pipeline:
                self._compare(step, self._run(step.command).stdout)
                continue
            if kill_in and kill_in in step.command:
                self._kill_in_the_middle(step.pipeline)
            self._run(step.command)

    def _run(self, command: str) -> subprocess.CompletedProcess[str]:
        ended = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
        assert ended.returncode == 0, f"{command} failed with {ended.returncode}: {ended.stdout}{ended.stderr}"
        return ended

    def _compare(self, step: Step, output: str) -> None:
        if step.printed:
            expected, seen = (_TIMES.sub("timestamp", text) for text in (step.printed, output))
            if not re.fullmatch(".*".join(map(re.escape, expected.split("…"))), seen):
                assert seen == expected, step.command

    def _kill_in_the_middle(self, command: str) -> None:
        """Kill -9 for all of a pipeline's processes, once it has reported a batch with records."""
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stderr is not None
        try:
            told = _until_records(process.stderr)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(_LIMIT_S)
            process.stderr.close()
        assert records_told(told), f"it ended before it could be killed: {told}"


def _until_records(lines: IO[str]) -> str:
    told = ""
    for line in lines:
        told += line
        if records_told(line):
            break
    return told


def records_told(told: str) -> int:
    """How many records the batches in these lines wrote."""
    return sum(int(number.replace(",", "")) for number in _RECORDS.findall(told))


def records_printed(readme: Path, pipeline: str) -> int:
    """How many records a pipeline writes according to the README."""
    return next(records_told(step.printed) for step in steps(readme) if f"/{pipeline} " in step.command)
