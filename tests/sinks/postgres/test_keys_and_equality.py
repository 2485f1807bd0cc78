"""Keys that another session inserts at the same time, keys whose equality is not that of the database, and columns
whose type has no equality."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from einmal.pipeline.errors import PreflightFailed
from einmal.sinks.commit_point import SinkFailed
from tests.sinks.postgres.rig import Query, Rig
from tests.sinks.postgres.server import PASSWORD, until
from tests.sinks.postgres.test_rejected_rows import Tolerant

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROW = "SELECT CAST(1 AS int) AS id, 'ours' AS name"


@pytest.mark.representatives(1)
@pytest.mark.parametrize("tolerates", [False, True], ids=["strict", "tolerant"])
@pytest.mark.parametrize(
    "table",
    [
        ["CREATE TABLE t (id int PRIMARY KEY, name text)"],
        [
            "CREATE TABLE t (id int PRIMARY KEY, name text) PARTITION BY RANGE (id)",
            "CREATE TABLE t_small PARTITION OF t FOR VALUES FROM (0) TO (100)",
        ],
    ],
    ids=["plain", "partitioned"],
)
def test_a_key_that_another_session_inserts_meanwhile_is_updated_by_the_next_attempt(
    rig: Rig, tolerates: bool, table: list[str]
) -> None:
    for each in table:
        rig.rows(each)
    query = (Tolerant if tolerates else Query)(rig, mode="upsert", key="id")
    record = ", named_struct('topic', 'in', 'partition', 0, 'offset', CAST(5 AS bigint)) AS einmal_record"
    frame = rig.spark.sql(ROW + (record if tolerates else ""))
    query.driver.stage(0, frame)
    with psycopg.connect(rig.server.url_of(rig.database), password=PASSWORD) as other, ThreadPoolExecutor() as pool:
        other.execute("INSERT INTO t VALUES (1, 'theirs')")
        recording = pool.submit(query.driver.record, 0)
        waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        until(lambda: rig.rows(waits) == [(1,)], "the MERGE waits")
        other.commit()
        with pytest.raises(SinkFailed, match="at the same time") as caught:
            recording.result()
    assert not caught.value.will_again
    query.driver.abort()
    query.driver.batch(0, frame)
    assert query.rows() == [(1, "ours")]


@pytest.mark.representatives(2)
@pytest.mark.parametrize("tolerates", [False, True], ids=["strict", "tolerant"])
@pytest.mark.parametrize("mode", ["upsert", "scd2"])
@pytest.mark.parametrize("collation", ["folding", '"C"'])
def test_a_key_is_found_by_the_collation_of_its_column(rig: Rig, mode: str, collation: str, tolerates: bool) -> None:
    rig.rows("CREATE COLLATION folding (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    text = f"text COLLATE {collation}"
    if mode == "upsert":
        rig.rows(f"CREATE TABLE t (id {text} PRIMARY KEY, name {text})")
    else:
        rig.rows(
            f"CREATE TABLE t (id {text}, name {text}, valid_from timestamp, valid_to timestamp, is_current boolean)"
        )
        rig.rows("CREATE UNIQUE INDEX ON t (id) WHERE is_current")
    query = (Tolerant if tolerates else Query)(rig, mode=mode, key="id")
    folds = collation == "folding"
    for number, (key, name) in enumerate([("k", "x"), ("K" if folds else "k", "X")]):
        since = f", TIMESTAMP_NTZ '2026-01-0{number + 1} 00:00:00' AS valid_from" if mode == "scd2" else ""
        rows = f"SELECT '{key}' AS id, '{name}' AS name{since}"
        if tolerates:
            assert query.rejected(f"SELECT *, {number} AS at FROM ({rows})") == {}  # type: ignore[attr-defined]
        else:
            query.write(rows)
    expected = [("X",)] if mode == "upsert" else [("x",), ("X",)]
    assert query.rows("name", 'name COLLATE "C" DESC') == expected


@pytest.mark.representatives(2)
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("json", ('{"a": 1}', '{"a": 1, "b": 2}')),
        ("xml", ("<a/>", "<b/>")),
        ("jsonpath", ("$.a", "$.b")),
        ("jsonb", ('{"a": 1}', '{"a": 2}')),
        ("uuid", ("6f9619ff-8b86-d011-b42d-00c04fc964ff", "7f9619ff-8b86-d011-b42d-00c04fc964ff")),
        ("varchar(9)", ("a", "b")),
        ("inet", ("10.0.0.1", "10.0.0.2")),
        ("json[]", ('{"a": 1}', '{"a": 2}')),
        ("citext", ("a", "A")),
        ("citext[]", ("a", "A")),
        ("char(3)", ("a", "b")),
    ],
)
def test_a_history_has_columns_of_every_type_that_is_accepted(rig: Rig, kind: str, values: tuple[str, str]) -> None:
    if "citext" in kind:
        rig.rows("CREATE EXTENSION citext")
    columns = f"id int, doc {kind}, valid_from timestamp, valid_to timestamp, is_current boolean"
    rig.rows(f"CREATE TABLE t ({columns})")
    rig.rows("CREATE UNIQUE INDEX ON t (id) WHERE is_current")
    query = Query(rig, mode="scd2", key="id")
    for number, value in enumerate((*values, values[1])):
        doc = f"array('{value}')" if kind.endswith("[]") else f"'{value}'"
        since = f"TIMESTAMP_NTZ '2026-01-0{number + 1} 00:00:00'"
        query.write(f"SELECT CAST(1 AS int) AS id, {doc} AS doc, {since} AS valid_from")
    assert query.rows("valid_from::date::text, is_current") == [("2026-01-01", False), ("2026-01-02", True)]


@pytest.mark.representatives(1)
@pytest.mark.parametrize("kind", ["json", "xml", "json[]"])
def test_an_order_by_a_column_without_an_order_is_refused_before_anything_is_written(rig: Rig, kind: str) -> None:
    rig.rows(f"CREATE TABLE t (id int PRIMARY KEY, doc {kind})")
    query = Query(rig, mode="upsert", key="id", order="doc")
    doc = "array('1')" if kind.endswith("[]") else "'1'"
    with pytest.raises(PreflightFailed, match="has no order"):
        query.write(f"SELECT CAST(1 AS int) AS id, {doc} AS doc")


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [("double precision", "0.0D", "-0.0D"), ("numeric", "1.0BD", "1.00BD")],
)
def test_a_history_has_a_version_of_every_value_that_is_another_one(
    rig: Rig, kind: str, first: str, second: str
) -> None:
    rig.rows(f"CREATE TABLE t (id int, doc {kind}, valid_from timestamp, valid_to timestamp, is_current boolean)")
    rig.rows("CREATE UNIQUE INDEX ON t (id) WHERE is_current")
    query = Query(rig, mode="scd2", key="id")
    for number, value in enumerate((first, second, second)):
        since = f"TIMESTAMP_NTZ '2026-01-0{number + 1} 00:00:00'"
        query.write(f"SELECT CAST(1 AS int) AS id, {value} AS doc, {since} AS valid_from")
    assert query.rows("valid_from::date::text, is_current") == [("2026-01-01", False), ("2026-01-02", True)]
