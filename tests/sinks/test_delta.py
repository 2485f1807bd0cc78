"""A Delta table keeps what every sink must keep, beside other writers and after its log was cleaned."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

import pyarrow
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from einmal.commit_protocol.commit_record import CommitRecord, UnreadableCommitRecord
from einmal.pipeline.errors import PipelineRefused
from einmal.sinks.arrow_rows import ArrowRows
from einmal.sinks.commit_point import OutcomeUnknown
from einmal.sinks.delta import DeltaLakeTable
from einmal.sinks.row_schema import RowSchema
from einmal.sinks.staged_files import directory_of
from einmal.spark.environment.plans import row_schemas
from einmal.testing.sinks.driving import RunUnderTest, rows_of
from tests.sinks.files import schema_of
from tests.sinks.hooks import DeltaHooks
from tests.sinks.local_tasks import WITHOUT_KILLS, LocalTasks, local_session

pytestmark = pytest.mark.slow

NAME: Final = "words"


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    return local_session(monkeypatch)


class TestDelta(LocalTasks, DeltaHooks):
    """The battery."""

    in_the_long_run = WITHOUT_KILLS


def row_schema(schema: pyarrow.Schema) -> RowSchema:
    return ArrowRows([schema.empty_table()]).schema


def from_json(schema: dict[str, Any]) -> RowSchema:
    """As of a frame of Spark's."""
    return row_schemas.schema_of(StructType.fromJson(schema))


def table(location: Path) -> DeltaTable:
    return DeltaTable(str(location / "words"))


def written(location: Path, batches: int = 1) -> CommitRecord:
    """The record of the last of so many batches."""
    run = RunUnderTest(DeltaHooks(), location, NAME)
    run.start()
    for batch_id in range(batches):
        record = run.write(batch_id, rows_of(batch_id))
    run.die()
    return record


def found(location: Path) -> CommitRecord | None:
    run = RunUnderTest(DeltaHooks(), location, NAME)
    record = run.start()
    run.die()
    return record


def test_record_outlives_the_log_that_had_its_commit(tmp_path: Path, spark: SparkSession) -> None:
    record = written(tmp_path)
    table(tmp_path).alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    delta = table(tmp_path)
    delta.create_checkpoint()
    time.sleep(0.01)
    delta.cleanup_metadata()
    for path in (tmp_path / "words" / "_delta_log").glob("*.json"):
        if int(path.stem) < delta.version():
            path.unlink()
    assert found(tmp_path) == record


def test_vacuum_and_compaction_leave_rows_record_and_staging(tmp_path: Path, spark: SparkSession) -> None:
    written(tmp_path, 3)
    run = RunUnderTest(DeltaHooks(), tmp_path, NAME)
    last = run.start()
    run.stage(3, rows_of(3))
    table(tmp_path).optimize.compact()
    table(tmp_path).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert last is not None and run.commit_point.look() == last
    run.record(3)
    run.commit()
    run.die()
    assert sorted(DeltaHooks().rows(tmp_path)) == sorted(row for batch_id in range(4) for row in rows_of(batch_id))


def test_commits_of_other_writers_do_not_stop_ours(tmp_path: Path) -> None:
    """They come between record and commit, and while the commit is being made."""
    run = RunUnderTest(DeltaHooks(), tmp_path, NAME)
    run.start()
    expected = 0
    for batch_id in range(3):
        run.stage(batch_id, rows_of(batch_id))
        run.record(batch_id)
        write_deltalake(str(tmp_path / "words"), foreign(10), mode="append")
        run.commit()
        expected += 15
    run.die()
    assert len(DeltaHooks().rows(tmp_path)) == expected


def test_commit_is_made_again_where_another_one_came_after_its_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunUnderTest(DeltaHooks(), tmp_path, NAME)
    run.start()
    run.stage(0, rows_of(0))
    run.record(0)
    commit, others = DeltaLakeTable.commit, iter(range(3))

    def late(self: DeltaLakeTable, *arguments: Any) -> None:
        if next(others, None) is not None:
            write_deltalake(str(tmp_path / "words"), foreign(1), mode="append")
        commit(self, *arguments)

    monkeypatch.setattr(DeltaLakeTable, "commit", late)
    run.commit()
    run.die()
    assert len(DeltaHooks().rows(tmp_path)) == 5 + 3
    assert next(others, None) is None


def test_lost_answer_of_a_commit_is_resolved_by_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunUnderTest(DeltaHooks(), tmp_path, NAME)
    run.start()
    run.stage(0, rows_of(0))
    record = run.record(0)
    commit = DeltaLakeTable.commit

    def unanswered(self: DeltaLakeTable, *arguments: Any) -> None:
        commit(self, *arguments)
        raise OSError("no answer")

    monkeypatch.setattr(DeltaLakeTable, "commit", unanswered)
    run.commit()
    monkeypatch.undo()
    assert run.commit_point.look() == record
    run.die()
    assert sorted(DeltaHooks().rows(tmp_path)) == rows_of(0)


def test_request_of_a_commit_that_may_be_lost_ends_the_run_undecided(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunUnderTest(DeltaHooks(), tmp_path, NAME)
    run.start()
    run.stage(0, rows_of(0))
    run.record(0)

    def lost(_self: DeltaLakeTable, *_arguments: Any) -> None:
        raise OSError("not sent")

    monkeypatch.setattr(DeltaLakeTable, "commit", lost)
    with pytest.raises(OutcomeUnknown):
        run.commit()
    run.die()
    monkeypatch.undo()
    assert found(tmp_path) is None
    assert DeltaHooks().staged(tmp_path) == []


def test_missing_record_file_is_reported_and_no_committed_file_is_removed(tmp_path: Path, spark: SparkSession) -> None:
    written(tmp_path, 2)
    for path in (tmp_path / "words" / "_einmal" / "records" / directory_of(NAME)).glob("*.json"):
        path.unlink()
    run = RunUnderTest(DeltaHooks(), tmp_path, NAME)
    run.acquire()
    with pytest.raises(UnreadableCommitRecord):
        run.read()
    run.die()
    assert len(DeltaHooks().rows(tmp_path)) == 10


def test_pair_of_delta_shows_the_transactions(tmp_path: Path, spark: SparkSession) -> None:
    written(tmp_path, 2)
    assert table(tmp_path).transaction_version(f"einmal/{NAME}") == (1 << 32) + 2
    assert json.loads(table(tmp_path).history(1)[0]["einmal.record"])["batch_id"] == 1


def test_record_files_do_not_pile_up(tmp_path: Path, spark: SparkSession) -> None:
    written(tmp_path, 4)
    assert len(list((tmp_path / "words" / "_einmal" / "records" / directory_of(NAME)).glob("*.json"))) == 1


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ("id bigint", "never NULL"),
        ("id bigint, name string, more int", "no column 'more'"),
        ("id int, name string", "of type long"),
    ],
)
def test_table_that_einmal_cannot_append_to_is_refused(
    tmp_path: Path, spark: SparkSession, columns: str, problem: str
) -> None:
    fields = [pyarrow.field("id", pyarrow.int64()), pyarrow.field("name", pyarrow.string(), nullable=False)]
    DeltaTable.create(str(tmp_path / "words"), schema=pyarrow.schema(fields))
    problems = DeltaHooks().sink(tmp_path).problems(NAME, schema_of(spark, columns))
    assert any(problem in each for each, _ in problems) and all(hint for _, hint in problems)


LONG = pyarrow.int64()
NEVER_NULL = pyarrow.field("a", LONG, nullable=False)
NULLS: Final = {
    "column 'c'": (pyarrow.field("c", LONG, nullable=False), pyarrow.field("c", LONG)),
    "column 'c.a'": (pyarrow.field("c", pyarrow.struct([NEVER_NULL])), pyarrow.field("c", pyarrow.struct({"a": LONG}))),
    "a value in column 'c'": (
        pyarrow.field("c", pyarrow.list_(pyarrow.field("element", LONG, nullable=False))),
        pyarrow.field("c", pyarrow.list_(LONG)),
    ),
    "column 'c.a' ": (
        pyarrow.field("c", pyarrow.map_(pyarrow.string(), pyarrow.list_(pyarrow.struct([NEVER_NULL])))),
        pyarrow.field("c", pyarrow.map_(pyarrow.string(), pyarrow.list_(pyarrow.struct({"a": LONG})))),
    ),
}


@pytest.mark.parametrize("problem", NULLS)
def test_null_where_the_table_has_none_is_refused_at_any_depth(tmp_path: Path, problem: str) -> None:
    of_table, of_rows = NULLS[problem]
    DeltaTable.create(str(tmp_path / "words"), schema=pyarrow.schema([of_table]))
    sink = DeltaHooks().sink(tmp_path)
    ((found, hint),) = sink.problems(NAME, row_schema(pyarrow.schema([of_rows])))
    assert found.startswith(problem.strip()) and "never NULL" in found and hint
    assert sink.problems(NAME, row_schema(pyarrow.schema([of_table]))) == []


RULES: Final = {
    "delta.invariants": '{"expression":{"expression":"a > 10"}}',
    "delta.generationExpression": "1",
    "__CHAR_VARCHAR_TYPE_STRING": "varchar(3)",
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("depth", ["column", "field", "element", "value"])
def test_rule_of_a_column_is_refused_at_any_depth_and_not_taken_over(tmp_path: Path, rule: str, depth: str) -> None:
    """The table that the rows come from may have one."""
    field = {"name": "a", "type": "string", "nullable": True, "metadata": {rule: RULES[rule]}}
    struct: Any = {"type": "struct", "fields": [field]}
    kinds: dict[str, Any] = {
        "field": struct,
        "element": {"type": "array", "elementType": struct, "containsNull": True},
        "value": {"type": "map", "keyType": "string", "valueType": struct, "valueContainsNull": True},
    }
    column = field if depth == "column" else {"name": "c", "type": kinds[depth], "nullable": True, "metadata": {}}
    schema = from_json({"type": "struct", "fields": [column]})
    DeltaTable.create(
        str(tmp_path / "words"), schema=Schema.from_json(json.dumps({"type": "struct", "fields": [column]}))
    )
    rule_of_path = f"{'varchar(3)' if 'VARCHAR' in rule else rule} of {'a' if depth == 'column' else 'c.a'}"
    field["metadata"] = {}
    without = from_json({"type": "struct", "fields": [column]})
    problems = DeltaHooks().sink(tmp_path).problems(NAME, without)
    assert [problem for problem, hint in problems if rule_of_path in problem and hint]
    # A length is kept where the rows come from.
    assert (DeltaHooks().sink(tmp_path).problems(NAME, schema) == []) is ("VARCHAR" in rule)
    (tmp_path / "new").mkdir()
    assert DeltaHooks().sink(tmp_path / "new").problems(NAME, schema) == []


def test_inner_fields_of_a_created_table_may_be_null_later(tmp_path: Path) -> None:
    inner = pyarrow.struct([pyarrow.field("a", LONG, nullable=False)])
    never = pyarrow.schema([("s", inner), ("l", pyarrow.list_(pyarrow.field("element", LONG, nullable=False)))])
    may_be = pyarrow.schema([("s", pyarrow.struct([("a", LONG)])), ("l", pyarrow.list_(LONG))])
    sink = DeltaHooks().sink(tmp_path)
    assert sink.problems(NAME, row_schema(never)) == []
    assert sink.problems(NAME, row_schema(may_be)) == []


@pytest.mark.parametrize("depth", ["column", "field"])
def test_names_that_differ_in_case_alone_are_a_problem_with_a_hint(tmp_path: Path, depth: str) -> None:
    kind = pyarrow.schema([pyarrow.field("a", LONG), pyarrow.field("A", LONG)])
    if depth == "field":
        kind = pyarrow.schema([pyarrow.field("s", pyarrow.list_(pyarrow.struct(list(kind))))])
    ((problem, hint),) = DeltaHooks().sink(tmp_path).problems(NAME, row_schema(kind))
    assert "ignores case" in problem and hint


def test_transactions_are_kept_for_the_time_of_the_table(tmp_path: Path, spark: SparkSession) -> None:
    """Delta forgets a name by the time that its last transaction has, also that of a new epoch."""
    written(tmp_path)
    table(tmp_path).alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 1 hour"})
    for _ in range(2):
        record = found(tmp_path)
        assert record is not None and record.batch_id == 0
    run = RunUnderTest(DeltaHooks(), tmp_path, NAME)
    run.start()
    run.write(1, rows_of(1))
    run.die()


def expired(location: Path) -> None:
    """Whatever was committed until now."""
    properties = {"delta.setTransactionRetentionDuration": "interval 1 millisecond"}
    table(location).alter.set_table_properties(properties, raise_if_not_exists=False)
    time.sleep(0.01)
    assert table(location).transaction_version(f"einmal/{NAME}") is None


@pytest.mark.parametrize("is_running", [False, True])
def test_expired_transaction_is_not_taken_for_a_new_name(
    tmp_path: Path, spark: SparkSession, *, is_running: bool
) -> None:
    run = RunUnderTest(DeltaHooks(), tmp_path, NAME)
    run.start()
    run.write(0, rows_of(0))
    # Of a driver that died before it had removed what it had moved from.
    mark = tmp_path / "words" / "_einmal" / "staging" / directory_of(NAME) / "1-0-0"
    mark.mkdir()
    expired(tmp_path)
    if is_running:
        with pytest.raises(PipelineRefused):
            run.commit_point.check(run.own)
        with pytest.raises(PipelineRefused):
            run.write(1, rows_of(1))
    run.die()
    (text,) = [each.problem for each in DeltaHooks().sink(tmp_path).committed().values()]
    assert "setTransactionRetentionDuration" in text
    again = RunUnderTest(DeltaHooks(), tmp_path, NAME)
    with pytest.raises(UnreadableCommitRecord, match="setTransactionRetentionDuration"):
        again.commit_point.look()
    again.acquire()
    again.die()
    assert sorted(DeltaHooks().rows(tmp_path)) == rows_of(0)


def test_name_whose_drivers_have_committed_nothing_is_new_after_its_transaction_has_expired(
    tmp_path: Path, spark: SparkSession
) -> None:
    for _ in range(2):
        assert found(tmp_path) is None
    expired(tmp_path)
    assert RunUnderTest(DeltaHooks(), tmp_path, NAME).commit_point.look() is None


def test_half_made_directory_of_one_pipeline_hides_no_other(tmp_path: Path, spark: SparkSession) -> None:
    record = written(tmp_path)
    (tmp_path / "words" / "_einmal" / "records" / directory_of("other")).mkdir()
    assert {name: each.record for name, each in DeltaHooks().sink(tmp_path).committed().items()} == {NAME: record}


def test_table_with_a_constraint_is_refused(tmp_path: Path, spark: SparkSession) -> None:
    written(tmp_path)
    table(tmp_path).alter.add_constraint({"positive": "id >= 0"})
    problems = DeltaHooks().sink(tmp_path).problems(NAME, schema_of(spark, "id bigint, name string"))
    assert any("delta.constraints.positive" in problem for problem, _ in problems)


def test_partitioned_table_is_refused(tmp_path: Path, spark: SparkSession) -> None:
    schema = pyarrow.schema([pyarrow.field("id", pyarrow.int64()), pyarrow.field("name", pyarrow.string())])
    DeltaTable.create(str(tmp_path / "words"), schema=schema, partition_by=["name"])
    problems = DeltaHooks().sink(tmp_path).problems(NAME, schema_of(spark, "id bigint, name string"))
    assert any("partitioned by name" in problem for problem, _ in problems)


def foreign(count: int) -> pyarrow.Table:
    """Rows of another writer."""
    return pyarrow.table({"id": list(range(count)), "name": ["foreign"] * count})
