"""Data files of lake tables have the statistics by which readers skip files: they are those of delta-rs and pyiceberg
for the same rows, and no reader that goes by them misses a row."""

from __future__ import annotations

import datetime
import json
import math
import random
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import compute, parquet
from pyiceberg.expressions import EqualTo

from einmal.sinks.commit_point import Identity
from einmal.sinks.lake import LakeState, LakeTable
from einmal.sinks.staged_files import stage_file
from einmal.types import ProducerEpoch, ProducerId
from tests.sinks.hooks import DeltaHooks, IcebergHooks, table_at

pytestmark = pytest.mark.slow

_SEED: Final = 20261127
_LAST: Final = "\U0010ffff"
_UTC: Final = datetime.UTC
_KINDS: Final = {
    "b": pyarrow.bool_(),
    "i8": pyarrow.int8(),
    "i32": pyarrow.int32(),
    "i64": pyarrow.int64(),
    "f": pyarrow.float32(),
    "g": pyarrow.float64(),
    "money": pyarrow.decimal128(9, 2),
    "a.b": pyarrow.string(),
    "bin": pyarrow.binary(),
    "day": pyarrow.date32(),
    "ts": pyarrow.timestamp("us", "UTC"),
    "ntz": pyarrow.timestamp("us"),
    "list": pyarrow.list_(pyarrow.int64()),
    "map": pyarrow.map_(pyarrow.string(), pyarrow.int64()),
    "st": pyarrow.struct(
        {"x": pyarrow.int64(), "list": pyarrow.list_(pyarrow.int32()), "y": pyarrow.struct({"z": pyarrow.string()})}
    ),
    "none": pyarrow.int64(),
    "last": pyarrow.int64(),
}


def table_of(chance: random.Random, rows: int, *, nulls: float = 0.2) -> pyarrow.Table:
    start = datetime.datetime(2026, 1, 1)

    def value(kind: Any) -> Any:
        if chance.random() < nulls:
            return None
        if pyarrow.types.is_struct(kind):
            return {field.name: value(field.type) for field in kind}
        if pyarrow.types.is_list(kind):
            return [value(kind.value_type) for _ in range(chance.randrange(3))]
        if pyarrow.types.is_map(kind):
            return [("k", chance.randrange(9))]
        moment = start + datetime.timedelta(milliseconds=chance.randrange(10**12))
        return {
            pyarrow.bool_(): bool(chance.randrange(2)),
            pyarrow.float32(): chance.randrange(-100, 100) / 4,
            pyarrow.float64(): chance.uniform(-1e300, 1e300),
            pyarrow.decimal128(9, 2): Decimal(chance.randrange(-(10**9) + 1, 10**9)) / 100,
            pyarrow.string(): "".join(chance.choices('aäz"\\ \n€😀' + _LAST, k=chance.randrange(30))),
            pyarrow.binary(): chance.randbytes(5),
            pyarrow.date32(): moment.date(),
            pyarrow.timestamp("us", "UTC"): moment.replace(tzinfo=_UTC),
            pyarrow.timestamp("us"): moment,
            pyarrow.int8(): chance.randrange(-128, 128),
            pyarrow.int32(): chance.randrange(-(2**31), 2**31),
        }.get(kind, chance.randrange(-(2**63), 2**63))

    columns = {name: [value(kind) for _ in range(rows)] for name, kind in _KINDS.items() if name != "none"}
    columns["none"] = [None] * rows
    return pyarrow.table({name: pyarrow.array(columns[name], kind) for name, kind in _KINDS.items()})


def committed(table: LakeTable, rows: pyarrow.Table, number: int = 0) -> Path:
    """The data file with the rows, as a task stages it and the driver commits it."""
    table.data.mkdir(parents=True, exist_ok=True)
    snapshot = table.load()
    batches = iter(rows.combine_chunks().to_batches())
    file = stage_file(table.data, number, 0, batches, ids=table.field_ids(snapshot))
    assert file is not None
    state = LakeState(1, Identity(ProducerId(1), ProducerEpoch(number)), None, number)
    table.commit(snapshot, "name", state, [file])
    return file.path


def delta_table(location: Path, schema: pyarrow.Schema) -> LakeTable:
    DeltaTable.create(str(location / "words"), schema=schema)
    return DeltaHooks().sink(location).lake_table  # type: ignore[attr-defined, no-any-return]


def delta_statistics(table: Path) -> dict[str, Any]:
    """Of the last file in the log, numbers as they are written."""
    newest = max((table / "_delta_log").glob("*.json"))
    (add,) = [json.loads(line)["add"] for line in newest.read_text().splitlines() if '"add"' in line]
    return json.loads(add["stats"], parse_float=Decimal)  # type: ignore[no-any-return]


def without_nulls(statistics: dict[str, Any]) -> dict[str, Any]:
    """delta-rs writes a bound of null where there is none."""
    found = {name: without_nulls(each) if isinstance(each, dict) else each for name, each in statistics.items()}
    return {name: each for name, each in found.items() if each is not None and each != {}}


@pytest.mark.representatives(6)
@pytest.mark.parametrize("number", range(20))
def test_statistics_are_those_of_delta_rs(tmp_path: Path, number: int) -> None:
    chance = random.Random(f"{_SEED} {number}")
    rows = table_of(chance, chance.choice([1, 2, 50]), nulls=chance.choice([0.0, 0.3, 1.0]))
    committed(delta_table(tmp_path, rows.schema), rows)
    write_deltalake(str(tmp_path / "theirs"), rows)
    ours, theirs = delta_statistics(tmp_path / "words"), delta_statistics(tmp_path / "theirs")
    # Which delta-rs leaves out, and Delta's own writer does not.
    assert ours["nullCount"].pop("bin") == rows.column("bin").null_count
    for name in ("minValues", "maxValues"):
        # delta-rs leaves the T out, and the milliseconds where there are none.
        if (found := theirs[name].get("ntz")) is not None:
            theirs[name]["ntz"] = datetime.datetime.fromisoformat(found).isoformat(timespec="milliseconds")
    assert without_nulls(ours) == without_nulls(theirs)


def test_bounds_are_rounded_away_from_the_values(tmp_path: Path) -> None:
    moment = datetime.datetime(2026, 1, 1, 0, 0, 0, 1)
    rows = pyarrow.table(
        {
            "text": pyarrow.array(["ä" * 40, "z" * 5]),
            "ends": pyarrow.array(["b" * 32 + _LAST * 2 + "c", "a" * 32]),
            "last": pyarrow.array(["c" * 32 + _LAST * 2, "c" * 32]),
            "many": pyarrow.array([Decimal("12345678901234567890.123456789012345678"), Decimal(-1)],
                                  pyarrow.decimal128(38, 18)),
            "ts": pyarrow.array([moment.replace(tzinfo=_UTC)] * 2, pyarrow.timestamp("us", "UTC")),
        }
    )  # fmt: skip
    committed(delta_table(tmp_path, rows.schema), rows)
    found = delta_statistics(tmp_path / "words")
    assert found["minValues"] == {
        "text": "z" * 5,
        "ends": "a" * 32,
        "last": "c" * 32,
        "many": Decimal("-1.000000000000000000"),
        "ts": "2026-01-01T00:00:00.000Z",
    }
    assert found["maxValues"] == {
        "text": "ä" * 32 + _LAST,
        "ends": "b" * 32 + _LAST * 3,
        "last": "c" * 32 + _LAST * 2,
        "many": Decimal("12345678901234567890.123456789012345678"),
        "ts": "2026-01-01T00:00:00.001Z",
    }


@pytest.mark.parametrize("rows_per_group", [1, 1000])
def test_columns_without_an_order_that_all_readers_share_have_no_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_per_group: int
) -> None:
    monkeypatch.setattr("einmal.sinks.staged_files._ROWS_PER_GROUP", rows_per_group)
    inner = pyarrow.struct({"f": pyarrow.float64()})
    rows = pyarrow.table(
        {
            "nan": [1.0, math.nan, 2.0],
            "inf": [1.0, math.inf, 2.0],
            "st": pyarrow.array([{"f": math.nan}, None, {"f": 1.0}], inner),
            "bin": [b"a", b"b", None],
            "id": [3, None, 1],
        }
    )
    committed(delta_table(tmp_path, rows.schema), rows)
    assert delta_statistics(tmp_path / "words") == {
        "numRecords": 3,
        "minValues": {"inf": Decimal("1.0"), "id": 1},
        "maxValues": {"id": 3},
        "nullCount": {"nan": 0, "inf": 0, "st": {"f": 1}, "bin": 1, "id": 1},
    }


@pytest.mark.parametrize(("setting", "expected"), [(None, 32), ("2", 2), ("0", 0), ("-1", 40), ("many", 32)])
def test_the_first_columns_have_statistics_and_fields_count(tmp_path: Path, setting: str | None, expected: int) -> None:
    inner = pyarrow.struct({f"f{number}": pyarrow.int64() for number in range(20)})
    value = dict.fromkeys((field.name for field in inner), 1)
    rows = pyarrow.table(
        {"s": pyarrow.array([value], inner)} | {f"c{number}": pyarrow.array([1]) for number in range(20)}
    )
    table = delta_table(tmp_path, rows.schema)
    if setting is not None:
        # As another writer may have it: delta-rs refuses what is no number.
        log = tmp_path / "words" / "_delta_log" / f"{0:020}.json"
        log.write_text(log.read_text().replace('"configuration":{', f'"configuration":{{"{_SETTING}":"{setting}"'))
    committed(table, rows)
    nulls = delta_statistics(tmp_path / "words")["nullCount"]
    assert len(nulls.get("s", {})) + len(nulls) - ("s" in nulls) == expected


_SETTING: Final = "delta.dataSkippingNumIndexedCols"


def test_reader_skips_files_of_a_delta_table_and_misses_no_row(tmp_path: Path) -> None:
    chance = random.Random(_SEED)
    files = [table_of(chance, 20) for _ in range(8)]
    table = delta_table(tmp_path, files[0].schema)
    for number, rows in enumerate(files):
        committed(table, rows, number)
    dataset = DeltaTable(str(tmp_path / "words")).to_pyarrow_dataset()
    every = pyarrow.concat_tables(files)
    skipped = 0
    for name in ("i8", "i32", "i64", "f", "g", "money", "a.b", "day", "ts", "ntz"):
        for value in chance.sample(every.column(name).drop_null().to_pylist(), 5):
            condition = compute.field(name) == pyarrow.scalar(value, _KINDS[name])
            assert dataset.to_table(filter=condition).num_rows == every.filter(condition).num_rows, (name, value)
            skipped += len(files) - len(list(dataset.get_fragments(filter=condition)))
    none = pyarrow.scalar(datetime.datetime(1999, 1, 1), pyarrow.timestamp("us"))
    assert list(dataset.get_fragments(filter=compute.field("ntz") == none)) == []
    assert skipped > 0


def test_row_groups_of_data_files_have_bounds(tmp_path: Path) -> None:
    rows = table_of(random.Random(_SEED), 50)
    path = committed(delta_table(tmp_path, rows.schema), rows)
    group = parquet.read_metadata(path).row_group(0)
    for number in range(group.num_columns):
        found = group.column(number)
        assert found.statistics.has_null_count, found.path_in_schema
        assert found.statistics.has_min_max or found.path_in_schema == "none", found.path_in_schema


def test_iceberg_has_no_bounds_of_a_column_with_a_dot_in_its_name(tmp_path: Path) -> None:
    rows = pyarrow.table({"a.b": [1, 2], "c": [3, 4]})
    sink = IcebergHooks().sink(tmp_path)
    catalog = sink.lake_table._catalog  # type: ignore[attr-defined]
    catalog.create_namespace_if_not_exists("lake")
    catalog.create_table("lake.words", schema=rows.schema)
    committed(sink.lake_table, rows)  # type: ignore[attr-defined]
    table = table_at(tmp_path)
    (file,) = (each.file for each in table.scan().plan_files())
    assert set(file.lower_bounds) == {table.schema().find_field("c").field_id}


def test_iceberg_has_the_bounds_that_pyiceberg_writes_and_its_reader_skips_files(tmp_path: Path) -> None:
    names = [name for name in _KINDS if name != "i8"]
    chance = random.Random(_SEED)
    # Of a name with a dot pyiceberg finds no bounds in a file that it has not written; its rows are all read.
    titles = ["text" if name == "a.b" else name for name in names]
    files = [table_of(chance, 20).select(names).rename_columns(titles) for _ in range(4)]
    sink = IcebergHooks().sink(tmp_path)
    catalog = sink.lake_table._catalog  # type: ignore[attr-defined]
    catalog.create_namespace_if_not_exists("lake")
    table = catalog.create_table("lake.words", schema=files[0].schema)
    theirs = catalog.create_table("lake.theirs", schema=files[0].schema)
    for number, rows in enumerate(files):
        committed(sink.lake_table, rows, number)  # type: ignore[attr-defined]
        theirs.append(rows)
    wanted = sorted(_iceberg_statistics(theirs))
    assert sorted(_iceberg_statistics(table_at(tmp_path))) == wanted
    assert all(lower and upper for _, lower, upper, *_ in wanted)
    table = table_at(tmp_path)
    every, skipped = pyarrow.concat_tables(files), 0
    for name in ("i32", "i64", "f", "g", "day"):
        for value in chance.sample(every.column(name).drop_null().to_pylist(), 5):
            written = value.isoformat() if name == "day" else value
            scan = table.scan(row_filter=EqualTo(name, written))  # type: ignore[call-arg, arg-type]
            condition = compute.field(name) == pyarrow.scalar(value, _KINDS[name])
            assert scan.to_arrow().num_rows == every.filter(condition).num_rows
            skipped += len(files) - len(list(scan.plan_files()))
    assert skipped > 0


def _iceberg_statistics(table: Any) -> list[tuple[Any, ...]]:
    return [
        (
            each.file.record_count,
            *(
                sorted(dict(counts or {}).items())
                for counts in (
                    each.file.lower_bounds,
                    each.file.upper_bounds,
                    each.file.value_counts,
                    each.file.null_value_counts,
                    each.file.nan_value_counts,
                )
            ),
        )
        for each in table.scan().plan_files()
    ]
