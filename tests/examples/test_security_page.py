"""Claims about docs/security.md: whoever follows "Connect to a secured cluster" in an empty directory is connected."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.examples.readme import ROOT
from tests.security.secure_kafka import CANARY, PASSWORD, PIPELINE_USER, SecureKafka, running_secure_kafka

PAGE: Final = ROOT / "docs" / "security.md"
_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILES: Final = {"properties": "client.properties", "toml": "pipeline.toml"}
_SECRETS: Final = "/run/secrets/kafka.properties"
_AUTHORITY: Final = "/etc/kafka/ca.pem"
_CLUSTER: Final = "kafka.example.com:9093"
_LIMIT_S: Final = 300.0


def blocks() -> list[tuple[str, str]]:
    """(language, text) of the section, in order."""
    section = PAGE.read_text().partition("\n## Connect to a secured cluster\n")[2].partition("\n## ")[0]
    return _BLOCK.findall(section)


def test_the_section_has_a_program_a_file_of_settings_and_a_pipeline() -> None:
    languages = [language for language, _ in blocks()]
    assert languages.count("python") == 2
    assert {"properties", "toml", "console"} <= set(languages)
    for _, text in blocks():
        assert CANARY not in text


@pytest.fixture(scope="module")
def secure_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    with running_secure_kafka(tmp_path_factory.mktemp("secure")) as node:
        yield node


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.time_limit(900)
def test_a_stranger_in_an_empty_directory_is_connected_by_the_page(secure_kafka: SecureKafka, tmp_path: Path) -> None:
    """Only what the page calls the reader's own is another: the cluster's address, its authority, the password."""
    folder, secrets = tmp_path / "empty", tmp_path / "kafka.properties"
    folder.mkdir()
    secrets.write_text(f"password={PASSWORD}\n")
    own = {_CLUSTER: secure_kafka.at("SASL_SSL", "localhost"), _AUTHORITY: str(secure_kafka.ca), _SECRETS: str(secrets)}
    assert PIPELINE_USER == "orders", "the page's"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "KAFKA_PASSWORD": PASSWORD}
    environment.pop("KAFKA_BROKERS", None)
    printed = ""

    def shell(command: str) -> None:
        nonlocal printed
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=_LIMIT_S
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        assert CANARY not in done.stdout + done.stderr
        printed += done.stdout

    programs = []
    for language, text in blocks():
        for theirs, ours in own.items():
            text = text.replace(theirs, ours)
        if language in _FILES:
            (folder / _FILES[language]).write_text(text)
        elif language == "python":
            programs.append(text)
            (folder / "program.py").write_text(text)
        elif language == "console":
            for command in re.findall(r"^\$ (.*)$", text, re.MULTILINE):
                shell(command)
                if "topic create orders" in command:
                    (folder / "first.py").write_text(programs[0])
                    shell("python first.py")
    lines = printed.splitlines()
    assert lines.count("from a program") == 2
    assert lines.count("from the command line") == 2
