"""A directory of Parquet files keeps what every sink must keep, and any reader sees whole batches."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

import pyarrow
import pytest
from pyarrow import dataset, parquet
from pyspark.sql import SparkSession

from einmal.sinks.arrow_rows import ArrowRows
from einmal.sinks.commit_point import SinkFailed, SinkFenced
from einmal.sinks.lake import SnapshotSuperseded
from einmal.sinks.parquet import COLUMN, ParquetDirectory
from einmal.sinks.row_schema import RowSchema
from einmal.testing.sinks.driving import RunUnderTest, rows_of
from tests.sinks.hooks import ParquetHooks
from tests.sinks.local_tasks import WITHOUT_KILLS, LocalTasks, local_session

pytestmark = pytest.mark.slow

NAME: Final = "words"


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    return local_session(monkeypatch)


class TestParquet(LocalTasks, ParquetHooks):
    """The battery."""

    in_the_long_run = WITHOUT_KILLS


def schema(**columns: pyarrow.DataType) -> RowSchema:
    return ArrowRows([pyarrow.schema(columns).empty_table()]).schema


def seen(location: Path) -> list[int]:
    """What a reader of partitioned tables finds."""
    found = dataset.dataset(location / "words", format="parquet", partitioning="hive").to_table()
    assert COLUMN in found.column_names or not found.num_rows
    return sorted(found["id"].to_pylist()) if found.num_rows else []


def begun(location: Path) -> RunUnderTest:
    run = RunUnderTest(ParquetHooks(), location, NAME)
    run.start()
    return run


def ids_of(*batches: int) -> list[int]:
    return sorted(row[0] for batch_id in batches for row in rows_of(batch_id))


def test_a_reader_sees_a_batch_with_its_commit_and_no_part_of_it_before(tmp_path: Path) -> None:
    run = begun(tmp_path)
    run.write(0, rows_of(0))
    run.stage(1, rows_of(1))
    assert seen(tmp_path) == ids_of(0)
    run.record(1)
    assert seen(tmp_path) == ids_of(0)
    run.commit()
    assert seen(tmp_path) == ids_of(0, 1)
    run.die()


def test_a_driver_that_was_overtaken_commits_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    first = begun(tmp_path)
    first.stage(0, rows_of(0, "first"))
    first.record(0)
    second = begun(tmp_path)
    with pytest.raises(SinkFenced):
        first.commit()
    second.write(0, rows_of(0, "second"))
    first.die()
    second.die()
    assert sorted(ParquetHooks().rows(tmp_path)) == sorted(rows_of(0, "second"))
    assert ParquetHooks().staged(tmp_path) == []


def test_a_version_exists_once(tmp_path: Path) -> None:
    """Two drivers that have read the same version: the second of their renames is refused, and looks again."""
    run, other = begun(tmp_path), RunUnderTest(ParquetHooks(), tmp_path, "others")
    table = ParquetDirectory(tmp_path / "words")
    stale = table.load()
    assert stale is not None
    run.write(0, rows_of(0))
    with pytest.raises(SnapshotSuperseded):
        table.commit(stale, NAME, table.state(stale, NAME), ())
    assert list((tmp_path / "words" / "_einmal" / "moved").glob("*/_commit.json")) == []
    other.start()
    other.write(0, rows_of(7))
    run.write(1, rows_of(1))
    run.die()
    other.die()
    assert seen(tmp_path) == ids_of(0, 1, 7)


@pytest.mark.parametrize("is_renamed", [False, True])
def test_a_commit_whose_rename_reports_an_error_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_renamed: bool
) -> None:
    run = begun(tmp_path)
    run.stage(0, rows_of(0))
    run.record(0)
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if is_renamed:
            rename(self, target)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "rename", failing)
    if is_renamed:
        run.commit()
    else:
        with pytest.raises(Exception, match="Input/output error"):
            run.commit()
    monkeypatch.undo()
    run.die()
    successor = begun(tmp_path)
    successor.die()
    assert seen(tmp_path) == (ids_of(0) if is_renamed else [])
    assert ParquetHooks().staged(tmp_path) == []


def test_a_directory_of_other_files_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "words").mkdir()
    parquet.write_table(pyarrow.table({"id": [1]}), tmp_path / "words" / "theirs.parquet")
    with pytest.raises(SinkFailed, match=r"other files, such as theirs\.parquet: name a new directory"):
        ParquetHooks().sink(tmp_path).problems(NAME, schema(id=pyarrow.int64()))
    assert [path.name for path in (tmp_path / "words").iterdir()] == ["theirs.parquet"]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"id": pyarrow.int64(), "name": pyarrow.string()}, None),
        ({"name": pyarrow.string(), "id": pyarrow.int64()}, None),
        ({"id": pyarrow.int64()}, "the rows have no column 'name'"),
        ({"id": pyarrow.int32(), "name": pyarrow.string()}, "column 'id' has the type long in the directory, "),
        ({"id": pyarrow.int64(), "name": pyarrow.string(), "x": pyarrow.int8()}, "the directory has no column 'x'"),
        ({"id": pyarrow.int64(), "Einmal_Version": pyarrow.int8()}, "the rows have a column 'einmal_version'"),
    ],
)
def test_columns_are_those_of_the_directory(
    tmp_path: Path, columns: dict[str, pyarrow.DataType], problem: str | None
) -> None:
    begun(tmp_path).die()
    problems = ParquetHooks().sink(tmp_path).problems(NAME, schema(**columns))
    assert [what[: len(problem or "")] for what, _hint in problems] == ([] if problem is None else [problem])
