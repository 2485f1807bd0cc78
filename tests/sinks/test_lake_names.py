"""Who has a name in a lake table: drivers that acquire it at once, a table that was restored, a request on its way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from einmal.pipeline.errors import PipelineRefused
from einmal.sinks.commit_point import SinkFenced
from einmal.sinks.delta import DeltaLakeTable
from einmal.sinks.lake import LakeSink, LakeState, LakeTable, SnapshotSuperseded
from einmal.sinks.sink import Opening
from einmal.sinks.staged_files import directory_of
from einmal.spark.environment.plans.row_schemas import schema_of
from einmal.testing.sinks.driving import RunUnderTest, rows_of
from tests.sinks.hooks import DeltaHooks, IcebergHooks, OwnHooks, ParquetHooks

NAME = "words"
SCHEMA = StructType().add("id", LongType()).add("name", StringType())
LAKES = (DeltaHooks(), IcebergHooks(), ParquetHooks())


@pytest.fixture(params=LAKES, ids=lambda hooks: hooks.kind)
def hooks(request: pytest.FixtureRequest, tmp_path: Path) -> OwnHooks:
    chosen: OwnHooks = request.param
    table_of(chosen, tmp_path).create(schema_of(SCHEMA))
    return chosen


def table_of(hooks: OwnHooks, location: Path) -> LakeTable:
    sink = hooks.sink(location)
    assert isinstance(sink, LakeSink)
    return sink.lake_table


def test_drivers_that_acquire_a_name_at_once_are_granted_different_epochs(
    hooks: OwnHooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one is granted its epoch between snapshot and commit of the first one."""
    first, second = (RunUnderTest(hooks, tmp_path, NAME, prepares=False) for _ in range(2))
    kind = type(table_of(hooks, tmp_path))
    commit, others = kind.commit, iter([second])

    def late(self: LakeTable, *arguments: Any) -> None:
        for other in others:
            other.acquire()
        commit(self, *arguments)

    monkeypatch.setattr(kind, "commit", late)
    first.acquire()
    assert first.own.producer_id > second.own.producer_id
    with pytest.raises(SinkFenced):
        second.read()
    first.read()


def test_late_try_to_acquire_does_not_replace_the_record_of_the_epoch(tmp_path: Path) -> None:
    hooks = DeltaHooks()
    table = table_of(hooks, tmp_path)
    table.create(schema_of(SCHEMA))
    older, newer = (RunUnderTest(hooks, tmp_path, NAME, prepares=False) for _ in range(2))
    older.start()
    before = table.load()
    record = older.record(0)
    older.commit()
    newer.acquire()
    assert isinstance(table, DeltaLakeTable)
    with pytest.raises(SnapshotSuperseded):
        table.commit(before, NAME, LakeState(epoch=newer.own.producer_id), ())
    assert newer.read() == record


def test_epoch_whose_driver_died_while_it_acquired_is_not_granted_again(tmp_path: Path) -> None:
    hooks = DeltaHooks()
    table_of(hooks, tmp_path).create(schema_of(SCHEMA))
    first = RunUnderTest(hooks, tmp_path, NAME, prepares=False)
    first.start()
    (record,) = (tmp_path / "words" / "_einmal" / "records").glob("*/*.json")
    record.with_name(f"{2 * 2**32}.json").write_text("{")
    second = RunUnderTest(hooks, tmp_path, NAME, prepares=False)
    assert second.start() is None
    assert second.own.producer_id == 3
    assert len(list(record.parent.glob("*.json"))) == 1


def test_abort_of_the_run_before_leaves_moved_files_to_acquire(hooks: OwnHooks, tmp_path: Path) -> None:
    """Its commit may still be on its way to a catalog, until the next epoch is committed."""
    first = RunUnderTest(hooks, tmp_path, NAME, prepares=False)
    first.start()
    table, held = table_of(hooks, tmp_path), first.own
    home = directory_of(NAME, table.owner(table.load()))
    batch = f"{held.producer_id}-{held.producer_epoch}-0"
    (hooks.staging(tmp_path) / home / batch).mkdir(parents=True)
    moved = table.data / f"einmal-{home}" / batch / "part-00000-0.parquet"
    moved.parent.mkdir(parents=True)
    moved.write_bytes(b"rows")
    second = hooks.sink(tmp_path).commit_point(Opening(name=NAME))
    second.abort(held)
    assert moved.exists()
    second.acquire(held)
    assert not moved.exists()
    assert hooks.staged(tmp_path) == []


def test_names_that_are_forgotten_leave_their_rows_alone(hooks: OwnHooks, tmp_path: Path) -> None:
    """As of batch writes without a transactional.id: there may be thousands."""
    for number in range(3):
        run = RunUnderTest(hooks, tmp_path, f"write {number}")
        run.start()
        run.write(number, rows_of(number))
        run.commit_point.forget()
        run.die()
    table = table_of(hooks, tmp_path)
    assert table.names(table.load()) == []
    assert list(hooks.staging(tmp_path).iterdir()) == []
    if hooks.kind == "delta":
        assert list((tmp_path / "words" / "_einmal" / "records").iterdir()) == []
    elif hooks.kind == "parquet":
        assert table.load().commit["names"] == {}
    else:
        left = {key: text for key, text in table.load().properties.items() if key.startswith("einmal.")}
        assert list(left) == ["einmal.last-epoch"]
    assert len(hooks.rows(tmp_path)) == 15


def test_run_does_not_continue_above_a_table_that_was_restored(
    hooks: OwnHooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunUnderTest(hooks, tmp_path, NAME, prepares=False)
    run.start()
    run.record(0)
    run.commit()
    kind = type(table_of(hooks, tmp_path))
    state = kind.state

    def restored(self: LakeTable, *arguments: Any) -> LakeState:
        found = state(self, *arguments)
        return LakeState(found.epoch)

    run.record(1)
    monkeypatch.setattr(kind, "state", restored)
    with pytest.raises(PipelineRefused, match="batch 0"):
        run.commit()
