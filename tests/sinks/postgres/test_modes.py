"""What a batch makes of a table: append, upsert and delete by key, SCD type 2; and what it refuses."""

from __future__ import annotations

from typing import Final

import pytest

from einmal.sinks.commit_point import SinkFailed
from tests.sinks.postgres.rig import Query, Rig

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_append_fills_defaults_and_generated_columns(rig: Rig) -> None:
    rig.rows(
        "CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY, name text NOT NULL, length int GENERATED ALWAYS AS"
        " (char_length(name)) STORED, at timestamptz NOT NULL DEFAULT now(), note text)"
    )
    query = Query(rig)
    query.write("SELECT col1 AS name FROM VALUES ('a'), ('bcd') ORDER BY 1")
    assert query.rows("name, length, note, at IS NOT NULL", "name") == [("a", 1, None, True), ("bcd", 3, None, True)]


_WITHOUT_EVEN: Final = (
    "CREATE TABLE t (n bigint UNIQUE)",
    "CREATE FUNCTION leave_out() RETURNS trigger LANGUAGE plpgsql AS"
    " $$ BEGIN RETURN CASE WHEN NEW.n % 2 = 0 THEN NULL ELSE NEW END; END $$",
    "CREATE TRIGGER filter BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION leave_out()",
)


def test_rows_that_a_trigger_leaves_out_of_an_append_are_not_missed(rig: Rig) -> None:
    for statement in _WITHOUT_EVEN:
        rig.rows(statement)
    query = Query(rig)
    query.write("SELECT id AS n FROM range(10)")
    assert query.rows() == [(1,), (3,), (5,), (7,), (9,)]


@pytest.mark.representatives(2)
@pytest.mark.parametrize("options", [{}, {"mode": "upsert", "key": "n"}], ids=["append", "upsert"])
@pytest.mark.parametrize("statements", [(), _WITHOUT_EVEN], ids=["", "and a trigger leaves rows out"])
def test_staged_rows_that_are_gone_stop_their_batch(
    rig: Rig, options: dict[str, str], statements: tuple[str, ...]
) -> None:
    for statement in statements:
        rig.rows(statement)
    query = Query(rig, **options)
    query.driver.stage(0, rig.frame(range(10)))
    (staging,) = rig.staging()
    rig.rows(f"DELETE FROM {staging} WHERE ctid = (SELECT min(ctid) FROM {staging})")
    with pytest.raises(SinkFailed, match="9 rows are staged, the tasks reported 10"):
        query.driver.record(0)
    query.driver.abort()
    assert query.rows() == []


def test_a_partitioned_table_and_quoted_names_are_written(rig: Rig) -> None:
    rig.rows('CREATE SCHEMA "My Schema"')
    rig.rows('CREATE TABLE "My Schema"."Orders ""x""" ("Key" int, "select" text) PARTITION BY RANGE ("Key")')
    rig.rows(
        'CREATE TABLE "My Schema".low PARTITION OF "My Schema"."Orders ""x""" FOR VALUES FROM (0) TO (10)',
    )
    rig.rows('CREATE TABLE "My Schema".rest PARTITION OF "My Schema"."Orders ""x""" DEFAULT')
    query = Query(rig, table='"My Schema"."Orders ""x"""')
    query.write("SELECT col1 AS `Key`, col2 AS `select` FROM VALUES (1, 'a'), (99, 'b')")
    assert rig.rows('SELECT * FROM "My Schema".low') == [(1, "a")]
    assert rig.rows('SELECT * FROM "My Schema".rest') == [(99, "b")]


def test_upsert_inserts_updates_and_deletes_and_triggers_fire_once_per_row(rig: Rig) -> None:
    rig.rows("CREATE TABLE t (id int PRIMARY KEY, name text, note text DEFAULT 'new')")
    rig.rows("CREATE TABLE fired (id int, op text)")
    rig.rows(
        "CREATE FUNCTION note_op() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO fired VALUES (coalesce(NEW.id, OLD.id), TG_WHEN || ' ' || TG_OP);"
        " RETURN coalesce(NEW, OLD); END $$"
    )
    for when in ("BEFORE", "AFTER"):
        rig.rows(
            f"CREATE TRIGGER t_{when} {when} INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION note_op()"
        )
    query = Query(rig, mode="upsert", key="id", delete="gone")
    query.write("SELECT col1 AS id, col2 AS name, false AS gone FROM VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    rig.rows("DELETE FROM fired")
    query.write(
        "SELECT col1 AS id, col2 AS name, col3 AS gone FROM VALUES (1, 'A', false), (2, null, true), (4, 'd', null),"
        " (5, 'never', true)"
    )
    assert query.rows() == [(1, "A", "new"), (3, "c", "new"), (4, "d", "new")]
    assert rig.rows("SELECT * FROM fired ORDER BY 1, 2") == [
        (1, "AFTER UPDATE"),
        (1, "BEFORE UPDATE"),
        (2, "AFTER DELETE"),
        (2, "BEFORE DELETE"),
        (4, "AFTER INSERT"),
        (4, "BEFORE INSERT"),
    ]


def test_the_last_of_several_rows_of_a_key_wins_by_the_order_columns(rig: Rig) -> None:
    query = Query(rig, mode="upsert", key="id", order="partition,offset", delete="gone")
    query.write(
        "SELECT col1 AS id, col2 AS name, col3 AS partition, col4 AS offset, col5 AS gone FROM VALUES"
        " (1, 'first', 0, 10L, false), (1, 'last', 0, 12L, false), (1, 'middle', 0, 11L, true),"
        " (2, 'here', 1, 5L, false), (2, 'gone', 1, 6L, true)"
    )
    assert query.rows("id, name") == [(1, "last")]


def test_several_rows_of_a_key_without_an_order_are_refused(rig: Rig) -> None:
    query = Query(rig, mode="upsert", key="id")
    query.write("SELECT 1 AS id, 'a' AS name")
    reason = query.refused("SELECT col1 AS id, col2 AS name FROM VALUES (1, 'secret b'), (1, 'secret c')")
    assert "1 keys (id) have several rows" in reason and '"order"' in reason and "secret" not in reason
    assert query.rows() == [(1, "a")]
    query.write("SELECT 2 AS id, 'b' AS name")
    assert query.rows() == [(1, "a"), (2, "b")]


def test_rows_of_a_key_with_equal_order_and_null_keys_are_refused(rig: Rig) -> None:
    query = Query(rig, mode="upsert", key="id", order="at")
    query.write("SELECT 1 AS id, 'a' AS name, 1 AS at")
    reason = query.refused("SELECT col1 AS id, col2 AS name, 5 AS at FROM VALUES (1, 'b'), (1, 'c')")
    assert "with equal at" in reason
    reason = query.refused("SELECT CAST(null AS int) AS id, 'b' AS name, 1 AS at")
    assert "1 rows have NULL in their key (id)" in reason


def test_a_table_of_keys_alone_can_be_upserted(rig: Rig) -> None:
    query = Query(rig, mode="upsert", key="id")
    query.write("SELECT id FROM range(5)")
    query.write("SELECT id FROM range(3, 8)")
    assert query.rows() == [(n,) for n in range(8)]


HISTORY = "id, city, valid_from::text, valid_to::text, is_current"
_VERSION = (
    "SELECT col1 AS id, col2 AS city, col3 AS gone,"
    " TIMESTAMP_NTZ '2026-01-01 00:00:00' + make_dt_interval(col4) AS valid_from FROM VALUES"
)


def test_scd2_keeps_every_version_of_a_key_and_ends_it_when_the_next_begins(rig: Rig) -> None:
    query = Query(rig, mode="scd2", key="id", delete="gone")
    query.write(f"{_VERSION} (1, 'Ulm', false, 0), (2, 'Bonn', false, 0), (3, 'Kiel', false, 0), (4, 'Hof', false, 0)")
    query.write(
        f"{_VERSION} (1, 'Ulm', false, 1), (1, 'Trier', false, 2), (1, 'Trier', false, 3), (1, 'Ulm', false, 4),"
        " (2, null, true, 1), (2, null, true, 2), (3, null, true, 1), (3, 'Kiel', false, 5), (9, null, true, 1)"
    )
    day = "2026-01-0{} 00:00:00".format
    assert query.rows(HISTORY, "id, valid_from") == [
        (1, "Ulm", day(1), day(3), False),
        (1, "Trier", day(3), day(5), False),
        (1, "Ulm", day(5), None, True),
        (2, "Bonn", day(1), day(2), False),
        (3, "Kiel", day(1), day(2), False),
        (3, "Kiel", day(6), None, True),
        (4, "Hof", day(1), None, True),
    ]


def test_scd2_refuses_to_rewrite_history_and_ambiguous_versions(rig: Rig) -> None:
    query = Query(rig, mode="scd2", key="id", delete="gone")
    query.write(f"{_VERSION} (1, 'Ulm', false, 5)")
    assert "1 rows are not later than the current version" in query.refused(f"{_VERSION} (1, 'Hof', false, 5)")
    assert "with equal valid_from" in query.refused(f"{_VERSION} (1, 'Hof', false, 6), (1, 'Kiel', false, 6)")
    assert query.rows("id, city") == [(1, "Ulm")]


def test_scd2_refuses_a_row_before_the_end_of_a_deleted_key(rig: Rig) -> None:
    query = Query(rig, mode="scd2", key="id", delete="gone")
    query.write(f"{_VERSION} (1, 'Ulm', false, 0), (1, null, true, 5), (2, 'Bonn', false, 0)")
    for late in ("(1, 'Hof', false, 3)", "(1, null, true, 4)"):
        reason = query.refused(f"{_VERSION} (2, 'Kiel', false, 9), {late}")
        assert "1 rows are earlier than the end of the last version of their key (id)" in reason
    query.write(f"{_VERSION} (1, 'Trier', false, 5)")
    day = "2026-01-0{} 00:00:00".format
    assert query.rows(HISTORY, "id, valid_from") == [
        (1, "Ulm", day(1), day(6), False),
        (1, "Trier", day(6), None, True),
        (2, "Bonn", day(1), None, True),
    ]


def test_scd2_finds_late_rows_of_deleted_keys_by_an_index(rig: Rig) -> None:
    query = Query(rig, mode="scd2", key="id", delete="gone")
    query.write(f"{_VERSION} (1, 'Ulm', false, 0)")
    definitions = [text for (text,) in rig.rows("SELECT indexdef FROM pg_indexes WHERE tablename = 't'")]
    assert any(text.endswith("(id, valid_to)") for text in definitions), definitions


def test_scd2_compares_null_and_composite_keys(rig: Rig) -> None:
    query = Query(rig, mode="scd2", key="a,b")
    at = "TIMESTAMP '2026-01-01 00:00:00Z' + make_dt_interval(col4) AS valid_from"
    query.write(
        f"SELECT col1 AS a, col2 AS b, CAST(col3 AS string) AS c, {at} FROM VALUES (1, 1, null, 0), (1, 2, 'x', 0)"
    )
    query.write(
        f"SELECT col1 AS a, col2 AS b, CAST(col3 AS string) AS c, {at} FROM VALUES (1, 1, null, 1), (1, 2, null, 1)"
    )
    assert query.rows("a, b, c, is_current", "a, b, valid_from") == [
        (1, 1, None, True),
        (1, 2, "x", False),
        (1, 2, None, True),
    ]


def test_an_empty_batch_advances_the_record_alone(rig: Rig) -> None:
    driver = rig.driver()
    driver.start()
    driver.batch(0, rig.frame(range(3)))
    driver.batch(1, rig.frame([]))
    assert driver.outputs == ()
    assert rig.numbers() == [0, 1, 2]
    assert rig.committed_batch() == 1
    assert rig.staging() == []
