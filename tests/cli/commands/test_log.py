"""Claims about ``einmal log dump``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from einmal.wire.record_batch import NewRecord, encode_batch
from tests.cli.running import Cli
from tests.interop.topics import at_last
from tests.suite.patience import patient
from tests.suite.shared import shared, unique

pytestmark = pytest.mark.system
NAME = "00000000000000000000.log"


@pytest.mark.parametrize("kind", ["einmal-commands", pytest.param("apache", marks=pytest.mark.interop)])
def test_a_segment_is_printed_with_its_records_and_markers(kind: str, tmp_path: Path) -> None:
    node, topic = shared(kind), unique("dumped")
    cli = Cli(node.bootstrap)
    cli("topic", "create", topic, "-p", "1")
    cli("topic", "produce", topic, "--transactional-id", topic, stdin="value\n")
    file = str(node.log_directory / f"{topic}-0" / NAME)
    # A transaction's end is answered before its markers are written.
    batches = at_last(
        lambda: [json.loads(line) for line in cli("log", "dump", file, "--format", "json").lines],
        lambda found: len(found) == 2,
    )
    assert [each["is_control"] for each in batches] == [False, True]
    assert (batches[0]["records"][0]["value"], batches[1]["records"][0]["marker"]) == ("value", "COMMIT")
    lines = cli("log", "dump", file).lines
    assert "value=value" in lines[1] and "marker=COMMIT" in lines[3]


def test_a_damaged_batch_ends_the_list_with_status_1(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"\0" * 80)
    assert "error=" in Cli("127.0.0.1:1")("log", "dump", str(tmp_path / NAME), status=1).lines[0]


@pytest.mark.parametrize("name", ["missing.log", "server.properties", "."])
def test_what_is_no_file_of_a_log_is_an_error_with_a_hint(name: str, tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text("x=1\n")
    failed = Cli("127.0.0.1:1")("log", "dump", str(tmp_path / name), status=1)
    assert failed.errors[0].startswith("error: ") and failed.errors[1].startswith("hint: ")


def test_whoever_has_seen_enough_of_a_segment_gets_no_error(tmp_path: Path) -> None:
    records = [NewRecord(None, bytes([number % 256]) * 100, number, ()) for number in range(20_000)]
    (tmp_path / NAME).write_bytes(encode_batch(records))
    with subprocess.Popen(
        [sys.executable, "-m", "einmal", "log", "dump", str(tmp_path / NAME)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(patient(20)) == 0
