"""Claims about JSON: every bad row has a reason that contains nothing of it, and every good row its typed value."""

from __future__ import annotations

import datetime
import decimal
import json
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from einmal.schemas.columns import Unknown, rescued_text
from einmal.schemas.debezium_format import DebeziumDecoder
from einmal.schemas.decoder import Limits
from einmal.schemas.errors import (
    BadRow,
    InvalidText,
    MalformedValue,
    MissingField,
    NestedTooDeeply,
    OutOfRange,
    SchemaError,
    ValueTooLarge,
    WrongType,
)
from einmal.schemas.json_format import JsonDecoder

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": ["string", "null"]},
        "at": {"type": "string", "format": "date-time"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "rates": {"type": "object", "additionalProperties": {"type": "number"}},
        "place": {"$ref": "#/$defs/place"},
        "any": {},
    },
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"x": {"type": "number"}, "inner": {"$ref": "#/$defs/place"}},
            "additionalProperties": False,
        }
    },
}
DECODER = JsonDecoder(json.dumps(SCHEMA))


def test_columns_have_sparks_types_and_a_recursive_part_is_text() -> None:
    assert DECODER.ddl == (
        "struct<`id`:bigint,`name`:string,`at`:timestamp_ltz,`tags`:array<string>,`rates`:map<string,double>,"
        "`place`:struct<`x`:double,`inner`:string>,`any`:string>"
    )


def test_a_good_row_has_its_values() -> None:
    document = {"id": 7, "at": "2026-01-02T03:04:05+01:00", "tags": ["a"], "rates": {"eur": 1}, "any": [1, {"b": None}]}
    value, unknown = DECODER.decode(json.dumps(document).encode())
    assert value == {
        "id": 7,
        "name": None,
        "at": datetime.datetime(2026, 1, 2, 2, 4, 5, tzinfo=datetime.UTC),
        "tags": ["a"],
        "rates": [("eur", 1.0)],
        "place": None,
        "any": '[1,{"b":null}]',
    }
    assert not unknown


def test_a_time_may_have_the_small_letters_of_rfc_3339() -> None:
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 600_000, tzinfo=datetime.UTC)
    for text in ("2026-01-02T03:04:05.6Z", "2026-01-02t03:04:05.6z", "2026-01-02t04:04:05.600000+01:00"):
        assert DECODER.decode(json.dumps({"id": 1, "at": text}).encode()).value["at"] == moment


def test_unknown_fields_are_drift_also_where_the_schema_excludes_them() -> None:
    value, unknown = DECODER.decode(b'{"id": 1, "extra": {"a": 1}, "place": {"x": 1, "z": 2}}')
    assert value["place"] == {"x": 1.0, "inner": None}
    assert unknown == {"$.extra": {"a": 1}, "$.place.z": 2}


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


TEXT, INTEGER = {"type": "string"}, {"type": "integer"}
MEOW, BARK = closed(meow=TEXT), closed(bark=TEXT)


@pytest.mark.parametrize(
    "pet",
    [
        {"oneOf": [MEOW, BARK]},
        {"oneOf": [{"$ref": "#/$defs/meow"}, {"$ref": "#/$defs/bark"}]},
        {"not": MEOW},
        {"not": {"$ref": "#/$defs/meow"}},
        {"if": MEOW, "then": False},
        {"if": {"$ref": "#/$defs/meow"}, "then": False},
        {"oneOf": [{"properties": {"meow": TEXT}, "unevaluatedProperties": False}, BARK]},
        {"enum": [{"additionalProperties": False}, {"bark": "wow"}]},
    ],
)
def test_a_document_that_is_valid_by_the_rules_that_closed_objects_make_is_a_value(pet: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"pet": pet}, "$defs": {"meow": MEOW, "bark": BARK}}
    value, unknown = JsonDecoder(json.dumps(schema)).decode(b'{"pet": {"bark": "wow"}}')
    assert value == {"pet": '{"bark":"wow"}'}
    assert not unknown


@pytest.mark.parametrize("pet", [{"oneOf": [MEOW, BARK]}, {"not": MEOW}, {"if": MEOW, "then": False}])
def test_drift_beside_rules_that_closed_objects_make_is_drift(pet: dict[str, Any]) -> None:
    value, unknown = JsonDecoder(json.dumps(closed(pet=pet))).decode(b'{"pet": {"bark": "wow"}, "extra": 1}')
    assert value == {"pet": '{"bark":"wow"}'}
    assert unknown == {"$.extra": 1}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": INTEGER}, "unevaluatedProperties": False},
        {"anyOf": [{"type": "null"}, closed(a=INTEGER)]},
        {"$ref": "#/$defs/a", "$defs": {"a": closed(a=INTEGER)}},
    ],
)
def test_what_excludes_unknown_fields_makes_no_bad_rows(schema: dict[str, Any]) -> None:
    value, unknown = JsonDecoder(json.dumps(schema)).decode(b'{"a": 1, "b": 2}')
    assert (value, unknown) == ({"a": 1}, {"$.b": 2})


def test_properties_with_the_names_of_rules_are_properties() -> None:
    inner = closed(x=INTEGER)
    schema = {"type": "object", "properties": {"not": inner, "enum": inner, "additionalProperties": False}}
    decoder = JsonDecoder(json.dumps(schema))
    value, unknown = decoder.decode(b'{"not": {"x": 1, "y": 2}, "enum": {"x": 3, "y": 4}}')
    assert value == {"not": {"x": 1}, "enum": {"x": 3}, "additionalProperties": None}
    assert unknown == {"$.not.y": 2, "$.enum.y": 4}
    with pytest.raises(WrongType):
        decoder.decode(b'{"additionalProperties": 1}')


BASE = {"type": "object", "properties": {"name": TEXT, "at": {"type": "object", "properties": {"x": INTEGER}}}}


@pytest.mark.parametrize(
    ("rules", "columns"),
    [
        ({"allOf": [{"properties": {"name": TEXT}}]}, "`id`:bigint,`name`:string"),
        ({"allOf": [{"allOf": [{"properties": {"name": TEXT}}]}, {"required": ["id"]}]}, "`id`:bigint,`name`:string"),
        ({"allOf": [{"$ref": "#/$defs/base"}]}, "`id`:bigint,`name`:string,`at`:struct<`x`:bigint>"),
        ({"$ref": "#/$defs/base"}, "`name`:string,`at`:struct<`x`:bigint>,`id`:bigint"),
        (
            {"allOf": [{"$ref": "#/$defs/base"}, {"properties": {"at": {"properties": {"y": INTEGER}}}}]},
            "`id`:bigint,`name`:string,`at`:struct<`x`:bigint,`y`:bigint>",
        ),
        ({"if": {"required": ["id"]}, "then": {"properties": {"name": TEXT}}}, "`id`:bigint,`name`:string"),
        ({"dependentSchemas": {"id": {"properties": {"name": TEXT}}}}, "`id`:bigint,`name`:string"),
        (
            {"allOf": [{"anyOf": [{"properties": {"name": TEXT}}, {"$ref": "#/$defs/base"}]}]},
            "`id`:bigint,`at`:string,`name`:string",
        ),
    ],
)
def test_properties_that_other_rules_add_are_columns_and_no_drift(rules: dict[str, Any], columns: str) -> None:
    schema = {"type": "object", "properties": {"id": INTEGER}, "$defs": {"base": BASE}, **rules}
    decoder = JsonDecoder(json.dumps(schema))
    assert decoder.ddl == f"struct<{columns}>"
    value, unknown = decoder.decode(b'{"id": 1, "name": "x"}')
    assert value["id"] == 1 and value["name"] in ("x", '"x"')
    assert not unknown


def test_a_recursive_schema_with_other_rules_ends() -> None:
    node = {
        "type": "object",
        "properties": {"id": INTEGER},
        "allOf": [{"properties": {"next": {"$ref": "#/$defs/node"}}}, {"$ref": "#/$defs/node"}],
    }
    schema = {"$ref": "#/$defs/node", "$defs": {"node": node}}
    assert JsonDecoder(json.dumps(schema)).ddl == "struct<`id`:bigint,`next`:string>"


def test_rules_with_an_identifier_of_their_own_hold_and_have_no_columns() -> None:
    base = {"$id": "https://example.com/base", "required": ["id"], "properties": {"name": TEXT}}
    schema = {
        "type": "object",
        "properties": {"id": INTEGER},
        "allOf": [{"$ref": base["$id"]}],
        "$defs": {"base": base},
    }
    decoder = JsonDecoder(json.dumps(schema))
    assert decoder.decode(b'{"id": 1, "name": "x"}') == ({"id": 1}, {"$.name": "x"})
    with pytest.raises(MissingField):
        decoder.decode(b"{}")


def test_a_reference_by_name_is_json() -> None:
    place = {"$anchor": "place", "type": "object", "properties": {"x": INTEGER}}
    schema = {"type": "object", "properties": {"at": {"$ref": "#place"}}, "$defs": {"place": place}}
    assert JsonDecoder(json.dumps(schema)).decode(b'{"at": {"x": 1}}').value == {"at": '{"x":1}'}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", MalformedValue),
        (b'{"id": 1', MalformedValue),
        (b"\x00\x00\x00\x00\x01{}", MalformedValue),
        (b'{"id": NaN}', MalformedValue),
        (b'{"id": ' + b"9" * 5000 + b"}", MalformedValue),
        (b'{"id": "1"}', WrongType),
        (b"[]", WrongType),
        (b'{"id": 1, "rates": {"secret": "x"}}', WrongType),
        (b'{"id": 1, "at": "yesterday"}', WrongType),
        (b"{}", MissingField),
        (b'{"id": 18446744073709551616}', OutOfRange),
        (b'{"id": 1, "rates": {"x": 1e400}}', OutOfRange),
        (b'{"id": 1, "any": [-2E+0308]}', OutOfRange),
        (b'{"id": 1, "other": ' + b"9" * 310 + b".5}", OutOfRange),
        (b'{"id": 1, "any": 1e-400}', OutOfRange),
        (b'{"id": 1, "any": 1e-99999999999999999999}', OutOfRange),
        (b'{"id": 1, "any": 0.' + b"3" * 5000 + b"}", MalformedValue),
        (b'{"id": 1.0000000000000000001}', WrongType),
        (b'{"id": 9223372036854775807.5}', WrongType),
        (b'{"id": 9223372036854775808.0}', OutOfRange),
        (b'{"id": 1, "name": "\xff"}', InvalidText),
        (b'{"id": 1, "name": "\\ud83d"}', InvalidText),
        (b"[" * 100_000, NestedTooDeeply),
        (b'{"id": 1, "any": ' + b"[" * 65 + b"]" * 65 + b"}", NestedTooDeeply),
    ],
)
def test_a_bad_row_has_a_reason(raw: bytes, reason: type[BadRow]) -> None:
    with pytest.raises(BadRow) as raised:
        DECODER.decode(raw)
    assert type(raised.value) is reason
    assert "secret" not in str(raised.value) and "yesterday" not in str(raised.value)


def test_brackets_in_text_are_no_nesting() -> None:
    assert DECODER.decode(json.dumps({"id": 1, "name": '"[{' * 500}).encode()).value["id"] == 1


@pytest.mark.parametrize("piece", [b'\\"', b'"', b"\\", b'x\\"', b"[]", b'"\\"'])
def test_the_depth_of_a_value_is_checked_in_time_that_grows_with_its_size(piece: bytes) -> None:
    raw = b"[" + b"[]," * 65 + b'"' + piece * (64_000 // len(piece))
    began = time.process_time()
    Limits().check_depth(raw)
    assert time.process_time() - began < 2


def test_a_value_that_is_too_large_is_not_parsed() -> None:
    with pytest.raises(ValueTooLarge):
        JsonDecoder("{}", Limits(size=10)).decode(b'"0123456789"')


def test_items_of_few_bytes_have_no_more_columns_than_memory() -> None:
    """One item of three bytes has a value for each of 1,000 columns."""
    item = {"type": "object", "properties": {f"f{at}": TEXT for at in range(1_000)}}
    decoder = JsonDecoder(json.dumps({"type": "array", "items": {"type": "array", "items": item}}))

    def decoded(*counts: int) -> Any:
        arrays = ("[" + ",".join(["{}"] * count) + "]" for count in counts)
        return decoder.decode(f"[{','.join(arrays)}]".encode()).value

    assert [len(items) for items in decoded(10, 20)] == [10, 20]
    # Each of the two would be small enough.
    with pytest.raises(ValueTooLarge, match="8,388,608 values"):
        decoded(10, 8_380)


@pytest.mark.parametrize(
    "schema", ["", "[]", '{"type": 7}', '{"$ref": "http://127.0.0.1/x"}', '{"$ref": "#/nowhere"}', '{"pattern": "("}']
)
def test_a_schema_that_cannot_be_used_is_refused(schema: str) -> None:
    with pytest.raises(SchemaError):
        JsonDecoder(schema)


def test_a_schema_of_more_columns_than_memory_is_refused() -> None:
    """Each of 30 objects has two properties of the next: a billion columns in three kilobytes."""
    levels: dict[str, Any] = {
        f"d{level}": {
            "type": "object",
            "properties": {name: {"$ref": f"#/$defs/d{level + 1}"} for name in ("a", "b")},
        }
        for level in range(30)
    }
    schema = {"$ref": "#/$defs/d0", "$defs": levels | {"d30": {"type": "string"}}}
    with pytest.raises(SchemaError, match="more than 10,000 types"):
        JsonDecoder(json.dumps(schema))


def test_a_number_that_is_no_double_may_be_beside_escaped_text() -> None:
    raw = b'{"id": 1, "name": "\\u00e4", "any": 1.2345678901234567891}'
    value, _ = DECODER.decode(raw)
    assert (value["name"], value["any"]) == ("ä", "1.2345678901234567891")
    with pytest.raises(InvalidText):
        DECODER.decode(raw.replace(b"00e4", b"d83d"))


def decimals(value: Any) -> Any:
    return json.loads(value, parse_float=decimal.Decimal, parse_int=decimal.Decimal)


numbers = st.one_of(
    st.decimals(-(10**20), 10**20, allow_nan=False, allow_infinity=False).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(allow_nan=False, allow_infinity=False).map("{:.25e}".format),
    st.integers(-(2**63), 2**63 - 1).map("{}.0".format),
    st.tuples(st.integers(-(10**19), 10**19), st.integers(-20, 20)).map(lambda each: f"{each[0]}e{each[1]}"),
)


@given(numbers)
def test_no_digit_of_a_number_is_lost_in_json(text: str) -> None:
    value, unknown = DECODER.decode(f'{{"id": 1, "any": [{text}], "extra": {{"a": {text}}}}}'.encode())
    assert decimals(value["any"]) == [decimal.Decimal(text)]
    assert decimals(rescued_text(Unknown(dict(unknown)))) == {"$.extra": {"a": decimal.Decimal(text)}}


@given(numbers)
@example("9007199254740993.0")
@example("1.000000000000000001E18")
@example("1.1529215046061e18")
@example("1.1529215046068471e+18")
def test_a_number_is_exactly_an_integer_or_a_bad_row(text: str) -> None:
    for decoder, raw in (
        (DECODER, f'{{"id": {text}}}'),
        (DebeziumDecoder("id BIGINT"), f'{{"op": "c", "after": {{"id": {text}}}}}'),
    ):
        number = decimal.Decimal(text)
        is_bigint = number == int(number) and -(2**63) <= number < 2**63
        try:
            assert decoder.decode(raw.encode()).value["id"] == number
            assert is_bigint
        except BadRow:
            assert not is_bigint


def test_numbers_of_a_column_of_doubles_are_doubles() -> None:
    raw = b'{"id": 1, "rates": {"a": 0.12345678901234567890, "b": 1e22, "c": 0e-500, "d": 12345678901234567.50}}'
    rates = dict(DECODER.decode(raw).value["rates"])
    assert rates == {"a": 0.12345678901234568, "b": 1e22, "c": 0.0, "d": 12345678901234568.0}
    assert all(type(rate) is float for rate in rates.values())


documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([*SCHEMA["properties"], "z"]) | st.text(), inner),
)


@given(documents)
def test_every_document_is_a_value_or_a_bad_row(document: Any) -> None:
    try:
        DECODER.decode(json.dumps(document).encode("utf-8", "surrogatepass"))
    except BadRow as error:
        assert str(error)


@given(st.binary())
def test_all_bytes_are_a_value_or_a_bad_row(raw: bytes) -> None:
    try:
        DECODER.decode(raw)
    except BadRow as error:
        assert str(error)
