"""Claims about ``einmal verify --cluster kafka``: it starts Apache Kafka, its faults reach it, and no node is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.apache_kafka import KafkaUnavailable, classpath
from tests.suite.patience import as_slow, patient

pytestmark = [pytest.mark.interop, pytest.mark.system, pytest.mark.long]


@pytest.mark.parametrize("nodes", [1, 3])
def test_apache_kafka_is_started_killed_and_ended(tmp_path: Path, nodes: int) -> None:
    try:
        home = Path(classpath("broker")).parent
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    own = ["--cluster", "kafka", "--kafka-home", str(home), "--nodes", str(nodes)]
    # The first fault of a broker with this seed is a kill.
    seconds = as_slow(20)
    command = [*own, "--workload", "appends", "--faults", "brokers", "--time", f"{seconds:.0f}s", "--seed", "8"]
    run = subprocess.run(
        [sys.executable, "-m", "einmal", "verify", *command, "--format", "json"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=patient(120) + seconds,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    document = json.loads(run.stdout)
    assert (document["verdict"], document["left_behind"]) == ("holds", [])
    assert document["cluster"]["software"].startswith("Apache Kafka 4.")
    assert document["cluster"]["brokers"] == str(nodes)
    of_brokers = [fault["text"] for fault in document["faults"] if " of broker " in fault["text"]]
    assert of_brokers[0].startswith("kill -9 of broker "), document["faults"]
    assert not [each for each in commands() if str(tmp_path) in each]


def commands() -> list[str]:
    """The arguments of all processes of this machine."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            found.append(Path(f"/proc/{pid}/cmdline").read_text(errors="replace"))
        except OSError:
            continue
    return found
