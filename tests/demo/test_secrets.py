"""Claims about secrets and ``einmal demo``: its own are the secret of the cluster, and the key of each query's claims.

It takes no client settings, and reads none: all that its environment can hold is a secret here.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from einmal.client.security_settings import SECURITY_NAMES
from tests.demo.test_run import check
from tests.examples.readme import ROOT
from tests.security.secure_kafka import CANARY
from tests.spark.artefacts import Artefacts

OTHERS = ("KAFKA_PASSWORD", "PASSWORD", "AWS_SECRET_ACCESS_KEY", "KAFKA_OPTS_PASSWORD")
_LOOK_S = 0.2


def secrets(mark: str) -> dict[str, str]:
    """A secret in every variable that a client of the command line reads, and in some that others read."""
    names = [f"KAFKA_{name.upper().replace('.', '_')}" for name in SECURITY_NAMES]
    return {name: f"{CANARY}-{mark}-{name}" for name in (*names, *OTHERS)}


@contextmanager
def arguments_of(mark: str) -> Iterator[set[str]]:
    """The arguments of all processes that have the mark in their environment, for as long as the context lasts."""
    seen: set[str] = set()
    known: set[tuple[str, bytes]] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_S):
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    arguments = (process / "cmdline").read_bytes()
                    # Its environment changes with its arguments.
                    if (process.name, arguments) not in known:
                        known.add((process.name, arguments))
                        if mark.encode() in (process / "environ").read_bytes():
                            seen.add(arguments.replace(b"\0", b" ").decode(errors="replace"))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        ended.set()
        looking.join()


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.slow
def test_a_demo_shows_exactly_once_and_no_artefact_of_it_contains_a_secret(tmp_path: Path) -> None:
    """Output, logs of all processes, the driver's at DEBUG, topics, checkpoints, report, event log, arguments."""
    artefacts, mark = Artefacts(tmp_path / "artefacts"), tmp_path.name
    output = artefacts.directory / "demo"
    command = ("demo", "--input", str(ROOT / "docs"), "--output", str(output), "--format", "json")
    with arguments_of(mark) as arguments:
        artefacts.run("printed", 0, *command, **secrets(mark))
    (artefacts.directory / "arguments.txt").write_text("\n".join(sorted(arguments)))
    check(json.loads((output / "report.json").read_text()))
    assert "<svg" in (output / "report.html").read_text()
    for program in ("einmal demo", "einmal start", "einmal.demo.pipeline", "java"):
        assert any(program in each for each in arguments), arguments
    names = {path.name for path in artefacts.files()}
    assert {
        "driver.log",
        "broker-1.log",
        "broker-3.log",
        "report.html",
        "metadata",
        "00000000000000000000.log",
    } <= names
    assert list((artefacts.directory / "events").iterdir())
    secret = output / "cluster" / "cluster.secret"
    of_cluster = secret.read_text().strip().encode()
    secret.unlink()
    assert len(of_cluster) > 40
    assert artefacts.leaks(of_cluster) == []
