"""Claims about ``einmal pipeline --file``: pipelines into a database are managed as those into topics are."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from einmal.commit_protocol.commit_record import CommitRecord
from einmal.options.values import Options
from einmal.sinks.commit_point import RowCommitPoint, SinkFenced
from einmal.sinks.sink import Opening
from einmal.sinks.sqlite import SQLiteSink
from tests.cli.running import Cli

pytestmark = pytest.mark.system

RECORD = CommitRecord(
    transactional_id="rows",
    query_id="q",
    checkpoint="file:/c",
    batch_id=4,
    end=({"numbers": {"0": 3}},),
    records=7,
)


@pytest.fixture
def file(cluster: str, tmp_path: Path) -> Path:
    file = tmp_path / "pipeline.toml"
    file.write_text(
        f"""
transactional.id = "rows"
checkpointLocation = "{tmp_path / "checkpoint"}"
kafka.bootstrap.servers = "{cluster}"
[sources.numbers]
subscribe = "numbers"
[sinks.rows]
type = "sqlite"
from = "numbers"
path = "{tmp_path / "rows.sqlite"}"
table = "rows"
"""
    )
    return file


def opened(tmp_path: Path) -> RowCommitPoint:
    options = Options({"path": str(tmp_path / "rows.sqlite"), "table": "rows"})
    return SQLiteSink(options).commit_point(Opening(name="rows"))


def committed(tmp_path: Path, record: CommitRecord) -> None:
    with closing(opened(tmp_path)) as commit_point:
        identity = commit_point.acquire(None)
        commit_point.record(identity, record)
        commit_point.commit(identity)


def test_status_shows_the_record_in_the_database(cli: Cli, file: Path, tmp_path: Path) -> None:
    committed(tmp_path, RECORD)
    (row,) = cli("pipeline", "status", "--file", str(file), "--format", "json").document
    assert (row["name"], row["batch"], row["records"], row["checkpoint"]) == ("rows", 4, 7, "file:/c")
    assert row["positions"] == ["numbers-0:3"]
    assert (row["state"], row["open_ms"]) == (None, None)


def test_a_reset_fences_whoever_runs_and_forgets_the_record(cli: Cli, file: Path, tmp_path: Path) -> None:
    committed(tmp_path, RECORD)
    with closing(opened(tmp_path)) as running:
        identity = running.acquire(None)
        cli("pipeline", "reset", "rows", "--file", str(file), "--yes")
        with pytest.raises(SinkFenced):
            running.record(identity, RECORD)
            running.commit(identity)
    assert cli("pipeline", "status", "--file", str(file), "--format", "json").document == []


def test_a_new_checkpoint_can_be_adopted(cli: Cli, file: Path, tmp_path: Path) -> None:
    committed(tmp_path, RECORD)
    checkpoint = tmp_path / "other"
    checkpoint.mkdir()
    cli("pipeline", "adopt", "rows", "--checkpoint", str(checkpoint), "--file", str(file), "--yes")
    (row,) = cli("pipeline", "status", "--file", str(file), "--format", "json").document
    # A checkpoint without a batch begins where the record ends.
    assert (row["batch"], row["positions"]) == (None, ["numbers-0:3"])


def test_a_file_and_brokers_exclude_each_other(cli: Cli, file: Path, cluster: str) -> None:
    result = cli("pipeline", "status", "--file", str(file), "-b", cluster, status=2)
    assert any("--file" in line for line in result.errors)
