"""An Iceberg table keeps what every sink must keep, beside other writers and after its snapshots have expired."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow
import pytest
from pyiceberg.types import LongType
from pyspark.sql import SparkSession

from einmal.pipeline.errors import PipelineRefused
from einmal.sinks.arrow_rows import ArrowRows
from einmal.sinks.commit_point import OutcomeUnknown, SinkFailed
from einmal.sinks.iceberg import IcebergSink
from einmal.sinks.lake import LakeState, SnapshotSuperseded
from einmal.sinks.staged_files import directory_of
from einmal.testing.sinks.driving import VERBS, RunUnderTest, rows_of
from tests.sinks.files import schema_of
from tests.sinks.hooks import IcebergHooks, catalog_settings, table_at
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


def renamed(location: Path) -> None:
    """The table keeps its directory, which a new one of the old name gets, too."""
    from pyiceberg.catalog import load_catalog

    load_catalog("default", **catalog_settings(location)).rename_table("lake.words", "lake.words_before")


def rows_before(location: Path) -> list[int]:
    from pyiceberg.catalog import load_catalog

    table = load_catalog("default", **catalog_settings(location)).load_table("lake.words_before")
    return sorted(table.scan().to_arrow()["id"].to_pylist())


@pytest.mark.parametrize("last", ["stage", "record", "commit"])
def test_new_table_in_the_directory_of_a_renamed_one_leaves_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    # The first attempts of two Spark applications have equal numbers.
    monkeypatch.setattr("einmal.sinks.arrow_rows.secrets.randbits", lambda _: 0)
    run = started(tmp_path)
    for batch_id in range(2):
        run.write(batch_id, rows_of(batch_id))
    run.die()
    renamed(tmp_path)
    run = started(tmp_path)
    assert run.last_record is None
    for verb in VERBS[2 : VERBS.index(last) + 1]:
        run.perform(verb, 0, rows_of(7, count=5))
    run.die()
    started(tmp_path).die()
    assert rows_before(tmp_path) == [0, 1, 2, 3, 4, 1000, 1001, 1002, 1003, 1004]
    assert sorted(IcebergHooks().rows(tmp_path)) == (rows_of(7) if last == "commit" else [])


def test_run_does_not_continue_in_another_table_of_the_name(tmp_path: Path) -> None:
    """Its first driver has the same epoch."""
    run = started(tmp_path)
    renamed(tmp_path)
    other = started(tmp_path)
    assert other.own == run.own
    with pytest.raises(PipelineRefused, match="another table"):
        run.commit_point.check(run.own)
    with pytest.raises(PipelineRefused, match="another table"):
        run.write(0, rows_of(0))
    run.die()
    other.write(0, rows_of(0))
    other.die()


def test_files_that_an_earlier_release_has_moved_are_left_and_its_staging_is_removed(tmp_path: Path) -> None:
    """Its names do not show whose they are: this table's, or that of one that was renamed."""
    started(tmp_path).die()
    data = tmp_path / "lake" / "words" / "data" / f"einmal-{directory_of(NAME)}" / "1-0-0" / "part-00000-0.parquet"
    batch = IcebergHooks().staging(tmp_path) / directory_of(NAME) / "1-0-0" / "part-00000-1.parquet"
    for path in (data, batch):
        path.parent.mkdir(parents=True)
        path.touch()
    started(tmp_path).die()
    assert data.exists() and not batch.parent.exists()


def written(location: Path, batch_id: int, rows: pyarrow.Table) -> RunUnderTest:
    """A run that has committed these rows."""
    assert IcebergHooks().sink(location).problems(NAME, ArrowRows([rows]).schema) == []
    run = RunUnderTest(IcebergHooks(), location, NAME, prepares=False)
    run.start()
    run.stage_rows(batch_id, ArrowRows([rows]))
    run.record(batch_id)
    run.commit()
    return run


BEYOND: Final = {
    "timestamp": pyarrow.array([0, 253_402_300_800_000_000]).cast(pyarrow.timestamp("us", "UTC")),
    "timestamp_ntz": pyarrow.array([0, -62_135_596_800_000_001]).cast(pyarrow.timestamp("us")),
    "date": pyarrow.array([0, 2_932_897], pyarrow.int32()).cast(pyarrow.date32()),
}


@pytest.mark.parametrize("kind", BEYOND)
def test_times_that_python_does_not_have_are_written_without_bounds(tmp_path: Path, kind: str) -> None:
    rows = pyarrow.table({"id": [1, 2], "time": BEYOND[kind]})
    written(tmp_path, 0, rows).die()
    table = table_at(tmp_path)
    (file,) = (each.file for each in table.scan().plan_files())
    number, time = (table.schema().find_field(name).field_id for name in ("id", "time"))
    assert (set(file.lower_bounds), file.null_value_counts) == ({number}, {number: 0, time: 0})
    assert table.scan().to_arrow().cast(rows.schema).equals(rows)


@pytest.mark.parametrize("inside", ["", "struct", "list"])
def test_required_column_needs_rows_that_are_never_null(tmp_path: Path, inside: str) -> None:
    def table_with(*, nullable: bool) -> pyarrow.Table:
        field = pyarrow.field("id", pyarrow.int64(), nullable=nullable)
        kinds = {"struct": pyarrow.struct([field]), "list": pyarrow.list_(field.with_name("element"))}
        if inside:
            field = pyarrow.field("c", kinds[inside])
        values = {"": 7, "struct": {"id": 7}, "list": [7]}[inside]
        return pyarrow.table([pyarrow.array([values], field.type)], schema=pyarrow.schema([field]))

    rows, with_null = table_with(nullable=False), table_with(nullable=True)
    sink = IcebergHooks().sink(tmp_path)
    catalog = sink.lake_table._catalog  # type: ignore[attr-defined]
    catalog.create_namespace("lake")
    catalog.create_table("lake.words", schema=rows.schema)
    ((problem, hint),) = sink.problems(NAME, ArrowRows([with_null]).schema)
    assert "is required, and in the rows it may be NULL" in problem and hint
    written(tmp_path, 0, rows).die()
    assert table_at(tmp_path).scan().to_arrow().to_pylist() == rows.to_pylist()


NESTED: Final = pyarrow.table(
    {
        "id": [1],
        "v": [1],
        "s": [{"a": [{"b": 1}], "c.d": "x"}],
        "m": pyarrow.array([[("k", {"e": 1})]], pyarrow.map_(pyarrow.string(), pyarrow.struct({"e": pyarrow.int64()}))),
    }
)


def renamed_column(location: Path) -> None:
    with table_at(location).update_schema() as update:
        update.rename_column("v", "w")


def dropped_column(location: Path) -> None:
    with table_at(location).update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("v")


def test_inner_fields_of_a_created_table_may_be_null_later(tmp_path: Path) -> None:
    long = pyarrow.int64()
    never = [
        ("s", pyarrow.struct([pyarrow.field("a", long, nullable=False)])),
        ("l", pyarrow.list_(pyarrow.field("element", long, nullable=False))),
        ("m", pyarrow.map_(pyarrow.string(), pyarrow.field("value", long, nullable=False))),
    ]
    may_be = [
        ("s", pyarrow.struct([("a", long)])),
        ("l", pyarrow.list_(long)),
        ("m", pyarrow.map_(pyarrow.string(), long)),
    ]
    sink = IcebergHooks().sink(tmp_path)
    for columns in (never, may_be):
        assert sink.problems(NAME, ArrowRows([pyarrow.schema(columns).empty_table()]).schema) == []


@pytest.mark.parametrize("change", [renamed_column, dropped_column])
def test_column_that_gets_the_name_of_another_one_does_not_get_its_values(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    """Readers find the columns in a file by numbers, which stay: those of nested fields, too."""
    run = written(tmp_path, 0, NESTED)
    run.stage_rows(1, ArrowRows([NESTED]))
    run.record(1)
    change(tmp_path)
    with table_at(tmp_path).update_schema() as update:
        update.add_column("v", LongType())
    with pytest.raises(SinkFailed, match="another one of its name"):
        # Its files have the number of the former column.
        run.commit()
    run.abort()
    run.stage_rows(1, ArrowRows([NESTED]))
    run.record(1)
    run.commit()
    run.die()
    table = table_at(tmp_path)
    old = {"v": None} | ({"w": 1} if change is renamed_column else {})
    new = {"v": 1} | ({"w": None} if change is renamed_column else {})
    (row,) = NESTED.to_pylist()
    assert sorted(table.scan().to_arrow().to_pylist(), key=lambda each: each["v"] or 0) == [row | old, row | new]


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
