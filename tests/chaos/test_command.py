"""Claims about a command under faults: killed with everything that it started, and done when it ends by itself."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import pytest

from einmal.chaos.command import CommandFaults, RestartedCommand
from einmal.chaos.processes import command_of
from tests.suite.patience import patient

pytestmark = [pytest.mark.system, pytest.mark.slow]

PROGRAM = """
import pathlib, subprocess, sys, time
lives = pathlib.Path(sys.argv[1])
child = subprocess.Popen(["sleep", "600"])
with lives.open("a") as file:
    file.write(f"{child.pid}\\n")
if len(lives.read_text().splitlines()) > 3:
    child.kill()
    sys.exit(7)
time.sleep(600)
"""


def kills(chance: int) -> random.Random:
    """Draws that begin with a kill."""
    return next(
        random.Random(seed)
        for seed in range(chance, chance + 100)
        if random.Random(seed).choices(["kill", "stop"], [3, 2]) == ["kill"]
    )


def lives(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


async def until_alive(file: Path, count: int) -> None:
    async with asyncio.timeout(patient(20)):
        while len(lives(file)) < count:  # noqa: ASYNC110 - of another process.
            await asyncio.sleep(0.02)


async def test_it_is_killed_with_its_children_and_its_own_end_is_the_end(tmp_path: Path) -> None:
    file = tmp_path / "lives"
    command = RestartedCommand([sys.executable, "-c", PROGRAM, str(file)], {}, tmp_path / "log")
    faults, noted = CommandFaults(command), list[str]()
    command.start()
    try:
        ended = asyncio.create_task(faults.ended())
        for life in range(1, 4):
            await until_alive(file, life)
            await faults.inject(kills(life), noted.append)
        async with asyncio.timeout(patient(20)):
            assert await ended == 7
    finally:
        command.kill()
    assert noted == ["kill -9 of the command", "the command is started again"] * 3
    assert [pid for pid in lives(file) if "sleep 600" in command_of(pid)] == []


async def test_what_has_ended_is_left_alone(tmp_path: Path) -> None:
    command = RestartedCommand([sys.executable, "-c", "pass"], {}, tmp_path / "log")
    faults, noted = CommandFaults(command), list[str]()
    command.start()
    async with asyncio.timeout(patient(20)):
        assert await faults.ended() == 0
    await faults.inject(random.Random(1), noted.append)
    assert noted == []
    assert not command.is_running
