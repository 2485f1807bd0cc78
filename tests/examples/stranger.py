"""A reader of a page who has nothing but a secured cluster, its authority's certificate, and a password."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.examples.readme import ROOT
from tests.security.secure_kafka import CANARY, PASSWORD, PIPELINE_USER, SecureKafka

_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SECRETS: Final = "/run/secrets/kafka.properties"
_AUTHORITY: Final = "/etc/kafka/ca.pem"
_CLUSTER: Final = "kafka.example.com:9093"
_LIMIT_S: Final = 300.0


def blocks(page: str, section: str) -> list[tuple[str, str]]:
    """(language, text) of a section, in order."""
    text = (ROOT / "docs" / page).read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return _BLOCK.findall(text)


class Stranger:
    """In an empty directory. Only what a page calls the reader's own is replaced: the cluster's address, its authority,
    the file of the password.
    """

    def __init__(self, node: SecureKafka, directory: Path) -> None:
        assert PIPELINE_USER == "orders", "the pages'"
        self.folder, secrets = directory / "empty", directory / "kafka.properties"
        self.folder.mkdir()
        secrets.write_text(f"password={PASSWORD}\n")
        self._own = {
            _CLUSTER: node.at("SASL_SSL", "localhost"),
            _AUTHORITY: str(node.ca),
            _SECRETS: str(secrets),
        }
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, "KAFKA_PASSWORD": PASSWORD}
        self._environment.pop("KAFKA_BROKERS", None)
        self.printed = ""

    def write(self, name: str, text: str) -> None:
        for theirs, own in self._own.items():
            text = text.replace(theirs, own)
        (self.folder / name).write_text(text)

    def shell(self, command: str) -> None:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        assert CANARY not in done.stdout + done.stderr
        self.printed += done.stdout

    def commands(self, text: str) -> list[str]:
        """Run those of a block; they are returned."""
        found = re.findall(r"^\$ (.*)$", text, re.MULTILINE)
        for command in found:
            self.shell(command)
        return found
