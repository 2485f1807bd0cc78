"""The short way of requests and answers for one partition is the general way, only quicker."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from einmal.types import ErrorCode
from einmal.wire import produce
from einmal.wire.errors import WireError
from einmal.wire.primitives import Topic
from einmal.wire.produce import LeaderIdAndEpoch, NodeEndpoint, ProducedPartition, ProduceRequest, ProduceResponse

_FLEXIBLE = st.integers(min_value=9, max_value=13)
_INT32 = st.integers(min_value=-(2**31), max_value=2**31 - 1)
_INT64 = st.integers(min_value=-(2**63), max_value=2**63 - 1)
_NAMES = st.text(max_size=200)
_IDS = st.binary(min_size=16, max_size=16).map(lambda value: UUID(bytes=value))
_RECORDS = st.none() | st.binary(max_size=300)


def _outcome(decode: Callable[[int, bytes, int], ProduceRequest], version: int, frame: bytes) -> Any:
    try:
        return decode(version, frame, 0)
    except WireError as error:
        return type(error)


def _request(data: st.DataObject, version: int) -> bytes:
    names: st.SearchStrategy[Topic] = _IDS if version >= 13 else _NAMES
    partitions = st.tuples(_INT32, _RECORDS)
    several = st.lists(st.tuples(names, st.lists(partitions, max_size=2)), max_size=2)
    topic, index, records = data.draw(names), data.draw(_INT32), data.draw(_RECORDS)
    request = ProduceRequest(
        data.draw(st.none() | _NAMES),
        data.draw(st.integers(min_value=-1, max_value=2)),
        data.draw(_INT32),
        [(topic, [(index, records)])] if data.draw(st.booleans()) else data.draw(several),
    )
    return b"".join(produce.encode_produce_request(version, request))


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_the_short_way_reads_a_request_as_the_general_way_does(data: st.DataObject) -> None:
    version = data.draw(_FLEXIBLE)
    frame = _request(data, version)
    assert produce.decode_produce_request(version, frame, 0) == produce._decode_any(version, frame, 0)


@given(st.data(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_the_short_way_refuses_a_broken_request_as_the_general_way_does(
    data: st.DataObject, source: random.Random
) -> None:
    version = data.draw(_FLEXIBLE)
    whole = _request(data, version)
    for _ in range(20):
        broken = bytearray(whole[: source.choice((len(whole), source.randrange(len(whole) + 1)))])
        broken += bytes(source.choice((0, 0, 1, 3)))
        for _ in range(source.randint(0, 3) if broken else 0):
            broken[source.randrange(len(broken))] = source.choice((0, 1, 2, 3, 0x7F, 0x80, 0xFF))
        frame = bytes(broken)
        assert _outcome(produce.decode_produce_request, version, frame) == _outcome(produce._decode_any, version, frame)


def test_the_usual_request_takes_the_short_way() -> None:
    for version in range(9, 14):
        topic = UUID(int=5) if version >= 13 else "topic"
        for transactional_id in (None, "id"):
            request = ProduceRequest(transactional_id, -1, 30_000, [(topic, [(3, b"records")])])
            frame = b"".join(produce.encode_produce_request(version, request))
            assert produce._decode_single(frame, 0, version >= 13) == request


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_the_short_way_writes_an_answer_as_the_general_way_does(data: st.DataObject) -> None:
    version = data.draw(_FLEXIBLE)
    explained = st.builds(
        ProducedPartition,
        _INT32,
        st.sampled_from(ErrorCode),
        _INT64,
        _INT64,
        _INT64,
        st.just(()) | st.lists(st.tuples(_INT32, st.none() | _NAMES), max_size=2),
        st.none() | _NAMES,
        st.none() | st.builds(LeaderIdAndEpoch, _INT32, _INT32),
    )
    plain = st.tuples(_INT32, st.sampled_from(ErrorCode), _INT64, _INT64, _INT64).map(lambda o: ProducedPartition(*o))
    names: st.SearchStrategy[Topic] = _IDS if version >= 13 else _NAMES
    topics = st.tuples(names, st.lists(plain | explained, min_size=1, max_size=2))
    endpoints = st.just(()) | st.lists(st.builds(NodeEndpoint, _INT32, _NAMES, _INT32, st.none() | _NAMES), max_size=1)
    response = ProduceResponse(data.draw(st.lists(topics, max_size=2)), data.draw(_INT32), data.draw(endpoints))
    assert produce.encode_produce_response(version, response) == produce._encode_any(version, response)


def test_the_usual_answer_takes_the_short_way() -> None:
    for topic in ("topic", UUID(int=5)):
        response = ProduceResponse([(topic, [ProducedPartition(3, ErrorCode.none, 7, -1, 0)])])
        assert produce._encode_single(response) == produce._encode_any(13, response)
