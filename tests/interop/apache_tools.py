"""Apache Kafka's command line tools, all in one JVM: see ``kafka/Tools.java``.

Knows nothing of einmal. A tool that takes too long ends the JVM, and with it the test.
"""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from typing import ClassVar, Final

from tests.interop.apache_kafka import JVM, java, java_program

_END: Final = "\x04"
_PATIENCE_S: Final = 180.0


class ApacheTools:
    """The tools of a cluster at ``bootstrap``. Raises KafkaUnavailable where they cannot be run."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        command = [java(), *JVM, *java_program("Tools")]
        self._jvm = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def close(self) -> None:
        assert self._jvm.stdin is not None and self._jvm.stdout is not None
        self._jvm.stdin.close()
        self._jvm.stdout.close()
        try:
            self._jvm.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._jvm.kill()
            self._jvm.wait()

    def run(self, tool: str, *arguments: str, reads: Path | None = None) -> tuple[int, str]:
        """The exit code of a class of ``org.apache.kafka.tools``, and all that it has printed."""
        assert self._jvm.stdin is not None and self._jvm.stdout is not None
        name = tool if tool.startswith("kafka.") else f"org.apache.kafka.tools.{tool}"
        self._jvm.stdin.write("\t".join(["" if reads is None else str(reads), name, *arguments]) + "\n")
        self._jvm.stdin.flush()
        printed: list[str] = []
        guard = threading.Timer(_PATIENCE_S, self._jvm.kill)
        guard.start()
        try:
            for line in self._jvm.stdout:
                if line.startswith(_END):
                    return int(line[1:]), "".join(printed)
                printed.append(line)
        finally:
            guard.cancel()
        raise AssertionError(f"{tool} does not end: {''.join(printed)}")

    def __call__(self, tool: str, *arguments: str, reads: Path | None = None) -> str:
        """The output of a tool that finds this cluster by ``--bootstrap-server`` and succeeds."""
        code, text = self.run(tool, *arguments, "--bootstrap-server", self.bootstrap, reads=reads)
        assert code == 0, text
        return text

    def refused(self, tool: str, *arguments: str) -> str:
        """The output of a tool that fails."""
        code, text = self.run(tool, *arguments, "--bootstrap-server", self.bootstrap)
        assert code != 0, text
        return text

    def of(self, tool: str, command: str, *arguments: str) -> str:
        """The output of a tool that has commands of its own, and takes the address before them."""
        code, text = self.run(tool, "--bootstrap-server", self.bootstrap, command, *arguments)
        assert code == 0, text
        return text


class _Dumper:
    """The JVM of ``dump_log``, started with the first file, until the end of the module that asked."""

    tools: ClassVar[ApacheTools | None] = None


def dump_log(path: Path, decoder: str | None = None) -> str:
    """The output of Apache Kafka's dump tool for a segment, an index, or a snapshot. Raises KafkaUnavailable.

    The records of a segment are listed too; ``decoder`` names what they hold where it is not the users' own data:
    "transaction-log", "offsets" or "cluster-metadata". The tool's complaints are part of the text.
    """
    if _Dumper.tools is None:
        _Dumper.tools = ApacheTools("")
    arguments = ["--files", str(path), "--print-data-log"]
    if decoder is not None:
        arguments.append(f"--{decoder}-decoder")
    _, text = _Dumper.tools.run("DumpLogSegments", *arguments)
    return text


def end_dumper() -> None:
    tools, _Dumper.tools = _Dumper.tools, None
    if tools is not None:
        tools.close()
