"""Tables that somebody alters while their pipeline runs: no value is changed for it, and none is left out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import pyarrow
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from pyiceberg.types import StringType

from einmal.sinks.commit_point import SinkFailed
from einmal.testing.sinks.driving import VERBS, RunUnderTest, rows_of
from tests.sinks.hooks import HOOKS, FileHooks, OwnHooks, table_at

NAME: Final = "words"


def alter(hooks: OwnHooks, location: Path) -> None:
    """The table loses a column, or gets one of another type."""
    if isinstance(hooks, FileHooks):
        with closing(hooks.connect(location / "rows.db")) as connection:
            connection.execute("DROP TABLE words")
            connection.execute("CREATE TABLE words (id BIGINT, name INTEGER)")
    elif hooks.kind == "delta":
        others = pyarrow.table({"id": pyarrow.array([], pyarrow.int64()), "name": pyarrow.array([], pyarrow.int64())})
        write_deltalake(str(location / "words"), others, mode="overwrite", schema_mode="overwrite")
    else:
        with table_at(location).update_schema(allow_incompatible_changes=True) as update:
            update.delete_column("name")


def widen(hooks: OwnHooks, location: Path) -> None:
    """The table gets a column that rows may lack."""
    if isinstance(hooks, FileHooks):
        with closing(hooks.connect(location / "rows.db")) as connection:
            connection.execute("ALTER TABLE words ADD COLUMN more VARCHAR")
    elif hooks.kind == "delta":
        DeltaTable(str(location / "words")).alter.add_columns([Field("more", PrimitiveType("string"))])
    else:
        with table_at(location).update_schema() as update:
            update.add_column("more", StringType())


def written_around(
    hooks: OwnHooks, location: Path, verb: str, change: Callable[[OwnHooks, Path], None]
) -> RunUnderTest:
    """A run whose second batch meets the change before a verb."""
    run = RunUnderTest(hooks, location, NAME)
    run.start()
    run.write(0, rows_of(0))
    for each in VERBS[2:]:
        if each == verb:
            change(hooks, location)
        run.perform(each, 1, rows_of(1))
    return run


MOMENTS: Final = [
    (kind(), verb)
    for name, kind in HOOKS.items()
    for verb in VERBS[2:]
    if name != "parquet"  # The columns of such a directory never change.
    # A database is locked from the record to the commit.
    if verb != "commit" or name in ("delta", "iceberg")
]


@pytest.mark.parametrize(("hooks", "verb"), MOMENTS)
def test_altered_table_gets_no_row_of_another_type(hooks: OwnHooks, verb: str, tmp_path: Path) -> None:
    with pytest.raises(SinkFailed, match="name") as caught:
        written_around(hooks, tmp_path, verb, alter)
    assert caught.value.will_again
    run = RunUnderTest(hooks, tmp_path, NAME, prepares=False)
    record = run.start()
    assert record is not None and record.batch_id == 0
    run.die()


@pytest.mark.parametrize(("hooks", "verb"), MOMENTS)
def test_column_that_rows_may_lack_is_added_meanwhile(hooks: OwnHooks, verb: str, tmp_path: Path) -> None:
    written_around(hooks, tmp_path, verb, widen).die()
    assert sorted(hooks.rows(tmp_path)) == rows_of(0) + rows_of(1)


@pytest.mark.parametrize("verb", ["stage", "record"])
@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_table_that_is_dropped_is_not_created_again_by_the_same_run(kind: str, verb: str, tmp_path: Path) -> None:
    def drop(hooks: OwnHooks, location: Path) -> None:
        assert isinstance(hooks, FileHooks)
        with closing(hooks.connect(location / "rows.db")) as connection:
            connection.execute("DROP TABLE words")

    with pytest.raises(SinkFailed, match="there is no table words"):
        written_around(HOOKS[kind](), tmp_path, verb, drop)
