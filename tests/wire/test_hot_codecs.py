"""The hand-written codecs against kio's, in both directions and every version; and against broken frames."""

from __future__ import annotations

import random
import struct
import tracemalloc
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einmal.types import ErrorCode
from einmal.wire import fetch, metadata, primitives, produce
from einmal.wire.api.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from einmal.wire.errors import Malformed, UnknownVersion, WireError
from einmal.wire.fetch import EpochEndOffset, FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from einmal.wire.messages import request_type, response_type
from einmal.wire.primitives import STRING_BYTES_MAX
from einmal.wire.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    ProducedPartition,
    ProduceRequest,
    ProduceResponse,
)
from tests.wire import kio_messages
from tests.wire.mapped import encode_request, encode_response

_INT32 = st.integers(min_value=-(2**31), max_value=2**31 - 1)
_INT64 = st.integers(min_value=-(2**63), max_value=2**63 - 1)
_TIME = st.integers(min_value=-1, max_value=2**40)
_COUNT = st.integers(min_value=0, max_value=2**31 - 1)
_TEXT = st.text(max_size=150)
_RECORDS = st.binary(max_size=300)
_ERRORS = st.sampled_from([ErrorCode.none, ErrorCode.corrupt_message, ErrorCode.invalid_producer_epoch])
_LEADERS = st.none() | st.builds(LeaderIdAndEpoch, _COUNT, _COUNT)
_ENDPOINTS = st.lists(st.builds(NodeEndpoint, _INT32, _TEXT, _INT32, st.none() | _TEXT), max_size=2)


def _topics(version: int, first_with_ids: int, items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names: st.SearchStrategy[Any] = _TEXT
    if version >= first_with_ids:
        names = st.binary(min_size=16, max_size=16).filter(any).map(lambda value: UUID(bytes=value))
    return st.lists(st.tuples(names, st.lists(items, max_size=3)), max_size=3)


def _topic_fields(topic: str | UUID, name: str = "name") -> dict[str, Any]:
    return {"topic_id": topic} if isinstance(topic, UUID) else {name: topic}


@given(st.data())
@settings(max_examples=70)
def test_produce_requests_are_kios(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(produce.VERSIONS))
    request = ProduceRequest(
        data.draw(st.none() | _TEXT),
        data.draw(st.sampled_from([-1, 0, 1])),
        data.draw(_COUNT),
        data.draw(_topics(version, 13, st.tuples(_INT32, st.none() | _RECORDS))),
    )
    fields = {
        "transactional_id": request.transactional_id,
        "acks": request.acks,
        "timeout": request.timeout_ms,
        "topic_data": [
            {
                **_topic_fields(topic),
                "partition_data": [{"index": index, "records": records} for index, records in partitions],
            }
            for topic, partitions in request.topics
        ],
    }
    body = encode_request(0, version, fields)
    assert b"".join(produce.encode_produce_request(version, request)) == body
    assert produce.decode_produce_request(version, b"head" + body, 4) == request


@given(st.data())
@settings(max_examples=70)
def test_produce_responses_are_kios(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(produce.VERSIONS))
    partitions = st.builds(
        ProducedPartition,
        _INT32,
        _ERRORS,
        _INT64,
        _TIME,
        _INT64 if version >= 5 else st.just(-1),
        st.lists(st.tuples(_INT32, st.none() | _TEXT), max_size=2) if version >= 8 else st.just([]),
        st.none() | _TEXT if version >= 8 else st.none(),
        _LEADERS if version >= 10 else st.none(),
    )
    response = ProduceResponse(
        data.draw(_topics(version, 13, partitions)), data.draw(_COUNT), data.draw(_ENDPOINTS) if version >= 10 else []
    )
    fields = {
        "responses": [
            {
                **_topic_fields(topic),
                "partition_responses": [
                    {
                        **partition._asdict(),
                        "index": partition.partition,
                        "record_errors": [
                            {"batch_index": index, "batch_index_error_message": message}
                            for index, message in partition.record_errors
                        ],
                        "current_leader": _present(partition.current_leader, leader_id=-1, leader_epoch=-1),
                    }
                    for partition in items
                ],
            }
            for topic, items in response.topics
        ],
        "throttle_time": response.throttle_time_ms,
        "node_endpoints": [endpoint._asdict() for endpoint in response.node_endpoints],
    }
    body = encode_response(0, version, fields)
    assert produce.encode_produce_response(version, response) == body
    decoded = produce.decode_produce_response(version, b"head" + body, 4)
    assert decoded.throttle_time_ms == response.throttle_time_ms
    assert decoded.node_endpoints == response.node_endpoints
    assert [
        (topic, [item._replace(record_errors=list(item.record_errors)) for item in items])
        for topic, items in decoded.topics
    ] == response.topics


def _present(value: Any, **absent: int) -> dict[str, int]:
    return absent if value is None else value._asdict()


@given(st.data())
@settings(max_examples=70)
def test_fetch_requests_are_kios(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(fetch.VERSIONS))
    absent = st.just(-1)
    partitions = st.builds(
        FetchPartition,
        _INT32,
        _INT64,
        _INT32,
        _INT32 if version >= 9 else absent,
        _INT32 if version >= 12 else absent,
        _INT64 if version >= 5 else absent,
        _INT64 if version >= 18 else st.just(fetch.NO_MATTER),
        st.uuids() if version >= 17 else st.just(fetch.NO_DIRECTORY),
    )
    has_session = version >= 7
    request = FetchRequest(
        data.draw(_COUNT),
        data.draw(_INT32),
        data.draw(_INT32),
        data.draw(st.sampled_from([0, 1])),
        data.draw(_topics(version, 13, partitions)),
        data.draw(_topics(version, 13, _INT32)) if has_session else [],
        data.draw(_INT32) if has_session else 0,
        data.draw(_INT32) if has_session else -1,
        data.draw(_TEXT) if version >= 11 else "",
        data.draw(st.integers(-1, 5)),
        -1,
        data.draw(st.none() | _TEXT) if version >= 12 else None,
    )
    fields = {
        **request._asdict(),
        "max_wait": request.max_wait_ms,
        "replica_state": {"replica_id": request.replica_id, "replica_epoch": -1},
        "topics": [
            {
                **_topic_fields(topic, "topic"),
                "partitions": [{**item._asdict(), "replica_directory_id": item.directory_id} for item in items],
            }
            for topic, items in request.topics
        ],
        "forgotten_topics_data": [
            {**_topic_fields(topic, "topic"), "partitions": items} for topic, items in request.forgotten
        ],
    }
    body = encode_request(1, version, fields)
    assert fetch.encode_fetch_request(version, request) == body
    assert fetch.decode_fetch_request(version, b"head" + body, 4) == request


@given(st.data())
@settings(max_examples=70)
def test_fetch_responses_are_kios(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(fetch.VERSIONS))
    flexible = version >= 12
    partitions = st.builds(
        FetchedPartition,
        _INT32,
        _ERRORS,
        _INT64,
        _INT64,
        _INT64 if version >= 5 else st.just(-1),
        st.none() | st.lists(st.tuples(_INT64, _INT64), max_size=3),
        _RECORDS,
        _INT32 if version >= 11 else st.just(-1),
        st.none() | st.builds(EpochEndOffset, _COUNT, _COUNT) if flexible else st.none(),
        _LEADERS if flexible else st.none(),
        st.none() | st.builds(fetch.SnapshotId, _COUNT, _COUNT) if flexible else st.none(),
    )
    response = FetchResponse(
        data.draw(_topics(version, 13, partitions)),
        data.draw(_ERRORS) if version >= 7 else ErrorCode.none,
        data.draw(_INT32) if version >= 7 else 0,
        data.draw(_COUNT),
        data.draw(_ENDPOINTS) if version >= 16 else [],
    )
    fields = {
        "throttle_time": response.throttle_time_ms,
        "error_code": response.error_code,
        "session_id": response.session_id,
        "responses": [
            {
                **_topic_fields(topic, "topic"),
                "partitions": [
                    {
                        **item._asdict(),
                        "partition_index": item.partition,
                        "aborted_transactions": None
                        if item.aborted_transactions is None
                        else [{"producer_id": pid, "first_offset": first} for pid, first in item.aborted_transactions],
                        "diverging_epoch": _present(item.diverging_epoch, epoch=-1, end_offset=-1),
                        "current_leader": _present(item.current_leader, leader_id=-1, leader_epoch=-1),
                        "snapshot_id": _present(item.snapshot_id, end_offset=-1, epoch=-1),
                    }
                    for item in items
                ],
            }
            for topic, items in response.topics
        ],
        "node_endpoints": [endpoint._asdict() for endpoint in response.node_endpoints],
    }
    body = encode_response(1, version, fields)
    assert b"".join(fetch.encode_fetch_response(version, response)) == body
    assert fetch.decode_fetch_response(version, b"head" + body, 4) == response


@given(st.data())
@settings(max_examples=150)
def test_metadata_responses_are_kios(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(metadata.VERSIONS))
    nodes = st.lists(_INT32, max_size=3)
    partitions = st.builds(MetadataResponsePartition, _ERRORS, _INT32, _INT32, _INT32, nodes, nodes, nodes)
    topics = st.builds(
        MetadataResponseTopic,
        _ERRORS,
        st.none() | _TEXT if version >= 12 else _TEXT,
        st.none() | st.uuids(),
        st.booleans(),
        st.lists(partitions, max_size=3),
        _INT32,
    )
    brokers = st.builds(MetadataResponseBroker, _INT32, _TEXT, _INT32, st.none() | _TEXT)
    response = MetadataResponse(
        throttle_time=data.draw(_COUNT),
        brokers=data.draw(st.lists(brokers, max_size=2)),
        cluster_id=data.draw(st.none() | _TEXT),
        controller_id=data.draw(_INT32),
        topics=data.draw(st.lists(topics, max_size=3)),
        error_code=data.draw(_ERRORS),
        cluster_authorized_operations=data.draw(_INT32),
    )
    fields = {
        **response._asdict(),
        "brokers": [broker._asdict() for broker in response.brokers],
        "topics": [
            {**topic._asdict(), "partitions": [partition._asdict() for partition in topic.partitions]}
            for topic in response.topics
        ],
    }
    assert metadata.encode_metadata_response(version, response) == encode_response(3, version, fields)


@pytest.mark.parametrize("version", [-1, 0, 2, 14, 100])
def test_unsupported_produce_versions_are_refused(version: int) -> None:
    with pytest.raises(UnknownVersion):
        produce.decode_produce_request(version, bytes(100), 0)


@pytest.mark.parametrize("version", [-1, 0, 3, 19, 100])
def test_unsupported_fetch_versions_are_refused(version: int) -> None:
    with pytest.raises(UnknownVersion):
        fetch.decode_fetch_request(version, bytes(100), 0)


LONG: Any = "x" * (STRING_BYTES_MAX + 1)
"""No string of Apache Kafka's."""


@pytest.mark.parametrize(
    ("decode", "schema", "version", "fields"),
    [
        (produce.decode_produce_request, request_type, 12, {"transactional_id": LONG}),
        (
            produce.decode_produce_request,
            request_type,
            12,
            {
                "transactional_id": LONG,
                "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": b"r"}]}],
            },
        ),
        (produce.decode_produce_request, request_type, 12, {"topic_data": [{"name": LONG}]}),
        (produce.decode_produce_response, response_type, 12, {"responses": [{"name": LONG}]}),
        (produce.decode_produce_response, response_type, 12, {"node_endpoints": [{"host": LONG}]}),
        (fetch.decode_fetch_request, request_type, 12, {"topics": [{"topic": LONG}]}),
        (fetch.decode_fetch_request, request_type, 12, {"forgotten_topics_data": [{"topic": LONG}]}),
        (fetch.decode_fetch_request, request_type, 12, {"rack_id": LONG}),
        (fetch.decode_fetch_request, request_type, 12, {"cluster_id": LONG}),
        (fetch.decode_fetch_response, response_type, 12, {"responses": [{"topic": LONG}]}),
    ],
)
def test_no_string_is_longer_than_apache_kafka_reads_it(decode: Any, schema: Any, version: int, fields: Any) -> None:
    api_key = 0 if "produce" in decode.__name__ else 1
    body = bytearray(kio_messages.encode(schema(api_key, version), fields))
    with pytest.raises(Malformed, match="string of 32768 bytes"):
        decode(version, body, 0)


@pytest.mark.parametrize("flexible", [True, False])
def test_long_names_are_encoded_and_forgotten_and_longer_ones_refused(flexible: bool) -> None:
    tracemalloc.start()
    try:
        for number in range(200):
            name = f"{number:03}" + "x" * (STRING_BYTES_MAX - 3)
            assert primitives.read_string(primitives.encode_string(name, flexible), 0, flexible)[0] == name
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
    with pytest.raises(struct.error):
        primitives.encode_string(LONG, flexible)


def _samples(version: int) -> list[tuple[Any, int, bytes]]:
    topic: Any = UUID(int=5) if version >= 13 else "topic"
    aborted = [(1, 2), (3, 4)]
    samples: list[tuple[Any, int, bytes]] = []
    if version in produce.VERSIONS:
        request = ProduceRequest("tx", -1, 1000, [(topic, [(0, b"records"), (1, None)])])
        answer = ProduceResponse(
            [(topic, [ProducedPartition(0, record_errors=[(1, "bad")], current_leader=LeaderIdAndEpoch(1, 2))])],
            node_endpoints=[NodeEndpoint(1, "host", 9092)],
        )
        samples += [
            (produce.decode_produce_request, version, b"".join(produce.encode_produce_request(version, request))),
            (produce.decode_produce_response, version, produce.encode_produce_response(version, answer)),
        ]
    if version in fetch.VERSIONS:
        asked = FetchRequest(1, 1, 1, 1, [(topic, [FetchPartition(0, 1, 1)] * 3)], [(topic, [1, 2])], replica_id=2)
        fetched = FetchResponse([(topic, [FetchedPartition(0, aborted_transactions=aborted, records=b"records")] * 2)])
        samples += [
            (fetch.decode_fetch_request, version, fetch.encode_fetch_request(version, asked)),
            (fetch.decode_fetch_response, version, b"".join(fetch.encode_fetch_response(version, fetched))),
        ]
    return samples


@pytest.mark.parametrize("version", range(3, 19))
def test_broken_frames_never_do_more_than_raise(version: int) -> None:
    source = random.Random(version)
    for decode, number, body in _samples(version):
        for end in range(len(body)):
            with pytest.raises(WireError):
                decode(number, body[:end], 0)
        for _ in range(1500):
            broken = bytearray(body)
            for _ in range(source.randint(1, 5)):
                broken[source.randrange(len(broken))] = source.choice((0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)))
            try:
                decode(number, bytes(broken), 0)
            except WireError:
                continue
