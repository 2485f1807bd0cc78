"""What the preflight of a sink accepts, of names and types of columns, is written twice; the rest it refuses."""

from __future__ import annotations

import datetime
import math
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from pyspark.sql import types
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import DataType, StructType

from einmal.sinks.commit_point import Identity, SinkError
from einmal.sinks.embedded import EmbeddedSink, quoted
from einmal.sinks.kinds import new_sink
from einmal.sinks.lake import LakeSink, LakeState
from einmal.sinks.parquet import ParquetSink
from einmal.sinks.rejections import RECORD
from einmal.sinks.sqlite import _values
from einmal.sinks.staged_files import stage_file
from einmal.spark.environment.plans.row_schemas import schema_of
from einmal.spark.sinks.frame_rows import FrameRows
from einmal.testing.sinks.driving import RunUnderTest
from einmal.types import ProducerEpoch, ProducerId
from tests.sinks.hooks import DeltaHooks, DuckDBHooks, IcebergHooks, OwnHooks, ParquetHooks, SQLiteHooks, table_at
from tests.sinks.local_tasks import local_session

pytestmark = pytest.mark.slow

SINKS: Final = (DeltaHooks(), IcebergHooks(), ParquetHooks(), SQLiteHooks(), DuckDBHooks())
NAMES: Final = (
    *("a.b", "a b", "a,b", "a;b", "a{b}", "a(b)", "a\nb", "a=b", "`a`", '"a"', "a'b", "%s", "ä", "_x", "select"),
    *("", "\0a", "x" * 300, "rowid", "filename", "file_row_number", "einmal_kept", "a/b"),
    *("einmal_file", "Einmal_Number", "einmal_refused", "c0", "sqlite_x", "oid", "_rowid_"),
)
ORDINARY: Final = {"a.b", "a b", "ä"}
NEVER: Final = (
    *(types.NullType(), types.ArrayType(types.NullType()), StructType().add("x", types.NullType()), StructType()),
    *(types.MapType(types.StringType(), types.NullType()), types.YearMonthIntervalType(), types.DayTimeIntervalType()),
    *(types.VariantType(), StructType().add("x", types.ArrayType(types.NullType()))),
)
"""Types of which no file or table keeps a value as it is."""
OTHERS: Final = (
    *(types.ByteType(), types.ShortType(), types.BooleanType(), types.FloatType(), types.DoubleType()),
    *(types.DecimalType(10, 2), types.DecimalType(38, 0), types.DateType(), types.TimestampType()),
    *(types.TimestampNTZType(), types.BinaryType(), types.StringType(), types.ArrayType(types.StringType())),
    *(StructType().add("a.b", types.LongType()), types.MapType(types.StringType(), types.LongType())),
)
_VALUES: Final[dict[str, Any]] = {
    "boolean": True,
    "float": 1.5,
    "double": 1.5,
    "date": datetime.date(2026, 1, 1),
    "timestamp": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    "timestamp_ntz": datetime.datetime(2026, 1, 1),
    "binary": b"x",
    "string": "x",
}


@pytest.fixture(params=SINKS, ids=lambda hooks: hooks.kind)
def hooks(request: pytest.FixtureRequest) -> OwnHooks:
    chosen: OwnHooks = request.param
    return chosen


def is_accepted(hooks: OwnHooks, location: Path, schema: StructType) -> bool:
    """Whether the preflight accepts the columns; two batches are then written and counted."""
    location.mkdir()
    sink = hooks.sink(location)
    try:
        if sink.problems("name", schema_of(schema)):
            return False
    except SinkError:
        return False
    count = sum(written(sink, location, schema, number) for number in range(2))
    assert count == stored(sink) == 4, schema.simpleString()
    assert sink.problems("name", schema_of(schema)) == []
    return True


def written(sink: Any, location: Path, schema: StructType, number: int) -> int:
    arrow = to_arrow_schema(schema, timezone="UTC")
    arrays = [
        pyarrow.array([_VALUES.get(field.dataType.simpleString(), 7 if kind in _INTEGERS else None), None], kind)
        for field, kind in zip(schema, arrow.types, strict=True)
    ]
    batch = pyarrow.RecordBatch.from_arrays(arrays, schema=arrow)
    if isinstance(sink, LakeSink):
        table = sink.lake_table
        snapshot = table.load()
        directory = table.data / str(number)
        directory.mkdir(parents=True, exist_ok=True)
        file = stage_file(directory, number, 0, iter([batch]), ids=table.field_ids(snapshot))
        assert file is not None
        state = LakeState(1, Identity(ProducerId(1), ProducerEpoch(number)), None, number)
        table.commit(snapshot, "name", state, [file])
        return file.count
    assert isinstance(sink, EmbeddedSink)
    file = stage_file(location, number, 0, iter([batch]))
    assert file is not None
    with closing(sink._database.connect(creating=True)) as connection:
        sink._database.begin(connection)
        count = sink._database.load(connection, sink._table, [file])
        connection.execute("COMMIT")
    return count


_INTEGERS: Final = (pyarrow.int8(), pyarrow.int16(), pyarrow.int32(), pyarrow.int64())


def stored(sink: Any) -> int:
    if isinstance(sink, LakeSink):
        if isinstance(sink, ParquetSink):
            paths = sink.lake_table.root.glob("[!_]*/[!_]*.parquet")
            return sum(parquet.read_metadata(path).num_rows for path in paths)
        snapshot = sink.lake_table.load()
        rows = snapshot.to_pyarrow_table() if hasattr(snapshot, "to_pyarrow_table") else snapshot.scan().to_arrow()
        return int(rows.num_rows)
    with closing(sink._database.connect()) as connection:
        ((count,),) = connection.execute(f'SELECT count(*) FROM "{sink._table}"').fetchall()
    return int(count)


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.long)], ids=["some", "all"])
def test_columns_of_every_name_that_is_accepted_are_written_twice(hooks: OwnHooks, tmp_path: Path, step: int) -> None:
    accepted = [
        name
        for number, name in enumerate(NAMES)
        if (number % step == 0 or name in ORDINARY)
        and is_accepted(hooks, tmp_path / str(number), StructType().add(name, types.LongType()))
    ]
    assert set(accepted) >= ORDINARY


def test_columns_of_every_type_that_is_accepted_are_written_twice(hooks: OwnHooks, tmp_path: Path) -> None:
    accepted: list[DataType] = [
        kind
        for number, kind in enumerate((*OTHERS, *NEVER))
        if is_accepted(hooks, tmp_path / str(number), StructType().add("c", kind))
    ]
    assert types.StringType() in accepted
    assert not [kind.simpleString() for kind in accepted if kind in NEVER]


@pytest.mark.parametrize("names", [(), ("a", "a")], ids=["none", "same"])
def test_no_columns_and_columns_of_the_same_name_are_refused(
    hooks: OwnHooks, tmp_path: Path, names: tuple[str, ...]
) -> None:
    schema = StructType([types.StructField(name, types.LongType()) for name in names])
    assert not is_accepted(hooks, tmp_path / "t", schema)


# --- several columns, through the whole sink, also into tables that exist -------------------------------------------

_TIMES: Final = (
    datetime.datetime(1, 1, 1),
    datetime.datetime(9999, 12, 31, 23, 59, 59, 999999),
    datetime.datetime(2026, 1, 1, 0, 0, 0, 1),
)
_KINDS: Final[tuple[tuple[Any, tuple[Any, ...]], ...]] = (
    (pyarrow.bool_(), (True, False)),
    (pyarrow.int8(), (-(2**7), 2**7 - 1)),
    (pyarrow.int16(), (-(2**15), 2**15 - 1)),
    (pyarrow.int32(), (-(2**31), 2**31 - 1)),
    (pyarrow.int64(), (-(2**63), 2**63 - 1, 2**53 + 1)),
    (pyarrow.float32(), (1.5, -math.inf)),
    (pyarrow.float64(), (0.1, math.inf, 1e300)),
    (pyarrow.decimal128(5, 2), (Decimal("999.99"), Decimal("-999.99"))),
    (pyarrow.decimal128(38, 10), (Decimal("9" * 28 + "." + "9" * 10), Decimal("-0.0000000001"))),
    (pyarrow.string(), ("", "007", "1e5", "ä'\"\\\n", "\0", "x" * 5000)),
    (pyarrow.binary(), (b"", b"\x00\xff", b"12")),
    (pyarrow.date32(), (datetime.date(1, 1, 1), datetime.date(9999, 12, 31))),
    (pyarrow.timestamp("us", "UTC"), tuple(each.replace(tzinfo=datetime.UTC) for each in _TIMES)),
    (pyarrow.timestamp("us"), _TIMES),
    (pyarrow.list_(pyarrow.int64()), ([], [1, None])),
    (pyarrow.struct({"a.b": pyarrow.string(), "c": pyarrow.list_(pyarrow.float64())}), ({"a.b": "x", "c": [1.5]},)),
    (pyarrow.map_(pyarrow.string(), pyarrow.int32()), ([("a", 1)], [])),
    (pyarrow.null(), (None,)),
)
_DECLARED: Final = {
    "sqlite": (
        *(
            "INTEGER",
            "TEXT",
            "REAL",
            "BLOB",
            "NUMERIC",
            "VARCHAR(3)",
            "BOOLEAN",
            "DATETIME",
            "",
            "BIGINT",
            "DECIMAL(5,2)",
        ),
        *("TEXT COLLATE NOCASE", "INTEGER NOT NULL DEFAULT 1", "TEXT GENERATED ALWAYS AS ('x') STORED"),
        *("TEXT GENERATED ALWAYS AS ('x') VIRTUAL", "TEXT AS ('x')"),
    ),
    "duckdb": (
        *("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "FLOAT", "DOUBLE", "VARCHAR"),
        *("DECIMAL(5,2)", "DECIMAL(38,10)", "DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMPTZ", "BLOB", "JSON", "UUID"),
        *("VARCHAR COLLATE NOCASE", "BIGINT DEFAULT 7", "VARCHAR GENERATED ALWAYS AS ('x')", "VARCHAR(3)", "BIGINT[]"),
        *("ENUM ('x', '')", "VARCHAR NOT NULL DEFAULT 'x'"),
    ),
}
_EXTRA: Final = ("", ', "x0" INTEGER', ', "x0" INTEGER NOT NULL', ', "x0" INTEGER NOT NULL DEFAULT 7')


@dataclass(frozen=True)
class Case:
    """``columns``: name, kind, values, and the type in a table that exists. ``extra``: what else this has."""

    hooks: OwnHooks
    columns: tuple[tuple[str, Any, tuple[Any, ...], str], ...]
    exists: bool
    extra: str
    tolerates: bool


@st.composite
def cases(draw: st.DrawFn) -> Case:
    hooks = draw(st.sampled_from(SINKS))
    declared = _DECLARED.get(hooks.kind, ())
    names = st.sampled_from([each for each in NAMES if len(each) < 100]) | st.text(
        st.characters(codec="utf-8"), min_size=1, max_size=20
    )
    columns = draw(
        st.lists(
            st.tuples(names, st.sampled_from(_KINDS), st.sampled_from(declared or ("",))),
            min_size=1,
            max_size=4,
            unique_by=lambda each: each[0],
        )
    )
    return Case(
        hooks=hooks,
        columns=tuple((name, kind, values, each) for name, (kind, values), each in columns),
        exists=bool(declared) and draw(st.booleans()),
        extra=draw(st.sampled_from(_EXTRA)),
        tolerates=bool(declared) and draw(st.booleans()),
    )


class _Tolerant:
    """A sink that tolerates rejected rows."""

    def __init__(self, hooks: OwnHooks) -> None:
        self.hooks = hooks

    def sink(self, location: Path) -> Any:
        options = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": "bad"}
        return new_sink(self.hooks.kind, self.hooks.options(location) | options)


@settings(max_examples=200, derandomize=True, suppress_health_check=list(HealthCheck))
@given(case=cases())
@pytest.mark.long
def test_tables_that_are_accepted_are_written_twice_and_others_name_the_column(
    tmp_path_factory: pytest.TempPathFactory, case: Case
) -> None:
    location = tmp_path_factory.mktemp("table")
    try:
        with pytest.MonkeyPatch.context() as monkeypatch:
            if not case.exists or exists(case, location):
                through_the_sink(case, location, local_session(monkeypatch))
    finally:
        shutil.rmtree(location)


def exists(case: Case, location: Path) -> bool:
    """Whether the database can have such a table."""
    listed = ", ".join(f"{quoted(name)} {kind}" for name, _, _, kind in case.columns)
    module: Any = sqlite3 if case.hooks.kind == "sqlite" else duckdb
    try:
        with closing(module.connect(str(location / "rows.db"))) as connection:
            connection.execute(f"CREATE TABLE words ({listed}{case.extra})")
            connection.commit()
    except (module.Error, ValueError, UnicodeError):
        return False
    return True


def through_the_sink(case: Case, location: Path, spark: Any) -> None:
    hooks: Any = _Tolerant(case.hooks) if case.tolerates else case.hooks
    rows = [table_of(case, number) for number in range(2)]
    schema = from_arrow_schema(rows[0].schema)
    try:
        found = hooks.sink(location).problems("name", schema_of(schema))
    except SinkError as error:
        found = [(str(error), "")]
    if found:
        event(f"{case.hooks.kind} refuses")
        said = " ".join(f"{what} {hint}" for what, hint in found).lower()
        names = [name for name, *_ in case.columns] + ["x0"]
        assert any(each.lower() in said for name in names for each in (name or "''", repr(name)[1:-1] or "''")), said
        return
    event(f"{case.hooks.kind} accepts")
    run = RunUnderTest(hooks, location, "name", prepares=False)
    run.start()
    for number, each in enumerate(rows):
        run.stage_rows(number, FrameRows(spark.createDataFrame(each).coalesce(2)))
        run.record(number)
        run.commit()
        assert not case.tolerates or not run.commit_point.rejected(number)
    run.die()
    expected = pyarrow.concat_tables(rows).select([name for name, *_ in case.columns])
    assert comparable(read_back(case, location, expected)) == comparable(as_stored(case, expected))


def table_of(case: Case, number: int) -> pyarrow.Table:
    """The second batch has the values in another order, and a NULL where the table can have one."""
    arrays, names = [], []
    for name, kind, values, declared in case.columns:
        every = [*values, *((None,) if "NOT NULL" not in declared else ())] * 6
        arrays.append(pyarrow.array(every[number : number + 5], kind))
        names.append(name)
    if case.tolerates:
        records = [{"topic": "in", "partition": number, "offset": offset} for offset in range(5)]
        kind = pyarrow.struct({"topic": pyarrow.string(), "partition": pyarrow.int32(), "offset": pyarrow.int64()})
        arrays.append(pyarrow.array(records, kind))
        names.append(RECORD)
    return pyarrow.Table.from_arrays(arrays, names=names)


def read_back(case: Case, location: Path, expected: pyarrow.Table) -> list[list[Any]]:
    if case.hooks.kind in _DECLARED:
        module: Any = sqlite3 if case.hooks.kind == "sqlite" else duckdb
        listed = ", ".join(map(quoted, expected.column_names))
        with closing(module.connect(str(location / "rows.db"))) as connection:
            if case.hooks.kind == "duckdb":
                connection.execute("SET TimeZone = 'UTC'")
                table = connection.execute(f"SELECT {listed} FROM words").to_arrow_table()
                return [column.to_pylist() for column in table.columns]
            rows = connection.execute(f"SELECT {listed} FROM words").fetchall()
            return [list(each) for each in zip(*rows, strict=True)]
    if case.hooks.kind == "delta":
        from deltalake import DeltaTable

        table = DeltaTable(str(location / "words")).to_pyarrow_table()
    else:
        table = table_at(location).scan().to_arrow()
    return [table.column(name).to_pylist() for name in expected.column_names]


def as_stored(case: Case, expected: pyarrow.Table) -> list[list[Any]]:
    """SQLite has text for decimals and times: test_exact_values has how it is written."""
    columns = [column.combine_chunks() for column in expected.columns]
    if case.hooks.kind == "sqlite":
        return [_values("", column) for column in columns]
    return [column.to_pylist() for column in columns]


def comparable(columns: list[list[Any]]) -> list[list[str]]:
    """In no order of the rows."""
    return sorted(list(each) for each in zip(*([repr(value) for value in column] for column in columns), strict=True))
