"""An Iceberg table keeps what every sink must keep, beside other writers and after its snapshots have expired."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow
import pytest
from pyspark.sql import SparkSession

from einmal.sinks.commit_point import OutcomeUnknown
from einmal.sinks.iceberg import IcebergSink
from einmal.sinks.lake import LakeState, SnapshotSuperseded
from einmal.testing.sinks.driving import RunUnderTest, rows_of
from tests.sinks.files import schema_of
from tests.sinks.hooks import IcebergHooks, table_at
from tests.sinks.local_tasks import WITHOUT_KILLS, LocalTasks, local_session

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog

pytestmark = pytest.mark.slow

NAME: Final = "words"


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    return local_session(monkeypatch)


class TestIceberg(LocalTasks, IcebergHooks):
    """The battery."""

    in_the_long_run = WITHOUT_KILLS


def started(location: Path) -> RunUnderTest:
    run = RunUnderTest(IcebergHooks(), location, NAME)
    run.start()
    return run


def test_commit_is_refused_by_the_catalog_after_a_snapshot_without_files(tmp_path: Path, spark: SparkSession) -> None:
    """Two copies of one snapshot: what the second requires is gone, and pyiceberg does not try again."""
    started(tmp_path).die()
    sink = IcebergHooks().sink(tmp_path)
    assert isinstance(sink, IcebergSink)
    table = sink.lake_table
    first, second = table.load(), table.load()
    table.commit(first, "one", LakeState(epoch=1), ())
    with pytest.raises(SnapshotSuperseded):
        table.commit(second, "two", LakeState(epoch=1), ())
    assert table.names(table.load()) == [NAME, "one"]


def test_other_writers_do_not_stop_ours(tmp_path: Path, spark: SparkSession) -> None:
    run = started(tmp_path)
    for batch_id in range(3):
        run.stage(batch_id, rows_of(batch_id))
        run.record(batch_id)
        table_at(tmp_path).append(pyarrow.table({"id": [1], "name": ["foreign"]}))
        run.commit()
    run.die()
    assert len(IcebergHooks().rows(tmp_path)) == 3 * 6


def test_record_outlives_expired_snapshots(tmp_path: Path, spark: SparkSession) -> None:
    run = started(tmp_path)
    record = run.write(0, rows_of(0))
    run.die()
    table_at(tmp_path).append(pyarrow.table({"id": [1], "name": ["foreign"]}))
    table = table_at(tmp_path)
    current = table.current_snapshot().snapshot_id
    expired = [each.snapshot_id for each in table.snapshots() if each.snapshot_id != current]
    table.maintenance.expire_snapshots().by_ids(expired).commit()
    assert len(table_at(tmp_path).snapshots()) == 1
    run = RunUnderTest(IcebergHooks(), tmp_path, NAME)
    assert run.start() == record
    run.die()


def test_summary_of_the_snapshot_has_the_record(tmp_path: Path, spark: SparkSession) -> None:
    run = started(tmp_path)
    record = run.write(0, rows_of(0))
    run.die()
    summary = table_at(tmp_path).current_snapshot().summary
    assert summary["einmal.record"] == record.encode().decode()
    assert summary["added-records"] == "5"


def test_lost_answer_of_a_commit_is_resolved_before_any_other_try(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitStateUnknownException

    run = started(tmp_path)
    run.stage(0, rows_of(0))
    record = run.record(0)
    commit = SqlCatalog.commit_table

    def unanswered(self: SqlCatalog, *arguments: Any) -> None:
        commit(self, *arguments)
        raise CommitStateUnknownException("no answer")

    monkeypatch.setattr(SqlCatalog, "commit_table", unanswered)
    run.commit()
    monkeypatch.undo()
    assert run.commit_point.look() == record
    run.die()
    assert sorted(IcebergHooks().rows(tmp_path)) == rows_of(0)


def test_request_of_a_commit_that_may_be_lost_ends_the_run_undecided(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitStateUnknownException

    run = started(tmp_path)
    run.stage(0, rows_of(0))
    run.record(0)

    def lost(_self: SqlCatalog, *_arguments: Any) -> None:
        raise CommitStateUnknownException("not sent")

    monkeypatch.setattr(SqlCatalog, "commit_table", lost)
    with pytest.raises(OutcomeUnknown):
        run.commit()
    run.die()
    monkeypatch.undo()
    run = started(tmp_path)
    assert run.last_record is None
    run.die()
    assert IcebergHooks().staged(tmp_path) == []


@pytest.mark.parametrize(
    ("columns", "problem"),
    [("id bigint, name string, more int", "no column 'more'"), ("id bigint, name int", "is string in the table")],
)
def test_table_that_einmal_cannot_append_to_is_refused(
    tmp_path: Path, spark: SparkSession, columns: str, problem: str
) -> None:
    started(tmp_path).die()
    problems = IcebergHooks().sink(tmp_path).problems(NAME, schema_of(spark, columns))
    assert len(problems) == 1 and problem in problems[0][0] and problems[0][1]
