"""What the preflight of a target accepts, of names and types of columns, is written twice; the rest it refuses."""

from __future__ import annotations

import datetime
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pyarrow
import pytest
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructType

from einmal.spark.targets.embedded import EmbeddedDestination
from einmal.spark.targets.lake import LakeDestination, LakeState
from einmal.spark.targets.staged_files import stage_file
from einmal.spark.targets.target import Identity, TargetError
from einmal.types import ProducerEpoch, ProducerId
from tests.spark.targets.hooks import DeltaHooks, DuckDBHooks, IcebergHooks, OwnHooks, SQLiteHooks

pytestmark = pytest.mark.slow

TARGETS: Final = (DeltaHooks(), IcebergHooks(), SQLiteHooks(), DuckDBHooks())
NAMES: Final = (
    *("a.b", "a b", "a,b", "a;b", "a{b}", "a(b)", "a\nb", "a=b", "`a`", '"a"', "a'b", "%s", "ä", "_x", "select"),
    *("", "\0a", "x" * 300, "rowid", "filename", "file_row_number", "einmal_kept", "a/b"),
)
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


@pytest.fixture(params=TARGETS, ids=lambda hooks: hooks.kind)
def hooks(request: pytest.FixtureRequest) -> OwnHooks:
    chosen: OwnHooks = request.param
    return chosen


def is_accepted(hooks: OwnHooks, location: Path, schema: StructType) -> bool:
    """Whether the preflight accepts the columns; two batches are then written and counted."""
    location.mkdir()
    destination = hooks.destination(location)
    try:
        if destination.problems("name", schema):
            return False
    except TargetError:
        return False
    count = sum(written(destination, location, schema, number) for number in range(2))
    assert count == stored(destination) == 4, schema.simpleString()
    assert destination.problems("name", schema) == []
    return True


def written(destination: Any, location: Path, schema: StructType, number: int) -> int:
    arrow = to_arrow_schema(schema, timezone="UTC")
    arrays = [
        pyarrow.array([_VALUES.get(field.dataType.simpleString(), 7 if kind in _INTEGERS else None), None], kind)
        for field, kind in zip(schema, arrow.types, strict=True)
    ]
    batch = pyarrow.RecordBatch.from_arrays(arrays, schema=arrow)
    if isinstance(destination, LakeDestination):
        table = destination.lake_table
        snapshot = table.load()
        table.data.mkdir(parents=True, exist_ok=True)
        file = stage_file(table.data, number, 0, iter([batch]))
        assert file is not None
        state = LakeState(1, Identity(ProducerId(1), ProducerEpoch(number)), None, number)
        table.commit(snapshot, "name", state, [file])
        return file.count
    assert isinstance(destination, EmbeddedDestination)
    file = stage_file(location, number, 0, iter([batch]))
    assert file is not None
    with closing(destination._database.connect(creating=True)) as connection:
        destination._database.begin(connection)
        count = destination._database.load(connection, destination._table, [file])
        connection.execute("COMMIT")
    return count


_INTEGERS: Final = (pyarrow.int8(), pyarrow.int16(), pyarrow.int32(), pyarrow.int64())


def stored(destination: Any) -> int:
    if isinstance(destination, LakeDestination):
        snapshot = destination.lake_table.load()
        rows = snapshot.to_pyarrow_table() if hasattr(snapshot, "to_pyarrow_table") else snapshot.scan().to_arrow()
        return int(rows.num_rows)
    with closing(destination._database.connect()) as connection:
        ((count,),) = connection.execute(f'SELECT count(*) FROM "{destination._table}"').fetchall()
    return int(count)


def test_columns_of_every_name_that_is_accepted_are_written_twice(hooks: OwnHooks, tmp_path: Path) -> None:
    accepted = [
        name
        for number, name in enumerate(NAMES)
        if is_accepted(hooks, tmp_path / str(number), StructType().add(name, types.LongType()))
    ]
    assert {"a.b", "a b", "ä"} <= set(accepted)


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
