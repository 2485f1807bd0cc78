"""What the preflight accepts, of names and types of columns, is written twice in every mode; what it refuses, it
refuses before the first row, and names the column."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import pyarrow
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from psycopg import sql
from pyspark.sql.pandas.types import from_arrow_schema

from einmal.sinks.commit_point import SinkError
from einmal.sinks.rejections import RECORD
from einmal.spark.environment.plans.row_schemas import schema_of
from tests.sinks.local_tasks import local_session
from tests.sinks.postgres.rig import NAME, Driver, Rig
from tests.sinks.postgres.server import PostgresServer
from tests.suite.shared import unique

pytestmark = pytest.mark.slow

TOLERANT: Final = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": "bad"}
_UTC: Final = datetime.UTC
_TIMES: Final[tuple[Any, Any, Any]] = (
    datetime.datetime(1, 1, 1),
    datetime.datetime(9999, 12, 31, 23, 59, 59, 999999),
    datetime.datetime(2026, 1, 1, 0, 0, 0, 1),
)
_PLAIN: Final[tuple[tuple[Any, tuple[Any, Any, Any]], ...]] = (
    (pyarrow.bool_(), (True, False, None)),
    (pyarrow.int8(), (-(2**7), 2**7 - 1, 0)),
    (pyarrow.int16(), (-(2**15), 2**15 - 1, 0)),
    (pyarrow.int32(), (-(2**31), 2**31 - 1, 0)),
    (pyarrow.int64(), (-(2**63), 2**63 - 1, 0)),
    (pyarrow.float32(), (1.5, math.nan, -math.inf)),
    (pyarrow.float64(), (0.1, math.nan, math.inf)),
    (pyarrow.decimal128(5, 2), (Decimal("999.99"), Decimal("-999.99"), Decimal("0.01"))),
    (pyarrow.decimal128(38, 0), (Decimal(10**38 - 1), Decimal(1 - 10**38), Decimal(0))),
    (pyarrow.decimal128(38, 38), (Decimal(1).scaleb(-38), Decimal("0.5"), Decimal(0))),
    (pyarrow.string(), ("", "", "")),
    (pyarrow.binary(), (b"\\x00\xff", b"", b"\x00")),
    (pyarrow.date32(), (datetime.date(1, 1, 1), datetime.date(9999, 12, 31), datetime.date(2026, 1, 1))),
    (pyarrow.timestamp("us", "UTC"), (*(each.replace(tzinfo=_UTC) for each in _TIMES),)),
    (pyarrow.timestamp("us"), _TIMES),
)
"""Types of rows, with three values: the ends of what the type has. For text, the column decides which there are."""
_OTHERS: Final = (
    (pyarrow.duration("us"), (datetime.timedelta(1), datetime.timedelta(0), datetime.timedelta(2))),
    (pyarrow.null(), (None, None, None)),
)
_TEXTS: Final[dict[str, tuple[str, str, str]]] = {
    "text": ("", "a\t\\N\n", "ä" * 100),
    "varchar(5)": ("", "abcde", "ääääñ"),
    "char(3)": ("a", "abc", "ä"),
    "name": ("a", "b", "x" * 70),
    "uuid": tuple(f"6f9619ff-8b86-d011-b42d-00c04fc9640{each}" for each in range(3)),  # type: ignore[dict-item]
    "json": ('{"a": 1}', '{"a":  1}', "null"),
    "jsonb": ('{"a": 1}', "[1, 2]", "null"),
    "xml": ("<a/>", "<b>x</b>", "text"),
    "jsonpath": ("$.a", "$.b", "$"),
    "inet": ("10.0.0.1", "::1", "10.0.0.0/8"),
    "cidr": ("10.0.0.0/8", "::/0", "10.0.0.0/9"),
    "macaddr": ("08:00:2b:01:02:03", "08:00:2b:01:02:04", "08:00:2b:01:02:05"),
    "tsvector": ("'a'", "'b'", ""),
    "tsquery": ("'a'", "'b'", "'a' & 'b'"),
    "pg_lsn": ("0/0", "16/B374D848", "0/1"),
    "mood": ("good", "bad", "a,b"),
    "short": ("", "abc", "äbc"),
    'text COLLATE "C"': ("a", "A", "ä"),
    "text COLLATE folding": ("a", "b", "c"),
    "int4range": ("[1,2)", "empty", "(,)"),
    "bit(3)": ("000", "001", "111"),
    "interval": ("1 day", "2 days", "3 days"),
    "time": ("00:00:00", "24:00:00", "12:00:00"),
    "money": ("$1.00", "$2.00", "$3.00"),
    "point": ("(1,2)", "(1,3)", "(0,0)"),
    "pair": ("(1,a)", "(2,b)", "(3,c)"),
    "oid": ("1", "2", "3"),
}
"""Types of columns that text may go to, each with three values."""
_TYPES: Final = (
    *_TEXTS,
    *("boolean", "smallint", "integer", "bigint", "real", "double precision", "bytea", "date", "even"),
    *("numeric", "numeric(5,2)", "numeric(38,0)", "numeric(40,38)", "numeric(3,-3)", "numeric(2,5)", "amount"),
    *("timestamp", "timestamp(3)", "timestamptz", "timestamptz(0)", "timestamptz(6)", "moment"),
)
_NAMES: Final = (
    *("a.b", "a b", " a", "a,b", 'a"b', "a'b", "`a`", "a`b", "%s", "%", "%(x)s", "{}", "{0}", "a\nb", "a\tb", "a\\b"),
    *(
        "ä",
        "İ",
        "select",
        "user",
        "order",
        "A",
        "Valid_From",
        "VALID_TO",
        "Is_Current",
        "c0",
        "c1",
        "attempt",
        "refusal",
    ),
    *("deletes", "number", "n", "gone", "until", "was_gone", "is_new", "t", "s", "record_topic", "xmin", "ctid", "oid"),
    *(
        "x" * 63,
        "x" * 64,
        "ä" * 31,
        "ä" * 32,
        "",
        "\0",
        "a\0b",
        "$1",
        ":a",
        "--",
        "/*",
        ";",
        "value",
        "topic",
        "offset",
    ),
)


@dataclass(frozen=True)
class Column:
    """``type``: of the table's column, empty for what einmal creates; ``values``: three of the rows' type ``kind``."""

    name: str
    type: str
    kind: Any
    values: tuple[Any, Any, Any]


@st.composite
def columns(draw: st.DrawFn, *, exists: bool) -> Column:
    name = draw(st.sampled_from(_NAMES) | st.text(st.characters(codec="utf-8"), min_size=1, max_size=40))
    kind, values = draw(st.sampled_from((*_PLAIN, *_OTHERS)) | st.just(_PLAIN[10]))
    is_array = draw(st.integers(0, 3)) == 3
    declared = draw(st.sampled_from(_TYPES)) if exists else ""
    if kind == pyarrow.string():
        values = _TEXTS.get(declared, _TEXTS["text"])
    if is_array:
        kind, values = pyarrow.list_(kind), ([values[0], None, values[1]], [], [values[2]])
        of_element, _, collation = declared.partition(" COLLATE ")
        declared = declared and f"{of_element}[]" + (f" COLLATE {collation}" if collation else "")
    if exists and draw(st.integers(0, 9)) == 9:
        declared += draw(st.sampled_from([" GENERATED ALWAYS AS (NULL) STORED", " NOT NULL", " DEFAULT NULL"]))
    return Column(name, declared, kind, values)


@dataclass(frozen=True)
class Case:
    """``key``: the first column, of text; ``extra``: what else the table has."""

    mode: str
    exists: bool
    tolerates: bool
    table: str
    columns: tuple[Column, ...]
    extra: str


@st.composite
def cases(draw: st.DrawFn) -> Case:
    exists = draw(st.booleans())
    found = draw(st.lists(columns(exists=exists), min_size=1, max_size=3, unique_by=lambda each: each.name))
    extra = draw(
        st.sampled_from(
            ["", "x0 int", "x0 int NOT NULL DEFAULT 7", "x0 int GENERATED ALWAYS AS IDENTITY", "x0 int NOT NULL"]
        )
    )
    names = st.sampled_from(["t", "a.b", "T t", 'a"b', "%s", "select", "ä" * 31])
    return Case(
        mode=draw(st.sampled_from(["append", "upsert", "scd2"])),
        exists=exists,
        tolerates=draw(st.booleans()),
        table=draw(names),
        columns=tuple(found),
        extra=extra if exists else "",
    )


@pytest.fixture(scope="module")
def rig(server: PostgresServer) -> Iterator[Rig]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        database = unique("test").replace("-", "_")
        server.rows(f"CREATE DATABASE {database}")
        with Rig(server, local_session(monkeypatch), database) as rig:
            for each in (
                "CREATE TYPE mood AS ENUM ('good', 'bad', 'a,b')",
                "CREATE DOMAIN short AS varchar(3)",
                "CREATE DOMAIN even AS int",
                "CREATE DOMAIN amount AS numeric(7,2)",
                "CREATE DOMAIN moment AS timestamp(3)",
                "CREATE TYPE pair AS (a int, b text)",
                "CREATE COLLATION folding (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
            ):
                rig.rows(each)
            yield rig


@pytest.mark.parametrize("examples", [15, pytest.param(150, marks=pytest.mark.long)])
def test_columns_that_are_accepted_are_written_twice_and_others_are_named(rig: Rig, examples: int) -> None:
    @settings(
        max_examples=examples,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
    )
    @given(case=cases())
    def is_kept(case: Case) -> None:
        written_or_named(rig, case)

    is_kept()


def written_or_named(rig: Rig, case: Case) -> None:
    table = sql.Identifier(case.table)
    run(rig, sql.SQL("DROP TABLE IF EXISTS {}").format(table))
    run(rig, sql.SQL("DROP TABLE IF EXISTS expected, einmal_commits, einmal_rejected"))
    key = key_of(case)
    if case.exists and not create(rig, case, key):
        return
    names = [each.name for each in case.columns]
    options = {} if case.mode == "append" else {"mode": case.mode, "key": key.name}
    options |= TOLERANT if case.tolerates else {}
    quoted = '"' + case.table.replace('"', '""') + '"'
    driver = rig.driver(None, NAME, table=quoted, **options)
    try:
        try:
            found = driver.sink.problems(NAME, schema_of(from_arrow_schema(frame(case, key, []).schema)))
        except SinkError as error:
            found = [(str(error), "")]
        if found:
            event("refused")
            said = " ".join(f"{what} {hint}" for what, hint in found)
            assert any(name in said or repr(name) in said for name in (*names, key.name, "x0")), said
            return
        event(f"accepted by {case.mode}")
        written_twice(rig, case, key, driver)
    finally:
        driver.commit_point.close()


def key_of(case: Case) -> Column:
    return Column("the key", "text" if case.exists else "", pyarrow.string(), ("k0", "k1", "k2"))


def create(rig: Rig, case: Case, key: Column) -> bool:
    """Whether PostgreSQL can have such a table."""
    history = "valid_from timestamp, valid_to timestamp, is_current boolean" if case.mode == "scd2" else ""
    parts = [
        *(sql.SQL("{} {}").format(sql.Identifier(each.name), sql.SQL(each.type)) for each in (key, *case.columns)),
        *(sql.SQL(each) for each in (history, case.extra) if each),
    ]
    try:
        run(rig, sql.SQL("CREATE TABLE {} ({})").format(sql.Identifier(case.table), sql.SQL(", ").join(parts)))
    except Exception:  # noqa: BLE001 - a name that is too long, or that every table has
        return False
    columns = {"append": "", "upsert": "({})", "scd2": "({}) WHERE is_current"}[case.mode]
    if columns:
        index = sql.SQL("CREATE UNIQUE INDEX ON {} " + columns)
        run(rig, index.format(sql.Identifier(case.table), sql.Identifier(key.name)))
    return True


def written_twice(rig: Rig, case: Case, key: Column, driver: Driver) -> None:
    """Keys 0 and 1, then 0 with another value, 1 as it is, and 2; in scd2 another version of 0 in the same batch."""
    batches = [[(0, 0), (1, 1)], [(0, 1), (1, 1), (2, 2)]]
    if case.mode == "scd2":
        batches[1].append((0, 2))
    driver.start()
    for number, batch in enumerate(batches):
        driver.batch(number, rig.spark.createDataFrame(frame(case, key, batch, number * 10)))
        if case.tolerates:
            assert not driver.commit_point.rejected(number)
    table, names = sql.Identifier(case.table), [key.name, *(each.name for each in case.columns)]
    # As PostgreSQL itself writes and reads the values.
    run(rig, sql.SQL("CREATE TABLE expected (LIKE {})").format(table))
    rows = list(dict(sum(batches, [])).items()) if case.mode == "upsert" else sum(batches, [])
    if case.mode == "scd2":
        rows.remove((1, 1))
    listed = sql.SQL(", ").join(map(sql.Identifier, names))
    with rig.server.connect(rig.database) as connection:
        connection.execute("SET TIME ZONE 'UTC'")
        kinds = dict(
            connection.execute(
                "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute"
                " WHERE attrelid = 'expected'::regclass AND attnum > 0"
            ).fetchall()
        )
        connection.execute(
            sql.SQL("CREATE TEMP TABLE plain ({})").format(
                sql.SQL(", ").join(
                    sql.SQL("{} {}").format(sql.Identifier(each), sql.SQL(kinds[each])) for each in names
                )
            )
        )
        places = sql.SQL(", ").join(
            sql.SQL("{}::" + kinds[each].replace("%", "%%")).format(sql.Placeholder()) for each in names
        )
        for which, value in rows:
            values = [key.values[which], *(each.values[value] for each in case.columns)]
            connection.execute(sql.SQL("INSERT INTO plain VALUES ({})").format(places), values)
        query = sql.SQL("SELECT ROW({0})::text FROM {1} ORDER BY 1")
        expected = connection.execute(query.format(listed, sql.SQL("plain"))).fetchall()
        assert connection.execute(query.format(listed, table)).fetchall() == expected
        if case.mode == "scd2":
            current = sql.SQL("SELECT {0} FROM {1} WHERE is_current AND valid_to IS NULL ORDER BY 1")
            found = connection.execute(current.format(sql.Identifier(key.name), table)).fetchall()
            assert found == [("k0",), ("k1",), ("k2",)]


def frame(case: Case, key: Column, rows: Sequence[tuple[int, int]], since: int = 0) -> pyarrow.Table:
    """``rows``: number of the key and of the value."""
    arrays = [pyarrow.array([key.values[which] for which, _ in rows], key.kind)]
    names = [key.name]
    for each in case.columns:
        arrays.append(pyarrow.array([each.values[value] for _, value in rows], each.kind))
        names.append(each.name)
    if case.mode == "scd2":
        start = datetime.datetime(2026, 1, 1)
        days = [datetime.timedelta(since + number) for number in range(len(rows))]
        arrays.append(pyarrow.array([start + each for each in days], pyarrow.timestamp("us")))
        names.append("valid_from")
    if case.tolerates:
        kind = pyarrow.struct({"topic": pyarrow.string(), "partition": pyarrow.int32(), "offset": pyarrow.int64()})
        records = [{"topic": "in", "partition": 0, "offset": since + number} for number in range(len(rows))]
        arrays.append(pyarrow.array(records, kind))
        names.append(RECORD)
    return pyarrow.Table.from_arrays(arrays, names=names)


def run(rig: Rig, statement: sql.Composed | sql.SQL) -> None:
    with rig.server.connect(rig.database) as connection:
        connection.execute(statement)
