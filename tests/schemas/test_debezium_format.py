"""Claims about changes of rows: each is a row to load or a bad row with a reason, never a row that only looks right."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einmal.schemas.debezium_format import UNAVAILABLE, DebeziumDecoder
from einmal.schemas.errors import (
    BadRow,
    MalformedValue,
    MissingField,
    OutOfRange,
    SchemaError,
    UnavailableValue,
    UnsupportedChange,
    WrongType,
)

DECODER = DebeziumDecoder("id BIGINT NOT NULL, name STRING NOT NULL, price DECIMAL(6,2)")


def changed(op: str, after: object = None, before: object = None) -> bytes:
    return json.dumps({"op": op, "after": after, "before": before, "source": {"lsn": 7}}).encode()


def test_the_column_is_the_row_and_whether_it_is_deleted() -> None:
    assert DECODER.ddl == "struct<`id`:bigint,`name`:string,`price`:decimal(6,2),`__deleted`:boolean>"


@pytest.mark.parametrize("op", ["c", "u", "r"])
def test_an_insert_an_update_and_a_row_of_a_snapshot_are_the_new_row(op: str) -> None:
    decoded = DECODER.decode(changed(op, {"id": 1, "name": "a", "price": "1.50"}, {"id": 1}))
    assert decoded.value == {"id": 1, "name": "a", "price": Decimal("1.50"), "__deleted": False}
    assert not decoded.unknown


def test_a_delete_is_the_old_key_and_nulls() -> None:
    decoded = DECODER.decode(changed("d", None, {"id": 1}))
    assert decoded.value == {"id": 1, "name": None, "price": None, "__deleted": True}


def test_a_column_that_is_not_declared_is_drift_and_the_rest_of_the_envelope_is_not() -> None:
    decoded = DECODER.decode(changed("c", {"id": 1, "name": "a", "colour": "red"}))
    assert decoded.unknown == {"$.after.colour": "red"}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"{", MalformedValue),
        (b"[]", WrongType),
        (b"{}", MissingField),
        (b'{"op": ["c"]}', UnsupportedChange),
        (changed("t"), UnsupportedChange),
        (changed("m"), UnsupportedChange),
        (changed("c"), MissingField),
        (changed("d", {"id": 1}), MissingField),
        (changed("c", {"id": 1}), MissingField),
        (changed("c", {"id": None, "name": "a"}), MissingField),
        (changed("u", {"id": 1, "name": UNAVAILABLE}), UnavailableValue),
        (changed("c", {"id": "secret", "name": "a"}), WrongType),
        (changed("c", {"id": 2**63, "name": "a"}), OutOfRange),
        (changed("c", {"id": 1, "name": "a", "price": "1.005"}), OutOfRange),
        (changed("c", {"id": 1, "name": "a", "price": "12345.00"}), OutOfRange),
        (changed("c", {"id": 1, "name": "a", "price": "NaN"}), OutOfRange),
        (changed("c", {"id": 1, "name": "a", "price": "AfQ="}), WrongType),
        (changed("c", {"id": 1, "name": "a", "price": 1.5}), WrongType),
    ],
)
def test_what_is_no_row_to_load_has_a_reason(raw: bytes, reason: type[BadRow]) -> None:
    with pytest.raises(BadRow) as raised:
        DECODER.decode(raw)
    assert type(raised.value) is reason
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        ("boolean", True, True),
        ("smallint", -32_768, -32_768),
        ("int", 7, 7),
        ("float", 0.5, 0.5),
        ("float", 3.4028235e38, 3.4028234663852886e38),
        ("float", 1e-45, 1.401298464324817e-45),
        ("float", "NaN", "nan"),
        ("double", "-Infinity", float("-inf")),
        ("decimal(38,10)", "-1.0000000000000", Decimal("-1.0000000000")),
        ("decimal(3,0)", 7, Decimal(7)),
        ("string", "{1,2}", "{1,2}"),
        ("binary", "AAE=", b"\x00\x01"),
        ("date", "2026-01-02", datetime.date(2026, 1, 2)),
        ("timestamp", "2026-01-02 03:04:05.000006+00", datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.UTC)),
        ("timestamp_ntz", "2026-01-02 03:04:05.5", datetime.datetime(2026, 1, 2, 3, 4, 5, 500_000)),
        ("string", None, None),
    ],
)
def test_values_are_those_that_postgresql_prints(kind: str, written: object, value: object) -> None:
    decoded: Any = DebeziumDecoder(f"v {kind}").decode(changed("c", {"v": written})).value["v"]
    assert (type(decoded), decoded) == (type(value), value) or str(decoded) == value


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("boolean", 1),
        ("smallint", 32_768),
        ("smallint", True),
        ("double", "inf"),
        ("float", 1e39),
        ("float", 10**400),
        ("float", -1e-46),
        ("binary", "A"),
        ("date", "infinity"),
        ("timestamp", "2026-01-02 03:04:05"),
        ("timestamp_ntz", "2026-01-02 03:04:05+00"),
        ("timestamp", 1_767_000_000_000_000),
        ("binary", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="),
    ],
)
def test_a_value_of_another_type_is_a_bad_row(kind: str, written: object) -> None:
    with pytest.raises(BadRow):
        DebeziumDecoder(f"v {kind}").decode(changed("c", {"v": written}))


def test_a_column_named_as_the_one_of_deleted_rows_is_refused() -> None:
    with pytest.raises(SchemaError, match="__deleted"):
        DebeziumDecoder("id INT, __DELETED BOOLEAN")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["op", "after", "before", "id", "name", "price"]), inner, max_size=4)
        ),
        max_leaves=12,
    ),
    st.sampled_from(["c", "u", "d", "t", "x"]),
)
def test_any_json_is_a_row_or_a_bad_row(value: Any, op: str) -> None:
    for document in (value, {"op": op, "after": value, "before": value}):
        try:
            decoded = DECODER.decode(json.dumps(document).encode())
        except BadRow:
            continue
        assert decoded.value.keys() == {"id", "name", "price", "__deleted"}
