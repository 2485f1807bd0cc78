import dataclasses
import io
import struct
import time
import tracemalloc
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer

from einmal.wire.errors import Malformed, Truncated, WireError
from einmal.wire.messages import request_type, response_type
from einmal.wire.primitives import ELEMENTS_MAX, STRING_BYTES_MAX
from einmal.wire.schemas import unwrap
from tests.suite.cases import each_case
from tests.suite.patience import patient
from tests.wire.kio_messages import build, encode
from tests.wire.mapped import decode_request, encode_request, read

METADATA = 3
DESCRIBE_TOPIC_PARTITIONS = 75

SAMPLES: dict[tuple[int, int], dict[str, Any]] = {
    (3, 1): {"topics": None},
    (3, 12): {"topics": [{"name": "t"}, {"name": None}], "allow_auto_topic_creation": False},
    (9, 8): {"groups": [{"group_id": "g", "topics": [{"name": "t", "partition_indexes": [1, 2]}]}]},
    (11, 5): {
        "group_id": "g",
        "session_timeout": 6_000,
        "rebalance_timeout": 60_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"\x00\x01"}],
    },
    (18, 3): {"client_software_name": "a", "client_software_version": "1"},
    (19, 7): {
        "topics": [{"name": "t", "num_partitions": -1, "replication_factor": 1, "configs": [{"name": "a"}]}],
        "timeout": 1_000,
    },
    (20, 6): {"topics": [{"name": "t"}], "timeout": 5},
    (22, 3): {"transactional_id": "x", "transaction_timeout": 1_000, "producer_id": 5, "producer_epoch": 7},
    (26, 5): {"transactional_id": "x", "producer_id": 1, "producer_epoch": 2, "committed": True},
    (75, 0): {"topics": [{"name": "t"}], "response_partition_limit": 7, "cursor": {"topic_name": "t"}},
}


@pytest.mark.parametrize(("api_key", "version"), SAMPLES)
def test_it_reads_what_kio_reads(api_key: int, version: int) -> None:
    body = encode_request(api_key, version, SAMPLES[api_key, version])
    schema = request_type(api_key, version)
    expected, size = entity_reader(schema)(body, 0)
    assert read(schema, body, 0) == (expected, size)
    assert read(schema, b"before" + body, 6) == (expected, size + 6)
    assert decode_request(api_key, version, b"before" + body, 6) == decode_request(api_key, version, body, 0)


@each_case("api_key", range(0, 76))
def test_every_schema_can_be_read(api_key: int) -> None:
    for version in range(20):
        try:
            schema = load_request_schema(api_key, version)
        except Exception:  # noqa: BLE001 - kio raises errors of its own for what it does not have.
            continue
        fields = request_type(api_key, version)
        buffer = io.BytesIO()
        entity_writer(schema)(buffer, _message(fields))
        assert read(schema, buffer.getvalue(), 0)[1] == len(buffer.getvalue())


def _message(schema: type[Any]) -> Any:
    return build(schema, {})


@pytest.mark.parametrize("load", [request_type, response_type])
def test_no_string_of_any_message_is_longer_than_apache_kafka_reads_it(load: Any) -> None:
    """A flexible version has room for longer ones, and no Apache Kafka reads them."""
    refused = 0
    for api_key, name in api_key_map.items():
        newest = max(schema_name_map[name])
        schema = load(api_key, newest)
        if not schema.__flexible__ or not (fields := _with_strings(schema, "x" * STRING_BYTES_MAX)):
            continue
        body = encode(schema, fields)
        assert read(schema, body, 0)[1] == len(body)
        with pytest.raises(Malformed, match="string of 32768 bytes"):
            read(schema, encode(schema, _with_strings(schema, "x" * (STRING_BYTES_MAX + 1))), 0)
        refused += 1
    assert refused > 30


def _with_strings(schema: Any, text: str) -> dict[str, Any]:
    """Fields with this text as every string; empty where the message has none."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(schema):
        inner, _is_nullable, is_array = unwrap(field.type)
        value: Any = None
        if dataclasses.is_dataclass(inner):
            value = _with_strings(inner, text)
        elif field.metadata["kafka_type"] == "string":
            value = text
        if value:
            fields[field.name] = [value] if is_array else value
    return fields


@pytest.mark.parametrize("count", [2**31 - 1, 10**9, 10**8, 10**7, ELEMENTS_MAX + 1])
def test_the_length_of_an_array_is_not_believed(count: int) -> None:
    tracemalloc.start()
    with pytest.raises(WireError):
        decode_request(METADATA, 1, struct.pack(">i", count) + bytes(20), 0)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_the_largest_array_is_read_in_bounded_time() -> None:
    body = struct.pack(">i", ELEMENTS_MAX) + struct.pack(">h", 0) * ELEMENTS_MAX
    start = time.thread_time()
    assert len(decode_request(METADATA, 1, body, 0).topics) == ELEMENTS_MAX
    assert time.thread_time() - start < patient(2)


@pytest.mark.parametrize("size", range(30))
def test_a_body_that_ends_early_is_truncated(size: int) -> None:
    body = encode_request(22, 3, SAMPLES[22, 3])
    if size < len(body):
        with pytest.raises(Truncated):
            decode_request(22, 3, body[:size], 0)


def test_null_stands_only_where_the_schema_has_it() -> None:
    with pytest.raises(Malformed):
        decode_request(9, 8, b"\x00\x00\x00", 0)
    with pytest.raises(Malformed):
        decode_request(26, 1, struct.pack(">h", -1) + bytes(11), 0)


def test_an_unknown_tagged_field_is_skipped() -> None:
    body = encode_request(26, 5, SAMPLES[26, 5])
    assert body.endswith(b"\x00")
    extended = body[:-1] + b"\x01\x63\x03abc"
    assert decode_request(26, 5, extended, 0) == decode_request(26, 5, body, 0)


def test_a_time_beyond_all_calendars_is_malformed() -> None:
    body = struct.pack(">h", 1) + b"g" + struct.pack(">ih", 1, 0) + struct.pack(">q", 2**63 - 1) + bytes(4)
    with pytest.raises(Malformed):
        decode_request(8, 2, body, 0)


def test_a_nullable_structure_may_be_null() -> None:
    body = encode_request(DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": [], "response_partition_limit": 1, "cursor": None})
    assert decode_request(DESCRIBE_TOPIC_PARTITIONS, 0, body, 0).cursor is None


def test_the_elements_of_all_arrays_are_counted_together() -> None:
    topics = [{"name": "t", "partition_indexes": list(range(ELEMENTS_MAX // 10))}] * 10
    body = encode_request(9, 8, {"groups": [{"group_id": "g", "topics": topics}]})
    with pytest.raises(Malformed, match="elements"):
        decode_request(9, 8, body, 0)


def test_empty_elements_cannot_multiply() -> None:
    body = encode_request(9, 8, {"groups": [{"group_id": "", "topics": []}] * (ELEMENTS_MAX + 1)})
    started = time.thread_time()
    with pytest.raises(Malformed, match="elements"):
        decode_request(9, 8, body, 0)
    assert time.thread_time() - started < patient(1)


def test_unknown_tagged_fields_are_bounded() -> None:
    body = encode_request(9, 8, {"groups": []})[:-1] + b"\xff\x7f" + b"\x63\x00" * 16_383
    with pytest.raises(Malformed, match="tagged"):
        decode_request(9, 8, body, 0)


def test_an_array_of_nullable_ids_may_not_be_null_itself() -> None:
    schema = request_type(62, 2)
    body = encode_request(62, 2, {"cluster_id": "c", "rack": None, "log_dirs": []})
    # An empty array of ids before the empty tags; a null one has a length of 0.
    assert body.endswith(b"\x01\x00")
    with pytest.raises(Malformed):
        read(schema, body[:-2] + b"\x00\x00", 0)
