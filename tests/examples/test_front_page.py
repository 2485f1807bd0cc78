"""Claims about README.md and its programs: in the page's order, as a newcomer types them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from einmal.client import Consumer
from tests.examples.readme import ROOT
from tests.suite.patience import patient
from tests.suite.shared import shared, unique

README: Final = (ROOT / "README.md").read_text()
_QUICK: Final = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def programs() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_a_newcomer_can_type_every_command() -> None:
    commands = re.findall(r"^\$ (.*)$", README, re.MULTILINE)
    assert commands[0].startswith("make demo")
    assert not [command for command in commands if re.search(r"<[^<>]*>", command)]


@pytest.mark.spark
def test_the_programs_of_the_page_write_every_order_once_and_an_interrupt_ends_the_query(tmp_path: Path) -> None:
    bootstrap, orders, ledger = shared("einmal").bootstrap, unique("orders"), unique("ledger")
    *producers, pipeline = (
        program.replace("localhost:9092", bootstrap).replace('"orders', f'"{orders}').replace('"ledger"', f'"{ledger}"')
        for program in programs()
    )
    assert len(producers) == 2
    for program in producers:
        exec(compile(program, str(ROOT / "README.md"), "exec"), {})
    (tmp_path / "pipeline.py").write_text(pipeline)
    with (tmp_path / "errors.txt").open("wb") as errors:
        running = subprocess.Popen(
            [sys.executable, "pipeline.py"], cwd=tmp_path, stderr=errors, env=os.environ | _QUICK
        )
        try:
            assert values(bootstrap, f"{orders}-upper", running) == [b"PAID", b"PAID"]
            running.send_signal(signal.SIGINT)
            assert running.wait(patient(60)) == 0
        finally:
            running.kill()
            running.wait()
    assert "Traceback" not in (tmp_path / "errors.txt").read_text()
    assert re.search(r"^\$ einmal topic consume orders-upper -o start:end\nPAID\nPAID\n```", README, re.MULTILINE)


def values(bootstrap: str, topic: str, running: subprocess.Popen[bytes]) -> list[bytes | None]:
    """What the running program has committed, once there are two records, or three too many."""
    found: list[bytes | None] = []
    deadline = time.monotonic() + patient(120)
    settings = {"bootstrap.servers": bootstrap, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    with Consumer(settings | {"group.id": unique("reader")}) as consumer:
        consumer.subscribe([topic])
        while len(found) < 2 and time.monotonic() < deadline:
            assert running.poll() is None, "the program has ended"
            found += [record.value for record in consumer.poll(1_000)]
        return found + [record.value for record in consumer.poll(1_000)]
