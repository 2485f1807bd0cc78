"""Rows that SQLite and DuckDB reject: all others are loaded, each rejected one is known by its record, and no message
has values."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from einmal.pipeline.dead_letters import ToleranceExceeded
from einmal.schemas.settings import ErrorSettings, Limit
from einmal.sinks.commit_point import SinkFailed
from einmal.sinks.duckdb import DuckDB
from einmal.sinks.embedded import Database
from einmal.sinks.rejections import Rejections
from einmal.sinks.sqlite import SQLite
from einmal.sinks.staged_files import StagedFile, stage_file

DATABASES: dict[str, type[SQLite] | type[DuckDB]] = {"sqlite": SQLite, "duckdb": DuckDB}


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return DATABASES[request.param](tmp_path / "rows.db", 1_000)


@pytest.fixture
def sqlite(tmp_path: Path) -> SQLite:
    return SQLite(tmp_path / "rows.db", 1_000)


def staged(
    directory: Path, *files: Sequence[tuple[int, Any]], value: Any = None, as_text: bool = False
) -> list[StagedFile]:
    """Files with columns id and value; the offset of a row's record is its id. ``as_text``: as Spark casts bytes."""
    record = pyarrow.struct([("topic", pyarrow.string()), ("partition", pyarrow.int32()), ("offset", pyarrow.int64())])
    made = []
    for number, rows in enumerate(files):
        batch = pyarrow.RecordBatch.from_arrays(
            [
                pyarrow.array([row[0] for row in rows], pyarrow.int64()),
                pyarrow.array([row[1] for row in rows], value or pyarrow.string()),
                pyarrow.array([{"topic": "in", "partition": 0, "offset": row[0]} for row in rows], record),
            ],
            names=["id", "value", "einmal_record"],
        )
        if as_text:
            batch = batch.set_column(1, "value", batch.column(1).view(pyarrow.string()))
        file = stage_file(directory, number, 0, iter([batch]))
        assert file is not None
        made.append(file)
    return made


def load(
    database: Database, schema: Sequence[str], files: list[StagedFile], limit: Limit | None = None
) -> tuple[list[Any], dict[int, str], list[str]]:
    """The rows of the table, the rejected ones with their reasons, and the messages."""
    with closing(database.connect(creating=True)) as connection:
        for statement in schema:
            connection.execute(statement)
        database.begin(connection)
        rejections = Rejections("loading", ErrorSettings(limit=limit or Limit()), 1, sum(each.count for each in files))
        loaded = database.load_others(connection, "t", files, rejections)
        connection.execute("COMMIT")
        rows = connection.execute("SELECT id, value FROM t ORDER BY id").fetchall()
    found = {each.offset: each.exception.partition(".")[2] for each in rejections.rejected}
    assert loaded + rejections.count == sum(each.count for each in files)
    return rows, found, [each.message for each in rejections.rejected]


NAMES = {
    "SQLite": ("constraint_unique", "constraint_check", "constraint_notnull"),
    "DuckDB": ("duplicate_key", "check", "not_null"),
}


def test_constraints_reject_rows_one_by_one(database: Database, tmp_path: Path) -> None:
    unique, check, not_null = NAMES[type(database).__name__]
    rows, found, messages = load(
        database,
        [
            "CREATE TABLE t (id BIGINT CHECK (id <> 4), value VARCHAR NOT NULL UNIQUE)",
            "INSERT INTO t VALUES (0, 'secret 0')",
        ],
        staged(
            tmp_path,
            [(1, "a"), (2, None), (3, "secret 0"), (4, "b"), (5, "c")],
            [(6, "secret 6"), (7, "d"), (8, "secret 6")],
        ),
    )
    assert rows == [(0, "secret 0"), (1, "a"), (5, "c"), (6, "secret 6"), (7, "d")]
    assert found == {2: not_null, 3: unique, 4: check, 8: unique}
    assert not any("secret" in each for each in messages) and all(messages)


def test_many_rejected_rows_are_found_among_many(database: Database, tmp_path: Path) -> None:
    rows = [(number, str(number)) for number in range(3_000)]
    stored, found, _ = load(
        database, ["CREATE TABLE t (id BIGINT CHECK (id % 200 <> 199), value VARCHAR)"], staged(tmp_path, rows)
    )
    assert set(found) == set(range(199, 3_000, 200))
    assert len(stored) == 2_985


def test_more_than_the_limit_ends_the_search(database: Database, tmp_path: Path) -> None:
    rows = [(number, "x") for number in range(100)]
    with pytest.raises(ToleranceExceeded, match="4 or more of 100 rows"):
        load(
            database,
            ["CREATE TABLE t (id BIGINT, value VARCHAR CHECK (value <> 'x'))"],
            staged(tmp_path, rows),
            Limit(count=3),
        )


def test_a_trigger_of_sqlite_rejects_rows_and_its_text_is_not_reported(sqlite: SQLite, tmp_path: Path) -> None:
    rows, found, messages = load(
        sqlite,
        [
            "CREATE TABLE t (id INTEGER, value TEXT)",
            "CREATE TRIGGER checks BEFORE INSERT ON t WHEN NEW.id = 2 BEGIN SELECT RAISE(ABORT, 'secret'); END",
        ],
        staged(tmp_path, [(1, "a"), (2, "b"), (3, "c")]),
    )
    assert rows == [(1, "a"), (3, "c")]
    assert found == {2: "constraint_trigger"} and messages == ["raised by a trigger"]


def test_a_trigger_of_sqlite_that_rolls_back_fails_the_batch(sqlite: SQLite, tmp_path: Path) -> None:
    with pytest.raises(SinkFailed, match="rolled back the transaction"):
        load(
            sqlite,
            [
                "CREATE TABLE t (id INTEGER, value TEXT)",
                "CREATE TRIGGER checks BEFORE INSERT ON t WHEN NEW.id = 2 BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
            ],
            staged(tmp_path, [(1, "a"), (2, "b"), (3, "c")]),
        )


def test_values_that_sqlite_cannot_store_reject_their_row_alone(sqlite: SQLite, tmp_path: Path) -> None:
    rows, found, _ = load(
        sqlite,
        ["CREATE TABLE t (id INTEGER, value REAL)"],
        staged(tmp_path, [(1, 0.5), (2, float("nan")), (3, 1.5)], value=pyarrow.float64()),
    )
    assert rows == [(1, 0.5), (3, 1.5)] and found == {2: "not_a_number"}


def test_a_strict_table_of_sqlite_rejects_rows_of_another_type(sqlite: SQLite, tmp_path: Path) -> None:
    rows, found, _ = load(
        sqlite,
        ["CREATE TABLE t (id INTEGER PRIMARY KEY, value ANY CHECK (typeof(value) <> 'null')) STRICT"],
        staged(tmp_path, [(1, "a"), (2, None), (1, "b")]),
    )
    assert rows == [(1, "a")] and set(found) == {1, 2}


def test_a_foreign_key_of_duckdb_rejects_rows(tmp_path: Path) -> None:
    database = DuckDB(tmp_path / "rows.db", 1_000)
    rows, found, messages = load(
        database,
        [
            "CREATE TABLE owner (name VARCHAR PRIMARY KEY)",
            "INSERT INTO owner VALUES ('a')",
            "CREATE TABLE t (id BIGINT, value VARCHAR REFERENCES owner (name))",
        ],
        staged(tmp_path, [(1, "a"), (2, "secret"), (3, "a")]),
    )
    assert rows == [(1, "a"), (3, "a")] and found == {2: "foreign_key"}
    assert "secret" not in messages[0]


@pytest.mark.parametrize("tolerates", [False, True], ids=["strict", "tolerant"])
@pytest.mark.parametrize(
    "rule",
    [
        ["CREATE TABLE t (id INTEGER, value TEXT UNIQUE ON CONFLICT IGNORE)"],
        ["CREATE TABLE t (id INTEGER, value TEXT UNIQUE ON CONFLICT REPLACE)"],
        [
            "CREATE TABLE t (id INTEGER, value TEXT)",
            "CREATE TRIGGER rule BEFORE INSERT ON t WHEN NEW.id = 2 BEGIN SELECT RAISE(IGNORE); END",
        ],
        [
            "CREATE TABLE u (id INTEGER, value TEXT)",
            "CREATE VIEW t AS SELECT * FROM u WHERE id <> 2",
            "CREATE TRIGGER rule INSTEAD OF INSERT ON t BEGIN INSERT INTO u VALUES (NEW.id, NEW.value); END",
        ],
    ],
    ids=["ignore", "replace", "trigger", "view"],
)
def test_rows_that_a_rule_of_sqlite_leaves_out_are_not_missed(
    sqlite: SQLite, tmp_path: Path, rule: list[str], tolerates: bool
) -> None:
    rows = [(1, "a"), (2, "a"), (3, "c")]
    if tolerates:
        stored, found, _ = load(sqlite, rule, staged(tmp_path, rows))
        assert found == {}
    else:
        columns = [pyarrow.array(each) for each in zip(*rows, strict=True)]
        file = stage_file(tmp_path, 0, 0, iter([pyarrow.RecordBatch.from_arrays(columns, names=["id", "value"])]))
        assert file is not None
        with closing(sqlite.connect(creating=True)) as connection:
            for statement in rule:
                connection.execute(statement)
            assert sqlite.load(connection, "t", [file]) == len(rows)
            stored = connection.execute("SELECT id, value FROM t").fetchall()
    assert len(stored) == 2
    assert (3, "c") in stored


def test_text_that_is_not_utf_8_is_rejected_and_the_others_are_loaded(database: Database, tmp_path: Path) -> None:
    rows = [(1, b"caf\xe9 secret"), (2, "\u00e4".encode()), (3, None), (4, b"\xff")]
    kind = pyarrow.binary()
    files = staged(tmp_path, rows, [(5, b"\xc3")], [(6, b"x")], value=kind, as_text=True)
    stored, found, messages = load(database, ["CREATE TABLE t (id BIGINT, value VARCHAR CHECK (value <> 'x'))"], files)
    assert stored == [(2, "\u00e4"), (3, None)]
    assert {at: name for at, name in found.items() if at != 6} == dict.fromkeys((1, 4, 5), "invalid_text")
    assert set(found) == {1, 4, 5, 6} and not any("secret" in each for each in messages)
