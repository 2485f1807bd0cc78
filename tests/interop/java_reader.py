"""Apache Kafka's consumer as a process that follows topics: see ``kafka/Reader.java``. Knows nothing of einmal."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Final, NamedTuple

from tests.interop.apache_kafka import JVM, java, java_program

_QUIET: Final = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
"""It would complain of every topic that is deleted under it. What it cannot read is an exception."""


class Unreadable(Exception):
    """What Apache Kafka's consumer could not read; the text is its exception."""


class RecordsRead(NamedTuple):
    followed: int
    at_the_end: int


class JavaReader:
    """Reads from the beginning until ``finish``. Raises KafkaUnavailable."""

    def __init__(self, bootstrap: str, topics: Sequence[str]) -> None:
        command = [java(), "-Xmx256m", *JVM, _QUIET, *java_program("Reader"), bootstrap, *topics]
        pipe = subprocess.PIPE
        self._jvm = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def finish(self, patience_s: float) -> RecordsRead:
        """Read all that is there once more. Raises Unreadable."""
        try:
            printed, complaint = self._jvm.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Unreadable(f"not at the end after {patience_s:.0f} s") from None
        if self._jvm.returncode != 0:
            raise Unreadable(complaint[-3000:])
        followed, at_the_end = printed.split()
        return RecordsRead(int(followed), int(at_the_end))

    @property
    def is_running(self) -> bool:
        return self._jvm.poll() is None

    def kill(self) -> None:
        self._jvm.kill()
        self._jvm.communicate()
