"""Claims about ``einmal pipeline --file``: pipelines into a database are managed as those into topics are."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
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


def opened(tmp_path: Path, name: str = "rows", table: str = "rows") -> RowCommitPoint:
    options = Options({"path": str(tmp_path / f"{table}.sqlite"), "table": table})
    return SQLiteSink(options).commit_point(Opening(name=name))


def committed(tmp_path: Path, record: CommitRecord, table: str = "rows") -> None:
    with closing(opened(tmp_path, record.transactional_id, table)) as commit_point:
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


@pytest.fixture
def two_databases(file: Path, tmp_path: Path) -> Path:
    """Each with a record of its own, of a pipeline whose name has a slash."""
    second = (
        f'[sinks.copies]\ntype = "sqlite"\nfrom = "numbers"\npath = "{tmp_path / "copies.sqlite"}"\ntable = "copies"\n'
    )
    file.write_text(file.read_text().replace('transactional.id = "rows"', 'transactional.id = "team/rows"') + second)
    return file


def test_each_of_several_databases_is_named_behind_the_name_of_the_pipeline(
    cli: Cli, two_databases: Path, tmp_path: Path
) -> None:
    for table in ("rows", "copies"):
        committed(tmp_path, replace(RECORD, transactional_id=f"team/rows/{table}"), table)
    cli("pipeline", "reset", "team/rows/copies", "--file", str(two_databases), "--yes")
    (row,) = cli("pipeline", "status", "--file", str(two_databases), "--format", "json").document
    assert row["name"] == "team/rows/rows"


@pytest.mark.parametrize("name", ["team/rows/copy", "team/rows", "rows/copies", "team/rows/"])
@pytest.mark.parametrize("command", ["adopt", "reset"])
def test_a_name_that_is_of_no_database_is_refused_with_those_that_are(
    cli: Cli, two_databases: Path, tmp_path: Path, name: str, command: str
) -> None:
    options = ("--checkpoint", str(tmp_path)) if command == "adopt" else ()
    error, hint = cli("pipeline", command, name, *options, "--file", str(two_databases), "--yes", status=1).errors
    assert f"declares no commit record '{name}'" in error
    assert hint == "hint: each database has its own: team/rows/rows, team/rows/copies"
    assert not (tmp_path / "rows.sqlite").exists()


def test_a_file_and_brokers_exclude_each_other(cli: Cli, file: Path, cluster: str) -> None:
    result = cli("pipeline", "status", "--file", str(file), "-b", cluster, status=2)
    assert any("--file" in line for line in result.errors)
