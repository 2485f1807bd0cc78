"""Claims about the documentation of secured clusters: whoever follows it in an empty directory is connected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.stranger import Stranger, blocks
from tests.security.secure_kafka import CANARY, SecureKafka, running_secure_kafka

SECTIONS = {"security.md": "Connect to a secured cluster", "pipelines.md": "On a secured cluster"}
FILES = {"properties": "client.properties", "toml": "pipeline.toml"}


@pytest.mark.parametrize(("page", "programs"), [("security.md", 2), ("pipelines.md", 1)])
def test_the_section_has_programs_a_file_of_settings_and_a_pipeline(page: str, programs: int) -> None:
    found = blocks(page, SECTIONS[page])
    languages = [language for language, _ in found]
    assert languages.count("python") == programs
    assert {"properties", "toml", "console"} <= set(languages)
    for _, text in found:
        assert CANARY not in text


@pytest.fixture
def secure_kafka(tmp_path: Path) -> Iterator[SecureKafka]:
    with running_secure_kafka(tmp_path / "secure") as node:
        yield node


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.time_limit(900)
def test_a_stranger_in_an_empty_directory_is_connected_by_the_page(secure_kafka: SecureKafka, tmp_path: Path) -> None:
    stranger = Stranger(secure_kafka, tmp_path)
    programs = []
    for language, text in blocks("security.md", SECTIONS["security.md"]):
        if language in FILES:
            stranger.write(FILES[language], text)
        elif language == "python":
            programs.append(text)
            stranger.write("program.py", text)
        elif language == "console" and any("topic create orders" in each for each in stranger.commands(text)):
            stranger.write("first.py", programs[0])
            stranger.shell("python first.py")
    lines = stranger.printed.splitlines()
    assert lines.count("from a program") == 2
    assert lines.count("from the command line") == 2


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.time_limit(900)
def test_a_stranger_runs_pipelines_on_a_secured_cluster_by_the_page(secure_kafka: SecureKafka, tmp_path: Path) -> None:
    """A file and a function."""
    stranger = Stranger(secure_kafka, tmp_path)
    for language, text in blocks("pipelines.md", SECTIONS["pipelines.md"]):
        if language == "console":
            stranger.commands(text)
        else:
            stranger.write((FILES | {"python": "pipeline.py"})[language], text)
    lines = stranger.printed.splitlines()
    assert lines.count("an order") == 1 and lines.count("1") == 1
    assert {"copied-orders", "order-counts"} <= {line.split()[0] for line in lines if line}
