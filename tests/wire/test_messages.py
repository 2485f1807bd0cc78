"""Claims about requests and responses of any version."""

from __future__ import annotations

from uuid import UUID

import pytest
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

from einmal.types import ErrorCode
from einmal.wire import messages
from einmal.wire.errors import Truncated, WireError

ALL = [
    (key, version)
    for key, name in api_key_map.items()
    for version in schema_name_map[name]
    if EntityType.request in schema_name_map[name][version]
]


@pytest.mark.parametrize(("api_key", "version"), ALL)
def test_every_message_can_be_written_from_nothing_and_read_again(api_key: int, version: int) -> None:
    body = messages.encode_request(api_key, version, {})
    assert messages.decode_request(api_key, version, body, 0) == messages.build(
        messages.request_type(api_key, version), {}
    )
    body = messages.encode_response(api_key, version, {})
    assert messages.decode_response(api_key, version, body, 0) == messages.build(
        messages.response_type(api_key, version), {}
    )


def test_fields_that_a_version_does_not_have_are_left_out() -> None:
    fields = {
        "error_code": ErrorCode.producer_fenced,
        "producer_id": 7,
        "producer_epoch": 3,
        "throttle_time": 5,
    }
    old = messages.decode_response(26, 3, messages.encode_response(26, 3, fields), 0)
    new = messages.decode_response(26, 5, messages.encode_response(26, 5, fields), 0)
    assert not hasattr(old, "producer_id")
    assert (new.producer_id, new.producer_epoch, new.error_code) == (
        7,
        3,
        ErrorCode.producer_fenced,
    )
    assert messages.milliseconds(new.throttle_time) == 5


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
    read = messages.decode_response(3, 12, messages.encode_response(3, 12, fields), 0)
    assert read.topics[0].partitions[0].partition_index == 1
    assert read.topics[0].topic_id == UUID(int=9)


def test_a_request_header_is_read_back() -> None:
    for version in (3, 5):
        frame = messages.encode_request_header(26, version, 99, "ü")
        header, position = messages.decode_request_header(frame)
        assert header == messages.RequestHeader(26, version, 99, "ü")
        assert position == len(frame)


def test_a_cut_request_is_refused() -> None:
    frame = messages.encode_request_header(26, 5, 99, "client") + messages.encode_request(
        26, 5, {"transactional_id": "t"}
    )
    for size in range(len(frame)):
        with pytest.raises(WireError):
            _header, position = messages.decode_request_header(frame[:size])
            messages.decode_request(26, 5, frame[:size], position)
    with pytest.raises(Truncated):
        messages.read_uvarint(b"\x80", 0)
