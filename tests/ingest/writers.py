"""What is ingested in a campaign: a log that is rotated, and a table whose transactions overlap."""

from __future__ import annotations

import gzip
import os
import random
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TextIO

import psycopg

from tests.sinks.postgres.server import PostgresServer

_ROTATED = 0.03
"""Of the steps."""


class WritingThread(threading.Thread, ABC):
    """Writes until it is stopped."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self._stopping = threading.Event()
        self._failure: BaseException | None = None

    @abstractmethod
    def step(self) -> None:
        """One thing that is written."""

    @abstractmethod
    def finish(self) -> None:
        """End what is begun."""

    @abstractmethod
    def expected(self) -> list[str]:
        """What readers must find once."""

    def pause(self) -> None:
        self._stopping.wait(self.random.choice((0.0, 0.001, 0.02)))

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.step()
                self.pause()
            self.finish()
        except BaseException as error:
            self._failure = error
            raise

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        assert self._failure is None


class RotatedLog(WritingThread):
    """A log that is rotated by rename, by copy and truncate, and compressed, with pauses between the steps. No rotation
    destroys a line: nothing is written between copy and truncation, or to a file while it is compressed."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(seed)
        self._log = folder / "app.log"
        self.written: list[str] = []
        self._file = self._opened()
        self.rotations = 0

    def _opened(self) -> TextIO:
        return self._log.open("a", buffering=1)

    def step(self) -> None:
        if self.random.random() >= _ROTATED:
            self._write()
            return
        self.rotations += 1
        self._shift()
        self.random.choice((self._rename, self._copy_and_truncate))()
        if self.random.random() < 0.5:
            self._compress()

    def finish(self) -> None:
        self._file.close()

    def expected(self) -> list[str]:
        return self.written

    def line(self) -> str:
        self.written.append(f"line {len(self.written)} " + "x" * self.random.choice((5, 200, 3_000)))
        return self.written[-1]

    def _write(self) -> None:
        """A line in two parts, with a pause between them."""
        line = self.line()
        cut = self.random.randrange(len(line))
        self._file.write(line[:cut])
        self._file.flush()
        self.pause()
        self._file.write(f"{line[cut:]}\n")
        self._file.flush()

    def _numbered(self, number: int, suffix: str = "") -> Path:
        return self._log.with_name(f"app.log.{number}{suffix}")

    def _shift(self) -> None:
        for number in range(len(list(self._log.parent.iterdir())), 0, -1):
            for suffix in ("", ".gz"):
                if self._numbered(number, suffix).exists():
                    self._numbered(number, suffix).rename(self._numbered(number + 1, suffix))

    def _rename(self) -> None:
        self._log.rename(self._numbered(1))
        self.pause()
        # The writer has the old file still open.
        self._write()
        self._file.close()
        self._file = self._opened()

    def _copy_and_truncate(self) -> None:
        self._copy(self._log.read_bytes(), self._numbered(1))
        self.pause()
        os.truncate(self._log, 0)

    def _compress(self) -> None:
        path = self._numbered(1)
        self._copy(gzip.compress(path.read_bytes()), self._numbered(1, ".gz"))
        path.unlink()

    def _copy(self, data: bytes, target: Path) -> None:
        with target.open("wb") as file:
            for part in (data[: len(data) // 2], data[len(data) // 2 :]):
                file.write(part)
                file.flush()
                self.pause()


class LateRows(WritingThread):
    """Rows of three transactions that overlap: ids in no order of commits, and some are never committed."""

    SCHEMA = "CREATE TABLE events (id bigint PRIMARY KEY)"
    _SESSIONS = 3

    def __init__(self, server: PostgresServer, seed: int) -> None:
        super().__init__(seed)
        self._server = server
        self._sessions: list[psycopg.Connection[tuple[object, ...]] | None] = [None] * self._SESSIONS
        self._open: set[int] = set()
        self._number = 0

    def step(self) -> None:
        index = self.random.randrange(self._SESSIONS)
        try:
            self._write(index)
        except psycopg.OperationalError:
            # The server was killed. What the table has in the end counts.
            self._open.discard(index)
            self._sessions[index] = None
            self._stopping.wait(0.1)

    def _write(self, index: int) -> None:
        session = self._sessions[index]
        if session is None:
            session = self._sessions[index] = self._server.connect()
        if self.random.random() < 0.7:
            if index not in self._open:
                session.execute("BEGIN")
                self._open.add(index)
            self._number += 1
            session.execute("INSERT INTO events VALUES (%s)", (self._number,))
        elif index in self._open:
            session.execute("COMMIT" if self.random.random() < 0.8 else "ROLLBACK")
            self._open.discard(index)

    def finish(self) -> None:
        for index, session in enumerate(self._sessions):
            if session is not None:
                if index in self._open:
                    session.execute("COMMIT")
                session.close()

    def expected(self) -> list[str]:
        return [f'{{"id":{number}}}' for (number,) in self._server.rows("SELECT id FROM events")]
