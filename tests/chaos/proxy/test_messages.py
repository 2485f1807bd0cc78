"""Claims about changed and made answers: the addresses in them, the offered versions, the error codes."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from kio.schema.index import api_key_map, schema_name_map

from einmal.chaos.proxy.addresses import Address, behind_proxy, encode_answer
from einmal.chaos.proxy.frames import AnswerFrame, RequestFrame
from einmal.chaos.proxy.refusals import refusal
from einmal.types import ErrorCode
from einmal.wire.errors import WireError
from einmal.wire.messages import api_name, response_type
from tests.chaos.proxy.requests import filled, filled_request, request


def versions(*keys: int) -> list[tuple[int, int]]:
    """Without loading a schema: every worker collects this file."""
    return [(key, version) for key in keys or api_key_map for version in schema_name_map[api_key_map[key]]]


def route(broker: int, address: Address) -> Address:
    return "127.0.0.1", 10_000 + broker


def addresses(message: Any) -> list[tuple[int | None, str, int]]:
    """Every id, host and port in a message."""
    found = []
    if getattr(message, "host", None) is not None:
        found.append((getattr(message, "broker_id", getattr(message, "node_id", None)), message.host, message.port))
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        for each in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(each):
                found += addresses(each)
    return found


@pytest.mark.parametrize(("key", "version"), versions(0, 1, 3, 10, 60, 75, 78, 79))
def test_every_address_in_an_answer_becomes_the_proxys(key: int, version: int) -> None:
    asked = filled_request(key, version)
    original = filled(response_type(key, version))
    answer = AnswerFrame(asked, encode_answer(asked.header, original))
    changed = AnswerFrame(asked, behind_proxy(answer, route))
    found = addresses(changed.message)
    assert len(found) == len(addresses(original))
    assert all(each == (1, "127.0.0.1", 10_001) for each in found)
    assert not found or changed.message != original
    assert changed.frame[:4] == answer.frame[:4], "the correlation id"


def test_no_address_is_made_for_a_coordinator_that_is_not_available() -> None:
    asked = request(10, 3, key="group")
    schema = response_type(10, 3)
    values = dataclasses.asdict(filled(schema)) | {"node_id": -1, "host": "", "port": -1}
    answer = AnswerFrame(asked, encode_answer(asked.header, schema(**values)))
    assert behind_proxy(answer, route) is answer.frame


def test_an_answer_of_an_unknown_api_is_not_looked_at() -> None:
    asked = RequestFrame(b"\x03\xe7\x00\x63\x00\x00\x00\x07\xff\xff garbage", 1, 1)
    answer = AnswerFrame(asked, b"\x00\x00\x00\x07 garbage")
    assert asked.api == "999"
    assert behind_proxy(answer, route) is answer.frame
    assert asked.transactional_ids == frozenset()
    with pytest.raises(WireError):
        _ = asked.message


@pytest.mark.parametrize("version", [0, 3, 4, 5])
def test_versions_that_are_not_known_are_not_offered(version: int) -> None:
    """Version 5 of ApiVersions is Apache Kafka 4.4's; its answer is that of version 4."""
    schema = response_type(18, min(version, 4))
    asked = RequestFrame(struct.pack(">hhih", 18, version, 7, -1) + b"not looked at", 1, 1)
    offered = filled(schema)
    key = dataclasses.replace(offered.api_keys[0], min_version=0)
    offers = [(3, 0, 99), (28, 0, 6), (28, 0, 1), (26, 98, 99), (999, 0, 99)]
    keys = tuple(
        dataclasses.replace(key, api_key=api, min_version=oldest, max_version=newest) for api, oldest, newest in offers
    )
    answer = AnswerFrame(asked, encode_answer(asked.header, dataclasses.replace(offered, api_keys=keys)))
    changed = AnswerFrame(asked, behind_proxy(answer, route)).message
    newest = [max(version for _, version in versions(api)) for api in (3, 28)]
    assert [each.max_version for each in changed.api_keys] == [*newest, 1, 99, 99]


def test_a_refused_version_of_api_versions_passes_unchanged() -> None:
    asked = filled_request(18, 4)
    older = response_type(18, 0)(
        error_code=ErrorCode.unsupported_version, api_keys=filled(response_type(18, 0)).api_keys
    )
    answer = AnswerFrame(asked, encode_answer(asked.header, older))
    assert behind_proxy(answer, route) is answer.frame


@pytest.mark.parametrize(("key", "version"), versions())
def test_a_refusal_fits_the_schema_of_every_version(key: int, version: int) -> None:
    asked = filled_request(key, version)
    answer = AnswerFrame(asked, refusal(asked, ErrorCode.not_coordinator))
    message = answer.message
    assert answer.frame[:4] == asked.frame[4:8]
    codes = list(error_codes(message))
    assert ErrorCode.not_coordinator in codes or not has_error(type(message)), api_name(key)


def error_codes(message: Any) -> Iterator[ErrorCode]:
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        if isinstance(value, ErrorCode):
            yield value
        for each in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(each):
                yield from error_codes(each)


def has_error(schema: Any) -> bool:
    return any(isinstance(each, ErrorCode) for each in error_codes(filled(schema)))


def test_a_refusal_names_the_partitions_of_the_request() -> None:
    topics = [
        {"name": "a", "partition_data": [{"index": 3, "records": b""}, {"index": 5, "records": b""}]},
        {"name": "b", "partition_data": [{"index": 0, "records": b""}]},
    ]
    asked = request(0, 9, acks=-1, timeout=1, topic_data=topics)
    answer = AnswerFrame(asked, refusal(asked, ErrorCode.not_leader_or_follower)).message
    assert [
        (topic.name, each.index, each.error_code) for topic in answer.responses for each in topic.partition_responses
    ] == [
        ("a", 3, ErrorCode.not_leader_or_follower),
        ("a", 5, ErrorCode.not_leader_or_follower),
        ("b", 0, ErrorCode.not_leader_or_follower),
    ]


def test_a_refused_fetch_has_its_error_on_each_partition_only() -> None:
    asked = request(1, 12, topics=[{"topic": "a", "partitions": [{"partition": 4}]}])
    answer = AnswerFrame(asked, refusal(asked, ErrorCode.not_leader_or_follower)).message
    (topic,) = answer.responses
    assert answer.error_code is ErrorCode.none
    assert (topic.topic, topic.partitions[0].partition_index) == ("a", 4)
    assert topic.partitions[0].error_code is ErrorCode.not_leader_or_follower


def test_a_refused_add_partitions_names_plain_partitions() -> None:
    asked = request(24, 3, v3_and_below_topics=[{"name": "a", "partitions": [1, 2]}])
    answer = AnswerFrame(asked, refusal(asked, ErrorCode.concurrent_transactions)).message
    (topic,) = answer.results_by_topic_v3_and_below
    assert [(each.partition_index, each.partition_error_code) for each in topic.results_by_partition] == [
        (1, ErrorCode.concurrent_transactions),
        (2, ErrorCode.concurrent_transactions),
    ]
