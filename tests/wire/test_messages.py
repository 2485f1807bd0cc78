"""Claims about requests and responses of any version."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import struct
import tracemalloc
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

from einmal.types import ErrorCode
from einmal.wire import messages
from einmal.wire.errors import Truncated, WireError
from einmal.wire.schemas import unwrap
from tests.client.mutating_network import mutated
from tests.suite.cases import each_case
from tests.wire.kio_messages import build
from tests.wire.mapped import decode_request, decode_response, encode_request, encode_response, read

ALL = [
    (key, version)
    for key, name in api_key_map.items()
    for version in schema_name_map[name]
    if EntityType.request in schema_name_map[name][version]
]


@each_case(("api_key", "version"), ALL)
def test_every_message_can_be_written_from_nothing_and_read_again(api_key: int, version: int) -> None:
    body = encode_request(api_key, version, {})
    schema = messages.request_type(api_key, version)
    assert read(schema, body, 0) == (build(schema, {}), len(body))
    body = encode_response(api_key, version, {})
    assert decode_response(api_key, version, body, 0) == build(messages.response_type(api_key, version), {})


def test_fields_that_a_version_does_not_have_are_left_out() -> None:
    fields = {
        "error_code": ErrorCode.producer_fenced,
        "producer_id": 7,
        "producer_epoch": 3,
        "throttle_time": 5,
    }
    old = decode_response(26, 3, encode_response(26, 3, fields), 0)
    new = decode_response(26, 5, encode_response(26, 5, fields), 0)
    assert not hasattr(old, "producer_id")
    assert (new.producer_id, new.producer_epoch, new.error_code) == (
        7,
        3,
        ErrorCode.producer_fenced,
    )
    assert new.throttle_time == timedelta(milliseconds=5)


def test_nested_values_are_plain_mappings() -> None:
    fields = {
        "topics": [
            {
                "name": "t",
                "topic_id": UUID(int=9),
                "partitions": [{"partition_index": 1, "error_code": ErrorCode.none}],
            }
        ],
    }
    read = decode_response(3, 12, encode_response(3, 12, fields), 0)
    assert read.topics[0].partitions[0].partition_index == 1
    assert read.topics[0].topic_id == UUID(int=9)


def test_a_request_header_is_read_back() -> None:
    for version in (3, 5):
        frame = messages.encode_request_header(26, version, 99, "ü")
        header, position = messages.decode_request_header(frame)
        assert header == messages.RequestHeader(26, version, 99, "ü")
        assert position == len(frame)


def test_a_cut_request_is_refused() -> None:
    frame = messages.encode_request_header(26, 5, 99, "client") + encode_request(26, 5, {"transactional_id": "t"})
    for size in range(len(frame)):
        with pytest.raises(WireError):
            _header, position = messages.decode_request_header(frame[:size])
            decode_request(26, 5, frame[:size], position)
    with pytest.raises(Truncated):
        messages.read_uvarint(b"\x80", 0)


RESPONSES = [
    (key, version)
    for key, name in api_key_map.items()
    for version in schema_name_map[name]
    if EntityType.response in schema_name_map[name][version]
]


@pytest.mark.parametrize("count", [2**31 - 1, 10**9, 10**7])
def test_the_length_of_an_array_in_a_response_is_not_believed(count: int) -> None:
    # ApiVersions 0: an error code, then an array. kio's own reader ends the process.
    tracemalloc.start()
    with pytest.raises(WireError):
        decode_response(18, 0, struct.pack(">hi", 0, count) + bytes(20), 0)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_an_error_code_of_a_later_kafka_is_an_unknown_server_error() -> None:
    assert decode_response(18, 0, struct.pack(">hi", 30_000, 0), 0).error_code is ErrorCode.unknown_server_error


@each_case(("api_key", "version"), RESPONSES)
def test_a_mutated_response_is_read_or_refused(api_key: int, version: int) -> None:
    source = random.Random(api_key * 100 + version)
    valid = encode_response(api_key, version, _filled(messages.response_type(api_key, version)))
    assert decode_response(api_key, version, valid, 0)
    for _ in range(100):
        with contextlib.suppress(WireError):
            decode_response(api_key, version, mutated(valid, source), 0)


def _filled(schema: Any) -> dict[str, Any]:
    """Fields with one element in every array, so that a mutation reaches every level."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(schema):
        inner, _is_nullable, is_array = unwrap(field.type)
        if is_array and dataclasses.is_dataclass(inner):
            fields[field.name] = [_filled(inner)] * 2
        elif dataclasses.is_dataclass(inner):
            fields[field.name] = _filled(inner)
    return fields
