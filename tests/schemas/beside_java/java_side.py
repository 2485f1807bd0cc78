"""Avro's and Protobuf's Java implementations in a process of their own, which answers batches of cases."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final

from tests.interop.apache_kafka import JVM, classpath, java

_HERE: Final = Path(__file__).parent / "java"


class JavaSide:
    """A context manager. Raises KafkaUnavailable where Java or Maven is missing."""

    def __init__(self) -> None:
        jars = classpath("formats", _HERE / "pom.xml")
        options = (*JVM, "-Xmx512m", "-Dfile.encoding=UTF-8")
        self._process = subprocess.Popen(
            [java(), *options, "-cp", jars, str(_HERE / "Formats.java")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def __enter__(self) -> JavaSide:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, cases: Sequence[Any]) -> None:
        """Java reads all of a batch before it answers: what is computed here meanwhile costs no time."""
        stream = _open(self._process.stdin)
        stream.write(json.dumps(cases) + "\n")
        stream.flush()

    def answers(self) -> list[Any]:
        line = _open(self._process.stdout).readline()
        if not line:
            raise RuntimeError(f"Java ended with status {self._process.wait()}; its messages are above")
        return list(json.loads(line))


def _open(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
