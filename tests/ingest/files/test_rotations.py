"""Random rotations, with a reader that looks, fails and dies between any two of their steps: each line once.

A step of a rotation is what one system call does: a copy is half written before it is whole, and the original is
truncated after that. Such a step can come between any two system calls of the reader, also in the middle of a listing,
which then misses what is renamed. ``EINMAL_SEEDS`` is how many seeds each test takes.
"""

from __future__ import annotations

import gzip
import os
import random
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from einmal.ingest import SourceRefused
from tests.ingest.files.reader import Reader

SEEDS: Final = int(os.environ.get("EINMAL_SEEDS", "16"))
STEPS: Final = 60
_KILLED: Final = 0.002
"""The probability that the reader dies at a system call."""
Steps = Iterator[None]


class Rotated:
    """A log that is written and rotated. ``written``: all whole lines."""

    def __init__(
        self, folder: Path, source: random.Random, *, is_lossy: bool = False, inserts_numbers: bool = False
    ) -> None:
        """``is_lossy``: lines are written between copy and truncation, too. ``destroyed``: these. ``inserts_numbers``:
        rotations give names such as app-1.log, and compress in one step with the renaming."""
        self.log = folder / "app.log"
        self._inserts_numbers = inserts_numbers
        self._rotations = 0
        self.destroyed: set[str] = set()
        self._is_lossy = is_lossy
        self._random = source
        self._number = 0
        self._rest = ""
        """Of the line whose beginning is written."""
        self.written: list[str] = []

    def write(self, path: Path | None = None) -> Steps:
        text, self._rest = self._rest, ""
        for _ in range(self._random.randrange(4)):
            self._number += 1
            line = f"line {self._number}" + "x" * self._random.choice((0, 0, 2_000))
            self.written.append(line)
            text += f"{line}\n"
        if text and self._random.random() < 0.3 and path is None:
            cut = self._random.randrange(len(text))
            text, self._rest = text[:cut], text[cut:]
        with (path or self.log).open("a") as file:
            file.write(text)
        yield

    def _inserted(self, suffix: str = "") -> Path:
        self._rotations += 1
        return self.log.with_name(f"app-2026-11-{self._rotations}.log{suffix}")

    def roll(self) -> Steps:
        """As logback and log4j2 do."""
        yield from self._finish_line()
        temporary = self.log.with_name(f"app.log{self._rotations}.tmp")
        self.log.rename(temporary)
        yield
        yield from self._copy(gzip.compress(temporary.read_bytes()), self._inserted(".gz"))
        temporary.unlink()
        yield
        self.log.touch()
        yield

    def copy_and_truncate_with_extension(self) -> Steps:
        """As logrotate does with dateext and extension."""
        yield from self._finish_line()
        data = self.log.read_bytes()
        yield from self._copy(data, self._inserted())
        os.truncate(self.log, 0)
        yield

    def _numbered(self, number: int, suffix: str = "") -> Path:
        return self.log.with_name(f"app.log.{number}{suffix}")

    def _shift(self) -> Steps:
        """Make room for app.log.1."""
        for number in range(len(list(self.log.parent.iterdir())), 0, -1):
            for suffix in (".gz", ""):
                path = self._numbered(number, suffix)
                if path.exists():
                    path.rename(self._numbered(number + 1, suffix))
                    yield

    def rename(self) -> Steps:
        yield from self._finish_line()
        yield from self._shift()
        self.log.rename(self._numbered(1))
        yield
        # Who writes has the old file still open.
        yield from self.write(self._numbered(1))
        self.log.touch()
        yield

    def copy_and_truncate(self) -> Steps:
        yield from self._finish_line()
        yield from self._shift()
        data = self.log.read_bytes()
        yield from self._copy(data, self._numbered(1))
        # Lines that are written now are lost by the rotation itself.
        count = len(self.written)
        if self._is_lossy:
            yield from self.write()
            self.destroyed.update(self.written[count:])
            self._rest = ""
        os.truncate(self.log, 0)
        yield

    def compress(self) -> Steps:
        path = self._numbered(1)
        if path.exists():
            yield from self._copy(gzip.compress(path.read_bytes()), self._numbered(1, ".gz"))
            path.unlink()
        yield

    def _copy(self, data: bytes, target: Path) -> Steps:
        half = self._random.randrange(len(data) + 1)
        with target.open("wb") as file:
            yield
            for part in (data[:half], data[half:]):
                file.write(part)
                file.flush()
                yield

    def _finish_line(self) -> Steps:
        while self._rest:
            yield from self.write()

    def run(self) -> Steps:
        for _ in range(STEPS):
            choices: list[Callable[[], Steps]] = [self.write] * 3
            if self.log.exists() and self._inserts_numbers:
                choices += [self.roll, self.copy_and_truncate_with_extension]
            elif self.log.exists():
                choices += [self.rename, self.copy_and_truncate, self.compress]
            yield from self._random.choice(choices)()
        yield from self._finish_line()


class Dead(BaseException):
    """The reader is killed."""


class World:
    """What happens between the system calls of a reader."""

    def __init__(self, steps: Steps, source: random.Random) -> None:
        self._steps = steps
        self._random = source
        self._probability = source.choice((0.02, 0.05, 0.1, 0.3))
        self._is_inside = False
        self.is_over = False

    def passes(self, *, may_kill: bool = True) -> None:
        """At most a step of the rotation, or the death of the reader."""
        if self._is_inside:
            return
        self._is_inside = True
        try:
            if self._random.random() < self._probability:
                self.is_over = self.is_over or next(self._steps, self) is self
        finally:
            self._is_inside = False
        if may_kill and self._random.random() < _KILLED:
            raise Dead

    def before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **others: Any) -> Any:
            self.passes()
            return call(*args, **others)

        return wrapped

    def listed(self, folder: Path, seed: int) -> Callable[..., Iterator[str]]:
        """A listing of two parts: in which a name is, depends on the name. A file that is renamed meanwhile can be in
        none of them, or in both."""

        def names(part: int) -> list[str]:
            found = sorted(os.listdir(folder), key=lambda name: zlib.crc32(f"{seed}{name}".encode()))
            return [name for name in found if zlib.crc32(f"{name}{seed}".encode()) % 2 == part]

        def iglob(pattern: str, recursive: bool) -> Iterator[str]:
            if pattern.endswith("/"):
                # Of a start: the directories are not rotated.
                yield pattern
                return
            first = names(0)
            self.passes()
            for name in (*first, *names(1)):
                if pattern.endswith("*") or name == "app.log":
                    yield str(folder / name)

        return iglob


@contextmanager
def between_system_calls(world: World, folder: Path, seed: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("glob.iglob", world.listed(folder, seed))
        for name in ("stat", "fstat", "open", "pread", "scandir"):
            patch.setattr(os, name, world.before(getattr(os, name)))
        yield


def look(reader: Reader, source: random.Random) -> None:
    """At most one batch, possibly of a transaction that fails."""
    if (batch := reader.next_batch()) is None:
        return
    outcome = source.random()
    if outcome < 0.7:
        reader.commit(batch)
    elif outcome < 0.8:
        reader.reopen()
    elif outcome < 0.9:
        reader.restart()
    else:
        # The answer to the commit is lost with the process.
        reader.commit(batch)
        reader.restart()


def read_while_rotated(folder: Path, seed: int, pattern: str, **kind: bool) -> tuple[Rotated, Reader]:
    source = random.Random(seed)
    rotated = Rotated(folder, source, **kind)
    world = World(rotated.run(), source)
    reader = Reader(folder / pattern)
    with between_system_calls(world, folder, seed):
        while not world.is_over:
            world.passes(may_kill=False)
            try:
                look(reader, source)
            except Dead:
                reader.restart()
        # Nothing happens any more.
        for _ in range(2):
            reader.restart()
            while not read_all(reader):
                pass
    reader.source.close()
    return rotated, reader


def read_all(reader: Reader) -> bool:
    try:
        reader.read()
    except Dead:
        reader.restart()
        return False
    return True


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in (1, 2, 3))])
def test_each_line_is_read_once_whatever_is_rotated_when(tmp_path: Path, part: int) -> None:
    for seed in range(part, SEEDS, 4):
        folder = tmp_path / str(seed)
        folder.mkdir()
        rotated, reader = read_while_rotated(folder, seed, "app.log*")
        counts = Counter(reader.lines)
        assert [line[:20] for line in rotated.written if counts[line] != 1] == [], seed
        assert len(reader.lines) == len(rotated.written)
        shutil.rmtree(folder)


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in (1, 2, 3))])
def test_each_line_is_read_once_where_rotations_insert_numbers_and_compress_in_one_step(
    tmp_path: Path, part: int
) -> None:
    for seed in range(part, SEEDS, 4):
        folder = tmp_path / str(seed)
        folder.mkdir()
        rotated, reader = read_while_rotated(folder, seed, "*", inserts_numbers=True)
        counts = Counter(reader.lines)
        assert [line[:20] for line in rotated.written if counts[line] != 1] == [], seed
        assert len(reader.lines) == len(rotated.written)
        shutil.rmtree(folder)


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.long)])
def test_lines_that_a_rotation_destroys_are_missing_or_refused_and_no_others(tmp_path: Path, part: int) -> None:
    refused = 0
    for seed in range(part, SEEDS, 2):
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            rotated, reader = read_while_rotated(folder, seed, "app.log*", is_lossy=True)
        except SourceRefused:
            refused += 1
            continue
        counts = Counter(reader.lines)
        assert set(counts.values()) <= {1}, seed
        assert [line[:20] for line in rotated.written if not counts[line] and line not in rotated.destroyed] == [], seed
        assert set(counts) <= set(rotated.written)
        shutil.rmtree(folder)
    assert refused < SEEDS / 4
