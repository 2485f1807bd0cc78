"""Rows that a table rejects, in every mode: all others are loaded, and the outbox has each rejected one once."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from einmal.pipeline.dead_letters import RejectedRow, ToleranceExceeded
from einmal.sinks.commit_point import SinkFailed
from einmal.spark.environment.plans.row_schemas import schema_of
from tests.sinks.postgres.rig import Query, Rig
from tests.sinks.postgres.server import PASSWORD
from tests.suite.shared import unique

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOLERANT = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": "bad"}
RECORD = "named_struct('topic', 'in', 'partition', 0, 'offset', CAST(at AS bigint)) AS einmal_record"


class Tolerant(Query):
    """A pipeline that tolerates rejected rows. Queries have a column ``at``, the offset of the row's record."""

    def __init__(self, rig: Rig, **options: str) -> None:
        super().__init__(rig, **TOLERANT, **options)

    def rejected(self, query: str) -> dict[int, str]:
        """Write a batch; why each record was rejected."""
        self.write(f"SELECT * EXCEPT (at), {RECORD} FROM ({query})")
        found = self.driver.commit_point.rejected(self.batch_id - 1)
        self.messages = [each.message for each in found]
        assert {(each.topic, each.partition) for each in found} <= {("in", 0)}
        assert len({each.offset for each in found}) == len(found)
        return {each.offset: each.exception.removeprefix("postgres.") for each in found}


def test_rows_that_break_constraints_are_rejected_and_the_others_are_loaded(rig: Rig) -> None:
    rig.rows("CREATE TABLE owner (name text PRIMARY KEY)")
    rig.rows("INSERT INTO owner VALUES ('a')")
    rig.rows(
        "CREATE TABLE t (id int UNIQUE, owner text NOT NULL REFERENCES owner, amount int CHECK (amount < 100),"
        " half int GENERATED ALWAYS AS (1000 / (amount - 50)) STORED)"
    )
    rig.rows("INSERT INTO t VALUES (7, 'a', 1)")
    query = Tolerant(rig)
    rejected = query.rejected(
        "SELECT col1 AS id, col2 AS owner, col3 AS amount, col1 AS at FROM VALUES (1, 'a', 1), (2, null, 1),"
        " (3, 'secret', 1), (4, 'a', 100), (5, 'a', 50), (6, 'a', 2), (7, 'a', 3)"
    )
    assert rejected == {
        2: "not_null_violation",
        3: "foreign_key_violation",
        4: "check_violation",
        5: "division_by_zero",
        7: "unique_violation",
    }
    assert query.rows("id, amount") == [(1, 1), (6, 2), (7, 1)]
    assert not any("secret" in each for each in query.messages)
    assert any("t_amount_check" in each for each in query.messages)


def test_values_that_only_the_types_of_the_table_reject_are_rejected_row_by_row(rig: Rig) -> None:
    rig.rows("CREATE TYPE colour AS ENUM ('red', 'blue')")
    rig.rows("CREATE DOMAIN even AS int CHECK (VALUE % 2 = 0)")
    rig.rows(
        "CREATE TABLE t (id int, name varchar(5), uid uuid, doc jsonb, colour colour, even even, tags varchar(3)[],"
        " uids uuid[])"
    )
    query = Tolerant(rig)
    good = "'abcde', '6f9619ff-8b86-d011-b42d-00c04fc964ff', '{\"a\": 1}', 'red', 2, array('abc'), array()"
    columns = ["name", "uid", "doc", "colour", "even", "tags", "uids"]
    wrong = {
        "name": "'secret'",
        "uid": "'secret'",
        "doc": "'{secret'",
        "colour": "'secret'",
        "even": "3",
        "tags": "array('a', 'secret')",
        "uids": "array('secret')",
    }
    values = [f"(0, {good})"]
    for number, column in enumerate(columns, 1):
        row = dict(zip(columns, good.split(", ", 6)[:5] + ["array('abc')", "array()"], strict=True))
        values.append(f"({number}, {', '.join((row | {column: wrong[column]}).values())})")
    names = ", ".join(f"col{number + 2} AS {name}" for number, name in enumerate(columns) if name != "uids")
    rejected = query.rejected(
        f"SELECT col1 AS id, {names}, CAST(col8 AS array<string>) AS uids, col1 AS at FROM VALUES {', '.join(values)}"
    )
    assert rejected == {
        1: "string_data_right_truncation",
        2: "invalid_text_representation",
        3: "invalid_text_representation",
        4: "invalid_text_representation",
        5: "check_violation",
        6: "string_data_right_truncation",
        7: "invalid_text_representation",
    }
    assert query.rows("id, name, doc, tags") == [(0, "abcde", {"a": 1}, ["abc"])]
    assert not any("secret" in each for each in query.messages)


def test_rows_that_copy_cannot_take_are_rejected(rig: Rig) -> None:
    query = Tolerant(rig)
    rejected = query.rejected(
        "SELECT id, CASE id WHEN 1 THEN concat('secret', char(0)) WHEN 2 THEN CAST(X'ff41' AS string) ELSE 'fine' END"
        " AS name, CASE id WHEN 3 THEN DATE '-0004-01-01' WHEN 5 THEN DATE '+12345-01-01' ELSE DATE '2026-01-01' END"
        " AS day, CASE id WHEN 4 THEN TIMESTAMP '-0004-01-01' ELSE TIMESTAMP '2026-01-01' END AS time,"
        " CASE id WHEN 6 THEN array('a', concat('b', char(0))) ELSE array('a') END AS tags,"
        " CASE id WHEN 2 THEN null WHEN 8 THEN array(null, DATE '-0004-01-01') ELSE array(DATE '+45678-01-01') END"
        " AS days,"
        " id AS at FROM range(9)"
    )
    assert rejected == {
        1: "character_not_in_repertoire",
        2: "character_not_in_repertoire",
        3: "datetime_field_overflow",
        4: "datetime_field_overflow",
        6: "character_not_in_repertoire",
        8: "datetime_field_overflow",
    }
    assert query.rows("id, name, day::text") == [
        (0, "fine", "2026-01-01"),
        (5, "fine", "12345-01-01"),
        (7, "fine", "2026-01-01"),
    ]
    assert 'column "name"' in query.messages[0]


def test_of_two_rows_that_break_a_rule_together_the_later_record_is_rejected(rig: Rig) -> None:
    rig.rows("CREATE TABLE t (id int, name text UNIQUE)")
    query = Tolerant(rig)
    rejected = query.rejected(
        "SELECT col1 AS id, col2 AS name, 10 - col1 AS at FROM VALUES (1, 'x'), (2, 'x'), (3, 'y'), (4, 'x')"
    )
    assert rejected == {8: "unique_violation", 9: "unique_violation"}
    assert query.rows() == [(3, "y"), (4, "x")]


def test_deferred_constraints_and_triggers_reject_rows_too(rig: Rig) -> None:
    rig.rows("CREATE TABLE t (id int UNIQUE DEFERRABLE INITIALLY DEFERRED, name text)")
    rig.rows("CREATE TABLE log (id int)")
    rig.rows(
        "CREATE FUNCTION check_name() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO log VALUES (NEW.id);"
        " IF NEW.name = 'raised' THEN RAISE EXCEPTION 'secret %', NEW.name; END IF;"
        " IF NEW.name = 'state' THEN RAISE EXCEPTION 'secret' USING ERRCODE = 'check_violation'; END IF;"
        " RETURN NEW; END $$"
    )
    rig.rows("CREATE TRIGGER checks BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION check_name()")
    query = Tolerant(rig)
    rejected = query.rejected(
        "SELECT col1 AS id, col2 AS name, col3 AS at FROM VALUES (1, 'a', 1), (1, 'b', 2), (3, 'raised', 3),"
        " (4, 'state', 4), (5, 'c', 5)"
    )
    assert rejected == {2: "unique_violation", 3: "raise_exception", 4: "check_violation"}
    assert not any("secret" in each for each in query.messages)
    assert query.rows() == [(1, "a"), (5, "c")]
    # What a trigger has done for a rejected row is undone with it.
    assert rig.rows("SELECT id FROM log ORDER BY 1") == [(1,), (5,)]


def test_a_row_that_refers_to_a_later_one_of_its_batch_is_loaded_beside_a_rejected_row(rig: Rig) -> None:
    rig.rows("CREATE TABLE t (id bigint PRIMARY KEY, parent bigint REFERENCES t)")
    query = Tolerant(rig)
    rejected = query.rejected(
        "SELECT id, CASE WHEN id = 5 THEN 99 WHEN id < 9 THEN id + 1 END AS parent, id AS at FROM range(10)"
    )
    # 5 refers to nothing, 4 to 5, and so on.
    assert rejected == dict.fromkeys(range(6), "foreign_key_violation")
    assert query.rows("id") == [(number,) for number in (6, 7, 8, 9)]


def test_an_upsert_rejects_the_last_row_of_a_key_and_rows_without_a_key(rig: Rig) -> None:
    rig.rows("CREATE TABLE t (id int PRIMARY KEY, amount int CHECK (amount < 100))")
    query = Tolerant(rig, mode="upsert", key="id", order="at2", delete="gone")
    values = "SELECT col1 AS id, col2 AS amount, col3 AS at2, col4 AS gone, col3 AS at FROM VALUES"
    assert query.rejected(f"{values} (1, 1, 0, false), (2, 2, 1, false), (3, 3, 2, false)") == {}
    rejected = query.rejected(
        f"{values} (1, 100, 10, false), (2, 5, 11, false), (2, 200, 12, false), (3, 300, 13, false), (3, 4, 14, false),"
        " (null, 1, 15, false), (5, 500, 16, true), (6, 6, 17, false), (2, 7, 9, true)"
    )
    assert rejected == {10: "check_violation", 12: "check_violation", 15: "null_value_not_allowed"}
    assert query.rows() == [(1, 1), (2, 2), (3, 4), (6, 6)]


def test_scd2_rejects_all_rows_of_a_key_and_late_rows_alone(rig: Rig) -> None:
    rig.rows(
        "CREATE TABLE t (id int, city varchar(6), valid_from timestamp, valid_to timestamp, is_current boolean,"
        " CHECK (city <> 'Nowhere'), CHECK (city <> 'Never'))"
    )
    rig.rows("CREATE UNIQUE INDEX ON t (id) WHERE is_current")
    query = Tolerant(rig, mode="scd2", key="id")
    values = (
        "SELECT col1 AS id, col2 AS city, TIMESTAMP_NTZ '2026-01-01 00:00:00' + make_dt_interval(col3) AS valid_from,"
        " col4 AS at FROM VALUES"
    )
    assert query.rejected(f"{values} (1, 'Ulm', 5, 0), (2, 'Bonn', 5, 1)") == {}
    rejected = query.rejected(
        f"{values} (1, 'Trier', 6, 10), (1, 'Never', 7, 11), (2, 'Hof', 4, 12), (2, 'Kiel', 6, 13),"
        " (3, 'Berlin', 1, 14), (4, 'Stuttgart', 1, 15), (4, 'Bonn', 2, 16), (null, 'Ulm', 1, 17)"
    )
    assert rejected == {
        10: "check_violation",
        11: "check_violation",
        12: "late_version",
        15: "string_data_right_truncation",
        17: "null_value_not_allowed",
    }
    current = "id, city, extract(day FROM valid_from)::int, is_current"
    assert query.rows(current, "id, valid_from") == [
        (1, "Ulm", 6, True),
        (2, "Bonn", 6, False),
        (2, "Kiel", 7, True),
        (3, "Berlin", 2, True),
        (4, "Bonn", 3, True),
    ]


def test_tables_of_the_same_names_are_left_alone_whatever_the_search_path(rig: Rig) -> None:
    rig.rows(f"ALTER DATABASE {rig.database} SET search_path = public, pg_temp")
    names = ("einmal_rows", "einmal_numbered", "einmal_versions")
    for name in names:
        rig.rows(f"CREATE TABLE {name} (mine int)")
    rig.rows(
        "CREATE TABLE t (id int, city varchar(4), valid_from timestamp, valid_to timestamp, is_current boolean,"
        " CHECK (id > 0))"
    )
    rig.rows("CREATE UNIQUE INDEX ON t (id) WHERE is_current")
    query = Tolerant(rig, mode="scd2", key="id")
    rejected = query.rejected(
        "SELECT col1 AS id, col2 AS city, TIMESTAMP_NTZ '2026-01-01 00:00:00' AS valid_from, col3 AS at FROM VALUES"
        " (1, 'Ulm', 1), (-2, 'Bonn', 2), (3, 'Stuttgart', 3), (4, 'Kiel', 4)"
    )
    assert rejected == {2: "check_violation", 3: "string_data_right_truncation"}
    assert query.rows("id, city") == [(1, "Ulm"), (4, "Kiel")]
    assert [rig.rows(f"SELECT count(*) FROM {name}") for name in names] == [[(0,)]] * 3


def test_ambiguous_rows_of_a_key_stay_an_error(rig: Rig) -> None:
    query = Tolerant(rig, mode="upsert", key="id")
    with pytest.raises(SinkFailed, match="several rows in the batch"):
        query.rejected("SELECT col1 AS id, col2 AS name, col1 AS at FROM VALUES (1, 'a'), (1, 'b')")


@pytest.mark.long
def test_many_rejected_rows_are_found_among_many(rig: Rig) -> None:
    rig.rows("CREATE TABLE t (id bigint PRIMARY KEY, n bigint CHECK (n % 100 <> 99))")
    query = Tolerant(rig)
    rejected = query.rejected("SELECT id, id AS n, id AS at FROM range(5000)")
    assert set(rejected) == set(range(99, 5000, 100))
    assert query.rows("count(*)") == [(4950,)]


def test_more_rejected_rows_than_the_limit_abort_the_batch_and_nothing_is_there(rig: Rig) -> None:
    rig.rows("CREATE TABLE t (id bigint CHECK (id % 10 <> 9))")
    query = Tolerant(rig, **{"errors.deadletterqueue.limit": "9"})
    assert len(query.rejected("SELECT id, id AS at FROM range(90)")) == 9
    with pytest.raises(ToleranceExceeded, match=r"10 or more of 100 rows of batch 1 .*errors.deadletterqueue.limit"):
        query.rejected("SELECT id, id AS at FROM range(100)")
    query.driver.abort()
    assert query.rows("count(*)") == [(81,)]
    assert len(query.driver.commit_point.rejected(0)) == 9
    assert rig.rows("SELECT count(*), min(batch_id) FROM einmal_rejected") == [(9, 0)]
    assert rig.staging() == []


def test_the_outbox_has_the_rejected_rows_of_the_last_batch_of_each_pipeline(rig: Rig) -> None:
    rig.rows("CREATE TABLE t (id bigint CHECK (id % 10 <> 9))")
    query = Tolerant(rig)
    query.rejected("SELECT id, id AS at FROM range(30)")
    assert [each.offset for each in query.driver.commit_point.rejected(0)] == [9, 19, 29]
    query.rejected("SELECT id, id AS at FROM range(15)")
    assert query.driver.commit_point.rejected(0) == ()
    query.driver.restart()
    (found,) = query.driver.commit_point.rejected(1)
    assert found == RejectedRow("in", 0, 9, "postgres.check_violation", found.message)
    query.rejected("SELECT id, id AS at FROM range(5)")
    assert rig.rows("SELECT * FROM einmal_rejected") == []


def test_a_rejected_row_without_a_record_fails_the_batch(rig: Rig) -> None:
    rig.rows("CREATE TABLE t (id int CHECK (id < 3))")
    query = Tolerant(rig)
    with pytest.raises(SinkFailed, match="its einmal_record is NULL"):
        query.rejected("SELECT 3 AS id, CAST(null AS int) AS at")


def test_other_errors_than_those_of_rows_fail_the_batch(rig: Rig) -> None:
    rig.rows("CREATE TABLE t (id int)")
    rig.rows(
        "CREATE FUNCTION breaks() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " EXECUTE 'SELECT * FROM missing'; RETURN NEW; END $$"
    )
    rig.rows("CREATE TRIGGER checks BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION breaks()")
    query = Tolerant(rig)
    with pytest.raises(SinkFailed, match="undefined_table"):
        query.rejected("SELECT 3 AS id, 1 AS at")
    query.driver.abort()
    assert rig.rows("SELECT * FROM einmal_rejected") == []


def test_a_query_without_records_is_refused_with_a_hint(rig: Rig) -> None:
    schema = rig.spark.sql("SELECT 1 AS id, struct(1 AS topic) AS einmal_record").schema
    (found,) = rig.sink(None, **TOLERANT).problems("pipeline", schema_of(schema))
    assert "struct<topic:string,partition:int,offset:bigint>" in found[0] and "struct(topic, partition" in found[1]
    (found,) = rig.sink(None, **TOLERANT).problems("pipeline", schema_of(rig.frame(range(1)).schema))
    assert "has no column einmal_record" in found[0]


@pytest.mark.representatives(1)
@pytest.mark.parametrize("state", ["45000", "P0002", "ZZ999", "42501", "XX001"])
def test_a_trigger_rejects_a_row_with_any_sqlstate(rig: Rig, state: str) -> None:
    rig.rows("CREATE TABLE t (id bigint, name text)")
    rig.rows(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.name = 'secret' THEN"
        f" RAISE EXCEPTION 'not %', NEW.name USING ERRCODE = '{state}'; END IF; RETURN NEW; END $$"
    )
    rig.rows("CREATE TRIGGER refuses BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION refuse()")
    query = Tolerant(rig)
    rejected = query.rejected("SELECT id, IF(id = 2, 'secret', 'fine') AS name, id AS at FROM range(4)")
    assert list(rejected) == [2]
    assert state in query.messages[0]
    assert "secret" not in query.messages[0]
    assert query.rows("id") == [(0,), (1,), (3,)]


def test_what_a_trigger_raises_without_tolerance_stops_at_once_and_has_no_values(rig: Rig) -> None:
    rig.rows("CREATE TABLE t (id bigint)")
    rig.rows(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE EXCEPTION 'secret' USING ERRCODE = '45000'; END $$"
    )
    rig.rows("CREATE TRIGGER refuses BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION refuse()")
    with pytest.raises(SinkFailed) as caught:
        Query(rig).write("SELECT id FROM range(1)")
    assert caught.value.will_again
    assert caught.value.__cause__ is None
    assert "secret" not in str(caught.value)


def test_a_serialization_failure_that_a_trigger_raises_is_not_the_row_s(rig: Rig) -> None:
    rig.rows("CREATE TABLE t (id bigint)")
    rig.rows(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END $$"
    )
    rig.rows("CREATE TRIGGER refuses BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION refuse()")
    query = Tolerant(rig)
    with pytest.raises(SinkFailed) as caught:
        query.rejected("SELECT id, id AS at FROM range(2)")
    assert not caught.value.will_again


def _raises(state: str) -> str:
    return f"RAISE EXCEPTION 'secret %', NEW.id USING ERRCODE = '{state}'"


@pytest.mark.representatives(2)
@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (_raises("P0001"), "P0001"),
        (_raises("23505"), "23505"),
        # States that are in no class of rows: the second one is an error of the server, too.
        (_raises("45000"), "45000"),
        (_raises("42501"), "42501"),
        ("PERFORM 1 / 0", "22012"),
        # EXCEPTION WHEN OTHERS does not catch it.
        ("ASSERT false", "P0004"),
    ],
)
def test_every_kind_of_error_is_found_among_many_rows(rig: Rig, statement: str, expected: str) -> None:
    rig.rows("CREATE TABLE t (id bigint)")
    rig.rows(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF NEW.id % 10 = 3 THEN {statement}; END IF; RETURN NEW; END $$"
    )
    rig.rows("CREATE TRIGGER refuses BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION refuse()")
    query = Tolerant(rig)
    rejected = query.rejected("SELECT id, id AS at FROM range(200)")
    assert set(rejected) == set(range(3, 200, 10))
    assert all(f"SQLSTATE {expected}" in each and "secret" not in each for each in query.messages)
    assert query.rows("count(*)") == [(180,)]


_LONG = "array_join(transform(sequence(1, 3000), x -> sha2(CAST(x AS string), 256)), 'secret')"
_LOOKUP = [
    "CREATE TABLE known (v text, n int)",
    "INSERT INTO known VALUES ('secret', 1), ('secret', 2)",
    "CREATE FUNCTION look(text) RETURNS int LANGUAGE sql AS 'SELECT (SELECT n FROM known WHERE v = $1)'",
]


@pytest.mark.representatives(4)
@pytest.mark.parametrize(
    ("statements", "value", "state"),
    [
        ([*_LOOKUP, "CREATE TABLE t (v text CHECK (look(v) IS NULL))"], "'secret'", "21000"),
        (["CREATE TABLE t (v varchar(5))"], "'secret'", "22001"),
        (["CREATE TABLE t (v jsonb)"], "'\"secret\\\\u0000\"'", "22P05"),
        (["CREATE TABLE t (v text CHECK (length(v) = 0 OR v::date > '2000-01-01'))"], "'2026-02-30'", "22008"),
        (["CREATE TABLE t (v text CHECK (length(v) = 0 OR v::xml IS DOCUMENT))"], "'<secret'", "2200N"),
        (["CREATE TABLE t (v text, EXCLUDE USING btree (v WITH =))"], "'secret'", "23P01"),
        (["CREATE TABLE t (v text NOT NULL)"], "nullif('secret', 'secret')", "23502"),
        (["CREATE TABLE t (v text) PARTITION BY LIST (v)", "CREATE TABLE p PARTITION OF t FOR VALUES IN ('')"],
         "'secret'", "23514"),
        (["CREATE TABLE t (v text)", "CREATE INDEX ON t (v)"], _LONG, "54000"),
        (["CREATE TABLE t (v tsvector)"], _LONG, "54000"),
        (["CREATE TABLE t (v jsonb)"], "repeat('[', 1000000)", "54001"),
    ],
)  # fmt: skip
def test_every_class_of_errors_that_a_row_can_cause_makes_a_dead_letter(
    rig: Rig, statements: list[str], value: str, state: str
) -> None:
    for each in statements:
        rig.rows(each)
    good = "'1'" if "jsonb" in statements[-1] else "''"
    if state == "23P01":
        good = "nullif('', '')"
        rig.rows("INSERT INTO t VALUES ('secret')")
    rows = f"SELECT IF(id = 3, {value}, {good}) AS v, id AS at FROM range(20)"
    query = Tolerant(rig)
    assert set(query.rejected(rows)) == {3}
    assert f"SQLSTATE {state}" in query.messages[0] and "secret" not in query.messages[0]
    strict = Query(rig)
    with pytest.raises(Exception, match=f"SQLSTATE {state}") as caught:
        strict.write(f"SELECT v FROM ({rows})")
    assert "secret" not in str(caught.value)
    assert not isinstance(caught.value, SinkFailed) or caught.value.will_again


def test_a_row_that_a_policy_of_the_table_forbids_is_rejected_and_a_missing_permission_is_not(rig: Rig) -> None:
    rig.rows("CREATE TABLE t (v text)")
    rig.rows("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    rig.rows("CREATE POLICY p ON t USING (true) WITH CHECK (v <> 'secret')")
    role = unique("loader").replace("-", "_")
    rig.rows(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
    rig.rows(f"GRANT ALL ON SCHEMA public TO {role}")
    rig.rows(f"GRANT ALL ON DATABASE {rig.database} TO {role}")
    rig.rows(f"GRANT SELECT, INSERT ON t TO {role}")
    query = Tolerant(rig, user=role)
    rows = "SELECT IF(id % 10 = 3, 'secret', 'x') AS v, id AS at FROM range(40)"
    assert query.rejected(rows) == dict.fromkeys((3, 13, 23, 33), "insufficient_privilege")
    assert all("row-level security policy" in each and "secret" not in each for each in query.messages)
    rig.rows(f"REVOKE INSERT ON t FROM {role}")
    with pytest.raises(SinkFailed, match="permission denied") as caught:
        query.rejected(rows)
    assert caught.value.will_again


def test_a_sequence_that_has_come_to_its_end_is_no_row_s_fault(rig: Rig) -> None:
    rig.rows("CREATE SEQUENCE s MAXVALUE 10")
    rig.rows("CREATE TABLE t (v text CHECK (v <> '3'), n int DEFAULT nextval('s'))")
    query = Tolerant(rig)
    with pytest.raises(SinkFailed, match="2200H"):
        query.rejected("SELECT CAST(id AS string) AS v, id AS at FROM range(20)")


@pytest.mark.long
def test_a_server_without_plpgsql_rejects_rows_too(rig: Rig) -> None:
    rig.rows("DROP EXTENSION plpgsql")
    rig.rows("CREATE TABLE t (id bigint CHECK (id % 10 <> 3))")
    query = Tolerant(rig)
    assert set(query.rejected("SELECT id, id AS at FROM range(200)")) == set(range(3, 200, 10))
    assert query.rows("count(*)") == [(180,)]


def test_names_with_special_characters_have_rejected_rows_too(rig: Rig) -> None:
    name = "o'dd \\ $$ % {x} \u00f6"
    rig.rows(f'CREATE TABLE t (id bigint CHECK (id % 10 <> 3), "{name}" varchar(5))')
    query = Tolerant(rig)
    rejected = query.rejected(f"SELECT id, IF(id % 10 = 4, 'too long', 'ok') AS `{name}`, id AS at FROM range(100)")
    assert set(rejected) == {each for each in range(100) if each % 10 in (3, 4)}
    assert query.rows("count(*)") == [(80,)]


def test_an_error_that_is_no_rows_fails_the_batch_although_other_rows_are_rejected(rig: Rig) -> None:
    rig.rows("CREATE TABLE t (id bigint CHECK (id % 10 <> 3))")
    rig.rows(
        "CREATE FUNCTION breaks() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.id = 150 THEN EXECUTE 'SELECT * FROM missing'; END IF; RETURN NEW; END $$"
    )
    rig.rows("CREATE TRIGGER checks BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION breaks()")
    query = Tolerant(rig)
    with pytest.raises(SinkFailed, match="undefined_table"):
        query.rejected("SELECT id, id AS at FROM range(200)")
    query.driver.abort()
    assert query.rows("count(*)") == [(0,)]


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", ["numbers", "code", "start", "errors", "number"])
def test_columns_may_have_the_names_of_what_the_search_uses(rig: Rig, name: str) -> None:
    rig.rows(f"CREATE TABLE t ({name} bigint PRIMARY KEY CHECK ({name} % 10 <> 3), stop text NOT NULL)")
    query = Tolerant(rig, mode="upsert", key=name)
    rejected = query.rejected(f"SELECT id AS {name}, IF(id % 10 = 4, null, 'ok') AS stop, id AS at FROM range(100)")
    assert rejected == {
        each: "check_violation" if each % 10 == 3 else "not_null_violation"
        for each in range(100)
        if each % 10 in (3, 4)
    }
    assert query.rows("count(*)") == [(80,)]


@pytest.mark.representatives(1)
@pytest.mark.parametrize("mode", ["append", "upsert", "scd2"])
def test_a_rejected_row_costs_few_messages_to_the_server(rig: Rig, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    rig.rows(
        "CREATE TABLE t (id bigint CHECK (id % 20 <> 3), n bigint CHECK (n % 20 <> 7), valid_from timestamp,"
        " valid_to timestamp, is_current boolean)"
    )
    rig.rows(f"CREATE UNIQUE INDEX ON t (id) {'WHERE is_current' if mode == 'scd2' else ''}")
    query = Tolerant(rig, mode=mode, **({} if mode == "append" else {"key": "id"}))
    messages = 0
    execute = psycopg.Connection.execute

    def counting(*arguments: Any, **named: Any) -> Any:
        nonlocal messages
        messages += 1
        return execute(*arguments, **named)

    monkeypatch.setattr(psycopg.Connection, "execute", counting)
    rejected = query.rejected(
        "SELECT id, id AS n, TIMESTAMP_NTZ '2026-01-01 00:00:00' AS valid_from, id AS at FROM range(2000)"
    )
    assert set(rejected) == {each for each in range(2000) if each % 20 in (3, 7)}
    # An attempt, and what undoes it, for each of the two reasons; one for each row would be 400, halves about 1,800.
    assert messages < 80


@pytest.mark.long
def test_a_slow_search_ends_before_a_statement_timeout(rig: Rig) -> None:
    rig.rows("CREATE TABLE t (id bigint CHECK (id % 10 <> 3))")
    rig.rows(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.02); RETURN NEW; END $$"
    )
    rig.rows("CREATE TRIGGER slows BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION slow()")
    query = Tolerant(rig, statement_timeout="3s")
    rejected = query.rejected("SELECT id, id AS at FROM range(90)")
    assert set(rejected) == set(range(3, 90, 10))
    assert query.rows("count(*)") == [(81,)]


def test_keys_of_scd2_are_rejected_among_many(rig: Rig) -> None:
    rig.rows(
        "CREATE TABLE t (id bigint, city text CHECK (city <> 'Nowhere'), valid_from timestamp, valid_to timestamp,"
        " is_current boolean)"
    )
    rig.rows("CREATE UNIQUE INDEX ON t (id) WHERE is_current")
    query = Tolerant(rig, mode="scd2", key="id")
    rejected = query.rejected(
        "SELECT id, IF(id % 10 = 3, 'Nowhere', 'Ulm') AS city, TIMESTAMP_NTZ '2026-01-01 00:00:00' AS valid_from,"
        " id AS at FROM range(400)"
    )
    assert set(rejected) == set(range(3, 400, 10))
    assert query.rows("count(*)") == [(360,)]
    # Some keys change, some stay as they are, some are rejected with both of their rows, and stay current.
    rejected = query.rejected(
        "SELECT id % 400 AS id, CASE WHEN id % 10 = 4 AND id > 399 THEN 'Nowhere' WHEN id % 10 < 6 THEN 'Bonn'"
        " ELSE 'Ulm' END AS city, TIMESTAMP_NTZ '2026-01-02 00:00:00' + make_dt_interval(0, id) AS valid_from,"
        " id AS at FROM range(800) WHERE id % 10 <> 3"
    )
    assert set(rejected) == {each for each in range(800) if each % 10 == 4}
    counted = "SELECT city, is_current, count(*) FROM t GROUP BY 1, 2 ORDER BY 1, 2"
    assert rig.rows(counted) == [("Bonn", True, 160), ("Ulm", False, 160), ("Ulm", True, 200)]
