"""Our types of requests and responses, and kio's schemas: the same messages in every version that is supported."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from einmal.wire.api.describe_groups import DescribedGroup, DescribedGroupMember, DescribeGroupsResponse
from einmal.wire.api.describe_producers import (
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from einmal.wire.api.list_groups import ListedGroup, ListGroupsResponse
from einmal.wire.api.list_transactions import ListTransactionsResponse
from einmal.wire.errors import Malformed, Truncated, WireError
from einmal.wire.message import Message
from einmal.wire.message_writer import message_slices, message_writer
from einmal.wire.messages import request_type, response_type
from einmal.wire.primitives import ELEMENTS_MAX
from einmal.wire.request_reader import RESPONSE_ELEMENTS_MAX, message_reader
from tests.client.mutating_network import mutated
from tests.suite.cases import each_case
from tests.wire.kio_messages import encode
from tests.wire.mapped import APIS, read, write
from tests.wire.test_message_writer import random_fields
from tests.wire.test_request_reader import SAMPLES

VERSIONS = [(key, version) for key, each in APIS.items() for version in range(each.versions.min, each.versions.max + 1)]
MESSAGES = [(key, version, kind) for key, version in VERSIONS for kind in ("request", "response")]
ROUNDS = 5


def schema_and_type(key: int, version: int, kind: str) -> tuple[Any, Any]:
    if kind == "request":
        return request_type(key, version), APIS[key].request
    return response_type(key, version), APIS[key].response


def written(schema: Any, values: Any, message: Any = None) -> bytes:
    if message is None:
        return write(schema, values)
    out = bytearray()
    message_writer(schema, message)(out, values)
    return bytes(out)


def kios_request(key: int, version: int, body: bytes) -> Any:
    return read(request_type(key, version), body, 0, ELEMENTS_MAX)[0]


@each_case(("key", "version", "kind"), MESSAGES)
def test_what_is_read_is_written_again(key: int, version: int, kind: str) -> None:
    schema, message = schema_and_type(key, version, kind)
    source = random.Random(key * 100 + version)
    for _ in range(ROUNDS):
        fields = random_fields(schema, source)
        body = encode(schema, fields)
        value, end = message_reader(schema, message)(Message.of(body, RESPONSE_ELEMENTS_MAX), 0)
        assert (type(value), end) == (message, len(body))
        assert written(schema, value, message) == body
        assert b"".join(message_slices(schema, message, value)) == body


@each_case(("key", "version"), VERSIONS)
def test_a_client_writes_and_reads_what_kio_writes(key: int, version: int) -> None:
    api, source = APIS[key], random.Random(key * 100 + version)
    for _ in range(ROUNDS):
        body = encode(request_type(key, version), random_fields(request_type(key, version), source))
        assert api.encode_request(version, api.decode_request(version, body, 0)) == body
        body = encode(response_type(key, version), random_fields(response_type(key, version), source))
        response = api.decode_response(version, b"head" + body, 4)
        assert type(response) is api.response
        assert api.encode_response(version, response) == body


@each_case(("key", "version", "kind"), MESSAGES)
def test_defaults_are_the_schemas(key: int, version: int, kind: str) -> None:
    schema, message = schema_and_type(key, version, kind)
    assert written(schema, message(), message) == written(schema, {})


@pytest.mark.parametrize(("key", "version"), [each for each in SAMPLES if each[0] in APIS])
def test_a_request_has_the_values_that_kio_reads(key: int, version: int) -> None:
    body = written(request_type(key, version), SAMPLES[key, version])
    ours, kios = APIS[key].decode_request(version, body, 0), kios_request(key, version, body)
    for name, value in SAMPLES[key, version].items():
        read = getattr(ours, name)
        if isinstance(value, list):
            assert len(read) == len(getattr(kios, name)) == len(value)
        elif not isinstance(value, dict):
            assert read == value


@each_case(("key", "version"), VERSIONS)
def test_a_mutated_request_is_read_or_refused(key: int, version: int) -> None:
    source = random.Random(key * 100 + version)
    schema = request_type(key, version)
    for _ in range(20):
        body = mutated(encode(schema, random_fields(schema, source)), source)
        try:
            ours: Any = APIS[key].decode_request(version, body, 0)
        except WireError as error:
            ours = type(error)
        try:
            kios: Any = kios_request(key, version, body)
        except WireError as error:
            kios = type(error)
        assert (ours is kios) if isinstance(ours, type) else type(ours) is APIS[key].request


def in_steps(key: int, version: int, body: bytes) -> list[Any]:
    return list(APIS[key].decode_request_in_steps(version, body, 0))


@each_case(("key", "version"), VERSIONS)
def test_reading_in_steps_reads_or_refuses_the_same(key: int, version: int) -> None:
    source = random.Random(key * 100 + version)
    schema = request_type(key, version)
    for _ in range(20):
        body = encode(schema, random_fields(schema, source))
        assert in_steps(key, version, body)[-1] == APIS[key].decode_request(version, body, 0)
        broken = mutated(body, source)
        try:
            whole: Any = APIS[key].decode_request(version, broken, 0)
        except WireError as error:
            with pytest.raises(type(error)) as raised:
                in_steps(key, version, broken)
            assert raised.value.args == error.args
        else:
            assert in_steps(key, version, broken)[-1] == whole


@pytest.mark.parametrize(("topics", "partitions"), [(1, 4_000), (4_000, 1), (60, 60)])
def test_a_wide_request_is_read_in_many_steps(topics: int, partitions: int) -> None:
    """However its elements are nested: others have their turns between the steps."""
    asked = [{"name": "t", "partition_indexes": list(range(partitions))}] * topics
    body = written(request_type(9, 8), {"groups": [{"group_id": "g", "topics": asked}]})
    steps = in_steps(9, 8, body)
    assert len(steps) > topics * partitions / 16 / 2
    assert steps[:-1] == [None] * (len(steps) - 1)


def test_a_field_that_the_version_lacks_has_its_default() -> None:
    body = written(request_type(11, 0), {"session_timeout": 7})
    join = APIS[11].decode_request(0, body, 0)
    assert (join.session_timeout, join.rebalance_timeout, join.group_instance_id) == (7, -1, None)


def test_a_null_is_empty_where_the_version_has_none() -> None:
    join = APIS[11].response(protocol_name=None)
    assert APIS[11].encode_response(6, join) == written(response_type(11, 6), {"protocol_name": ""})
    assert APIS[11].encode_response(7, join) == written(response_type(11, 7), {"protocol_name": None})


def test_a_response_of_another_api_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        APIS[11].encode_response(7, APIS[12].response())


def test_a_time_beyond_all_calendars_is_malformed() -> None:
    body = struct.pack(">h", 1) + b"g" + struct.pack(">ih", 1, 0) + struct.pack(">q", 2**63 - 1) + bytes(4)
    with pytest.raises(Malformed):
        APIS[8].decode_request(2, body, 0)


def test_the_elements_of_all_arrays_are_counted_together() -> None:
    groups = [{"topics": [{"partition_indexes": list(range(ELEMENTS_MAX // 10))}] * 10}]
    with pytest.raises(Malformed, match="elements"):
        APIS[9].decode_request(8, written(request_type(9, 8), {"groups": groups}), 0)
    with pytest.raises(Truncated):
        APIS[9].decode_request(8, b"", 0)


PRODUCERS = [ProducerState()] * 5_000
MEMBERS = [DescribedGroupMember()] * 5_000


@pytest.mark.parametrize(
    ("key", "response"),
    [
        (16, ListGroupsResponse(groups=[ListedGroup("g")] * 5_000)),
        (15, DescribeGroupsResponse(groups=[DescribedGroup(members=MEMBERS)])),
        (61, DescribeProducersResponse(topics=[TopicResponse("t", [PartitionResponse(active_producers=PRODUCERS)])])),
        (66, ListTransactionsResponse(unknown_state_filters=["x"] * 5_000)),
    ],
    ids=["an array", "an array in an array", "an array in an array in an array", "an array of strings"],
)
def test_a_long_array_anywhere_in_a_response_is_written_in_short_pieces(key: int, response: Any) -> None:
    api = APIS[key]
    pieces = list(api.response_slices(api.versions.max, response))
    assert b"".join(pieces) == api.encode_response(api.versions.max, response)
    assert max(map(len, pieces)) < 4_200
    assert all(len(piece) >= 4_096 for piece in pieces[:-1])
