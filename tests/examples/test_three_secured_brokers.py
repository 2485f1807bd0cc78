"""Claims about docs/security.md: whoever follows "Set up three brokers with TLS and SCRAM" has them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.examples.readme import ROOT
from tests.ports import loopback_ports

pytestmark = [pytest.mark.system, pytest.mark.slow]

PAGE: Final = ROOT / "docs" / "security.md"
BROKERS: Final = (1, 2, 3)
_START: Final = "einmal start --config server.properties"
_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PLACE: Final = re.compile(r"kafka-(\d)\.example\.com:(\d+)")
_OF_BROKER: Final = ("node.id=", "listeners=", "ssl.keystore.location=")
_LIMIT_S: Final = 300.0


def blocks() -> list[tuple[str, str]]:
    """(language, text) of the section, in order."""
    section = PAGE.read_text().partition("\n### Set up three brokers with TLS and SCRAM\n")[2].partition("\n### ")[0]
    return _BLOCK.findall(section)


class Follower:
    """Follows the page in ``folder``, which is its /etc/einmal; its hosts are ports of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path}
        self.environment.pop("KAFKA_BROKERS", None)
        names = [(f"{broker}", port) for broker in BROKERS for port in ("9092", "9093", "9094")]
        self._ports = dict(zip(names, loopback_ports(len(names)), strict=True))
        self._brokers: list[subprocess.Popen[str]] = []

    def own(self, text: str) -> str:
        text = _PLACE.sub(lambda found: f"127.0.0.1:{self._ports[found[1], found[2]]}", text)
        return text.replace("DNS:kafka-$n.example.com", "IP:127.0.0.1").replace("/etc/einmal", str(self.folder))

    def shell(self, command: str, status: int = 0) -> str:
        done = subprocess.run(
            ["bash", "-c", self.own(command)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
        assert done.returncode == status, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def write(self, text: str) -> None:
        """A block whose first line is a comment with the file's name."""
        name = text.splitlines()[0].removeprefix("# ")
        if name != "server.properties":
            (self.folder / name).write_text(self.own(text))
            return
        for broker in BROKERS:
            lines = [
                re.sub(r"kafka-1\b", f"kafka-{broker}", line).replace("node.id=1", f"node.id={broker}")
                if line.startswith(_OF_BROKER)
                else line
                for line in text.splitlines()
            ]
            directory = self.folder / str(broker)
            directory.mkdir()
            own = self.own("\n".join(lines)).replace("/var/lib/einmal", str(directory / "data"))
            (directory / name).write_text(own)

    def start(self) -> None:
        for broker in BROKERS:
            directory = self.folder / str(broker)
            with (directory / "log").open("w") as log:
                self._brokers.append(
                    subprocess.Popen(
                        _START.split(),
                        cwd=directory,
                        env=self.environment,
                        stdout=subprocess.PIPE,
                        stderr=log,
                        text=True,
                    )
                )
        for broker, process in zip(BROKERS, self._brokers, strict=True):
            assert process.stdout is not None
            ready = any("is ready" in line for line in process.stdout)
            assert ready, (self.folder / str(broker) / "log").read_text()[-3000:]

    def stop(self) -> None:
        for process in self._brokers:
            process.send_signal(signal.SIGKILL)
            process.wait(_LIMIT_S)
            assert process.stdout is not None
            process.stdout.close()


@contextmanager
def follower(folder: Path) -> Iterator[Follower]:
    reader = Follower(folder)
    try:
        yield reader
    finally:
        reader.stop()


@pytest.mark.time_limit(180)
def test_whoever_follows_the_page_has_three_secured_brokers(tmp_path: Path) -> None:
    with follower(tmp_path) as reader:
        printed = ""
        for language, text in blocks():
            if language == "properties":
                reader.write(text)
                continue
            for command in re.findall(r"^\$ (.*)$", text, re.MULTILINE):
                if command == _START:
                    reader.start()
                else:
                    printed = reader.shell(command)
        assert "the first order" in printed
        refused = reader.shell("echo no | einmal topic produce payroll --command-config client.properties", 1)
        assert "AUTHORIZATION_FAILED" in refused
        passwords = [(tmp_path / f"{user}.password").read_text().strip() for user in ("admin", "alice")]
        logs = "".join((tmp_path / str(broker) / "log").read_text() for broker in BROKERS)
        assert logs and not any(password in logs for password in passwords)
