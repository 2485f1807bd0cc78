"""Claims about examples/machine_logs, by its README's own commands."""

from __future__ import annotations

import json

import pytest

from tests.examples.readme import ROOT, Reader
from tests.spark.topics import values

pytestmark = [pytest.mark.system, pytest.mark.long]

EXAMPLE = ROOT / "examples" / "machine_logs"


def test_every_line_is_in_the_topic_once_whatever_rotates_and_however_often_it_is_killed(reader: Reader) -> None:
    reader.follow(EXAMPLE / "README.md")
    lines = sorted(tuple(value.split(" ")[:2]) for value in values(reader.bootstrap, "machine-logs"))
    assert lines == sorted((service, str(number)) for service in ("web", "mail", "cron") for number in range(1, 20_001))
    assert len(json.loads((reader.folder / "build/examples/kills.json").read_text())["kills"]) > 3
    assert "60,000 lines in the topic" in (reader.folder / "build/examples/logs.svg").read_text()
    assert len([*(reader.folder / "build/examples/logs").glob("mail.log.*.gz")]) > 3
