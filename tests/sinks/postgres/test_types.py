"""Which type of Spark fits which of PostgreSQL, what is refused before a batch, and which rows the table rejects."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal

import pytest

from einmal.pipeline.errors import PreflightFailed
from einmal.sinks.commit_point import SinkFailed
from einmal.spark.environment.plans.row_schemas import schema_of
from tests.sinks.postgres.rig import Query, Rig

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EVERY_TYPE = """
    SELECT true AS t_bool, 1Y AS t_byte, -2S AS t_short, 2147483647 AS t_int, -9223372036854775808L AS t_long,
      1.5F AS t_float, 0.1D AS t_double, -12345678901234567890.123456789012345678BD AS t_decimal,
      'ä\\t\\\\N\\n' AS t_string, X'00FF5C' AS t_binary, DATE '0001-01-01' AS t_date,
      TIMESTAMP '2026-02-03 04:05:06.789012Z' AS t_timestamp, TIMESTAMP_NTZ '9999-12-31 23:59:59.999999' AS t_ntz,
      array(1.5BD, null) AS t_decimals, array('a,b', 'c"d', null, '\\\\') AS t_strings, array(X'00', X'') AS t_binaries,
      array(TIMESTAMP '2026-02-03 04:05:06.789012Z') AS t_times, CAST(array() AS array<int>) AS t_none,
      named_struct('a', 1, 'b', CAST(null AS string), 'c', TIMESTAMP '2026-02-03 04:05:06.789012Z') AS t_struct,
      map('k', array(1, 2)) AS t_map, array(array(1), array(2, 3)) AS t_nested
    UNION ALL
    SELECT null, null, null, null, null, CAST('NaN' AS float), CAST('-Infinity' AS double), null, null, null, null,
      null, null, null, null, null, null, null, null, null, null
"""
_INSTANT = datetime.datetime(2026, 2, 3, 4, 5, 6, 789012, tzinfo=datetime.UTC)


def test_every_type_comes_back_as_it_was_from_a_table_that_was_created(rig: Rig) -> None:
    query = Query(rig)
    query.write(EVERY_TYPE)
    kinds = rig.rows(
        "SELECT string_agg(format_type(atttypid, atttypmod), ', ' ORDER BY attnum) FROM pg_attribute"
        " WHERE attrelid = 't'::regclass AND attnum > 0"
    )
    assert kinds == [
        (
            "boolean, smallint, smallint, integer, bigint, real, double precision, numeric(38,18), text, bytea, date, "
            "timestamp with time zone, timestamp without time zone, numeric(2,1)[], text[], bytea[], "
            "timestamp with time zone[], integer[], jsonb, jsonb, jsonb",
        )
    ]
    (row,) = query.rows("*", "t_bool LIMIT 1")
    assert row == (
        True, 1, -2, 2147483647, -(2**63), 1.5, 0.1, Decimal("-12345678901234567890.123456789012345678"), "ä\t\\N\n",
        b"\x00\xff\\", datetime.date(1, 1, 1), _INSTANT, datetime.datetime(9999, 12, 31, 23, 59, 59, 999999),
        [Decimal("1.5"), None], ["a,b", 'c"d', None, "\\"], [b"\x00", b""], [_INSTANT], [],
        {"a": 1, "b": None, "c": "2026-02-03T04:05:06.789012Z"}, {"k": [1, 2]}, [[1], [2, 3]],
    )  # fmt: skip
    _, (*before, single, double, _decimal), *_ = [], list(rig.rows("SELECT * FROM t WHERE t_bool IS NULL")[0][:8])
    assert before == [None] * 5 and math.isnan(single) and double == -math.inf


def test_text_goes_into_types_that_spark_does_not_have(rig: Rig) -> None:
    rig.rows("CREATE TYPE mood AS ENUM ('good', 'bad')")
    rig.rows("CREATE DOMAIN short AS varchar(5) CHECK (value <> 'x')")
    rig.rows("CREATE TABLE t (id uuid, doc jsonb, host inet, feeling mood, word short, letter char(3), list mood[])")
    query = Query(rig)
    query.write(
        "SELECT '7a3e2f1c-0000-4000-8000-000000000001' AS id, '{\"a\": 1}' AS doc, '10.0.0.1' AS host,"
        " 'bad' AS feeling, 'abc' AS word, 'z' AS letter, array('good', null) AS list"
    )
    ((doc, feeling, word, letter, moods),) = query.rows("doc, feeling, word, letter, list::text")
    assert (doc, feeling, word, letter, moods) == ({"a": 1}, "bad", "abc", "z  ", "{good,NULL}")


@pytest.mark.representatives(3)
@pytest.mark.parametrize(
    ("columns", "select", "what", "hint"),
    [
        ("n int", "1L AS n", 'column "n" has type bigint, public.t has integer', "TYPE bigint"),
        ("n numeric(5,2)", "1.0BD AS n, 2 AS m", 'public.t has no column "m"', "ADD COLUMN m integer"),
        ("n numeric(5,2)", "CAST(1 AS decimal(10,2)) AS n", "public.t has numeric(5,2)", "cast it"),
        ("n timestamp", "TIMESTAMP '2026-01-01 00:00:00' AS n", "timestamp without time zone", "cast it"),
        ("n int", "'1' AS n", 'column "n" has type string', "cast it"),
        ("n int, m int NOT NULL", "1 AS n", 'column "m" of public.t is NOT NULL and has no default', "add it"),
        ("n int GENERATED ALWAYS AS IDENTITY", "1 AS n", 'column "n" of public.t is generated', "drop it"),
        ("n interval", "INTERVAL '1' DAY AS n", "which has no counterpart", "cast it"),
        ('"N" int, "n" int', "1 AS n, 2 AS N", 'but for case: "n", "N"', "rename"),
        ("n name", "'1' AS n", "public.t has name", "cast it"),
        ("n interval[]", "array('1 day') AS n", "public.t has interval[]", "cast it"),
    ],
)  # fmt: skip
def test_a_column_that_does_not_fit_is_refused_before_anything_is_acquired(
    rig: Rig, columns: str, select: str, what: str, hint: str
) -> None:
    rig.rows(f"CREATE TABLE t ({columns})")
    frame = (
        rig.spark.sql("SELECT 1 AS a").selectExpr(*[select]) if "," not in select else rig.spark.sql(f"SELECT {select}")
    )
    found = rig.sink(table="t").problems("p", schema_of(frame.schema))
    assert any(what in each and hint in advice for each, advice in found), found
    assert rig.rows("SELECT * FROM einmal_commits") == []


def test_what_is_no_table_is_refused(rig: Rig) -> None:
    rig.rows("CREATE TABLE base (n int)")
    rig.rows("CREATE VIEW t AS SELECT * FROM base")
    rig.rows("CREATE UNLOGGED TABLE u (n int)")
    rig.rows("CREATE RULE r AS ON INSERT TO base DO ALSO NOTHING")
    schema = rig.spark.sql("SELECT 1 AS n").schema
    rig.rows("CREATE TABLE p (n int) PARTITION BY LIST (n)")
    rig.rows("CREATE TABLE p_1 PARTITION OF p FOR VALUES IN (1) PARTITION BY LIST (n)")
    rig.rows("CREATE UNLOGGED TABLE p_1_1 PARTITION OF p_1 FOR VALUES IN (1)")
    for table, what in (
        ("t", "is a view"),
        ("u", "is UNLOGGED"),
        ("base", "has rules"),
        ("p", "has the partition p_1_1, which is UNLOGGED"),
    ):
        ((found, _),) = rig.sink(table=table).problems("p", schema_of(schema))
        assert what in found


def test_a_look_at_a_partitioned_table_locks_no_partition_until_the_commit(rig: Rig) -> None:
    """A maintenance of cold partitions in one transaction would wait for the pipeline, and it for them."""
    rig.rows("CREATE TABLE t (n int UNIQUE) PARTITION BY LIST (n)")
    for number in range(3):
        rig.rows(f"CREATE TABLE t_{number} PARTITION OF t FOR VALUES IN ({number})")
    query = Query(rig)
    query.driver.stage(0, rig.spark.sql("SELECT 1 AS n"))
    query.driver.record(0)
    locked = "SELECT DISTINCT relation::regclass::text FROM pg_locks l JOIN pg_class c ON c.oid = l.relation"
    names = {name for (name,) in rig.rows(f"{locked} WHERE c.relkind = 'r' AND c.relname LIKE 't_%'")}
    query.driver.commit()
    assert names == {"t_1"}


def test_a_table_that_was_dropped_with_its_rows_is_not_made_anew(rig: Rig) -> None:
    query = Query(rig)
    query.write("SELECT 1 AS n")
    rig.rows("DROP TABLE t")
    why = "table t does not exist, and by the record of .* batches up to 0 are committed"
    with pytest.raises(PreflightFailed, match=why):
        query.write("SELECT 2 AS n")
    schema = rig.spark.sql("SELECT 1 AS n").schema
    ((found, hint),) = rig.sink(table="t").problems(query.driver.name, schema_of(schema))
    assert "does not exist" in found and "pipeline reset" in hint
    assert rig.rows("SELECT to_regclass('t')") == [(None,)]
    rig.rows("CREATE TABLE t (n int)")
    assert rig.sink(table="t").problems(query.driver.name, schema_of(schema)) == []


def test_floats_and_times_far_away_keep_their_values(rig: Rig) -> None:
    rig.rows("CREATE TABLE t (f float8, g real, d date, s timestamptz)")
    query = Query(rig)
    query.write(
        "SELECT 0.1F AS f, 0.1F AS g, date_from_unix_date(11248738) AS d, timestamp_micros(971890963200000000) AS s"
    )
    assert query.rows("f = 0.1::real, g = 0.1::real, d::text, s = '32768-01-01 00:00:00+00'") == [
        (True, True, "32768-01-01", True)
    ]


def test_upsert_needs_a_unique_key_and_scd2_its_columns(rig: Rig) -> None:
    rig.rows("CREATE TABLE t (id int, name text, valid_from timestamptz)")
    rig.rows("CREATE UNIQUE INDEX ON t (id) WHERE name IS NOT NULL")
    schema = rig.spark.sql("SELECT 1 AS id, 'a' AS name, now() AS valid_from").schema
    found = rig.sink(table="t", mode="upsert", key="id").problems("p", schema_of(schema))
    assert found == [("public.t has no unique key (id)", "ALTER TABLE public.t ADD UNIQUE (id)")]
    found = rig.sink(table="t", mode="scd2", key="id").problems("p", schema_of(schema))
    assert [what for what, _ in found] == [
        "mode scd2 needs column valid_to in public.t",
        "mode scd2 needs column is_current in public.t",
    ]
    found = rig.sink(table="t", mode="upsert", key="nr", order="at", delete="name").problems("p", schema_of(schema))
    assert [what for what, _ in found][:3] == [
        'key needs column "nr", which the query does not have',
        'order needs column "at", which the query does not have',
        'option "delete" names "name", which is not boolean',
    ]


def test_a_missing_table_is_proposed_where_it_may_not_be_created(rig: Rig) -> None:
    schema = rig.spark.sql("SELECT 1 AS id, array(1) AS `The List`").schema
    ((what, hint),) = rig.sink(table="t", mode="upsert", key="id", createTable="false").problems("p", schema_of(schema))
    assert what == "table t does not exist, and createTable is false"
    assert hint == 'CREATE TABLE "t" ("id" integer, "The List" integer[], PRIMARY KEY ("id"))'
    assert rig.rows("SELECT to_regclass('t')") == [(None,)]


def test_a_column_that_appears_while_the_query_runs_ends_it_with_the_statement_to_run(rig: Rig) -> None:
    query = Query(rig)
    query.write("SELECT 1 AS a")
    with pytest.raises(PreflightFailed, match="ALTER TABLE public.t ADD COLUMN b text"):
        query.write("SELECT 2 AS a, 'x' AS b")
    assert query.rows() == [(1,)]


@pytest.mark.representatives(2)
@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("v varchar(3)", "'secret'", r"string_data_right_truncation.*\[.*column v\]"),
        ("v jsonb", "'{secret'", r"invalid_text_representation \(SQLSTATE 22P02\).*column v"),
        ("v uuid", "'secret'", "22P02.*column v"),
        ("v text", "concat('secret', char(0))", 'column "v" has the character NUL'),
        ("v text CHECK (v <> 'secret')", "'secret'", "check_violation.*constraint t_v_check"),
        ("v text NOT NULL", "nullif('secret', 'secret')", 'null value in column "v"'),
        ("v text UNIQUE", "explode(array('secret', 'secret'))", "unique_violation.*constraint t_v_key"),
        ("v text REFERENCES other DEFERRABLE INITIALLY DEFERRED", "'secret'", "foreign_key_violation.*t_v_fkey"),
    ],
)  # fmt: skip
def test_a_row_that_the_table_rejects_fails_the_batch_and_no_message_has_its_value(
    rig: Rig, column: str, value: str, said: str
) -> None:
    rig.rows("CREATE TABLE other (v text PRIMARY KEY)")
    rig.rows(f"CREATE TABLE t ({column})")
    driver = rig.driver(table="t")
    driver.start()
    with pytest.raises(Exception, match=said) as caught:
        driver.batch(0, rig.spark.sql(f"SELECT {value} AS v"))
    if isinstance(caught.value, SinkFailed):
        assert caught.value.will_again
        assert caught.value.__cause__ is None
    else:
        assert "RowRefused: " in str(caught.value)
    assert "secret" not in str(caught.value)
    driver.abort()
    driver.batch(0, rig.spark.sql("SELECT CAST(null AS string) AS v WHERE false"))
    assert rig.staging() == []


@pytest.mark.representatives(1)
@pytest.mark.parametrize("mode", ["append", "upsert", "scd2"])
def test_nested_columns_and_odd_names_are_written_twice_in_every_mode(rig: Rig, mode: str) -> None:
    """Through Spark: test_accepted_columns has all others without it."""
    name = "o'dd. \\ %s \" ``ö``"
    query = Query(rig, mode=mode, **({} if mode == "append" else {"key": "the key"}))
    for number, (key, value) in enumerate([("a", 1), ("a", 2), ("b", 2)]):
        query.write(
            f"SELECT '{key}' AS `the key`, named_struct('x.y', {value}, 'z', array({value})) AS `{name}`,"
            f" map('k', {value}) AS `m%`, array(named_struct('n', {value})) AS `a.b`,"
            f" parse_json('[{value}]') AS `*`,"
            f" TIMESTAMP_NTZ '2026-01-0{number + 1} 00:00:00' AS valid_from"
        )
    expected = [("a", 1), ("a", 2), ("b", 2)]
    columns = '"the key", "o\'dd. \\ %s "" `ö`", "m%", "a.b", "*"'
    assert query.rows(columns, "valid_from") == [
        (key, {"x.y": value, "z": [value]}, {"k": value}, [{"n": value}], [value])
        for key, value in (expected[1:] if mode == "upsert" else expected)
    ]
