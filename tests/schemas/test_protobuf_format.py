"""Claims about Protobuf: typed values, missing fields, unknown fields and bytes that are no message."""

from __future__ import annotations

import decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einmal.schemas.errors import BadRow, InvalidText, MalformedValue, MissingField, SchemaError, UnusableSchema
from einmal.schemas.protobuf_format import ProtobufDecoder
from tests.schemas.protobuf_files import file_set, message_class

FILES = file_set(
    Item=[("sku", 1, "string"), ("count", 2, "uint32")],
    Payment=[("id", 1, "int64"), ("card", 2, "string"), ("items", 3, "repeated Item"), ("big", 4, "uint64")],
)
DECODER = ProtobufDecoder(FILES, "test.Payment")


def test_a_message_has_its_values_and_its_index_in_the_file() -> None:
    kind = message_class(FILES, "test.Payment")
    message = kind(id=7, card="c", items=[{"sku": "s", "count": 3}], big=2**64 - 1)
    assert DECODER.ddl == (
        "struct<`id`:bigint,`card`:string,`items`:array<struct<`sku`:string,`count`:bigint>>,`big`:decimal(20,0)>"
    )
    expected = {"id": 7, "card": "c", "items": [{"sku": "s", "count": 3}], "big": decimal.Decimal(2**64 - 1)}
    assert DECODER.decode(message.SerializeToString()) == (expected, {})
    assert DECODER.indexes == (1,)


def test_a_field_that_the_descriptors_do_not_have_is_drift() -> None:
    newer = file_set(Payment=[("id", 1, "int64"), ("currency", 9, "string")])
    raw = message_class(newer, "test.Payment")(id=7, currency="EUR").SerializeToString()
    decoded = DECODER.decode(raw)
    assert decoded.value["id"] == 7 and set(decoded.unknown) == {"$.9"}


@pytest.mark.parametrize(
    ("raw", "reason"), [(b"\x0a", MalformedValue), (b"\xff\xff", MalformedValue), (b"\x12\x01\xff", InvalidText)]
)
def test_a_bad_row_has_a_reason(raw: bytes, reason: type[BadRow]) -> None:
    with pytest.raises(BadRow) as raised:
        DECODER.decode(raw)
    assert type(raised.value) in (reason, MalformedValue)


def test_a_required_field_that_is_missing_is_a_bad_row() -> None:
    decoder = ProtobufDecoder(file_set("proto2", Payment=[("id", 1, "required int64")]))
    with pytest.raises(MissingField, match="id"):
        decoder.decode(b"")


def test_another_message_of_the_file_is_a_bad_row() -> None:
    with pytest.raises(UnusableSchema):
        DECODER.decode(b"", (0,))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (b"\xff", None),
        (FILES, None),
        (FILES, "test.Nothing"),
        (file_set(Node=[("next", 1, "Node")]), None),
    ],
)
def test_descriptors_that_cannot_be_used_are_refused(files: bytes, message: str | None) -> None:
    with pytest.raises(SchemaError):
        ProtobufDecoder(files, message)


@given(st.binary())
def test_all_bytes_are_a_value_or_a_bad_row(raw: bytes) -> None:
    try:
        DECODER.decode(raw)
    except BadRow as error:
        assert str(error)
