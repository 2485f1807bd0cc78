"""The errors of questions about a topic that there is not, by API: one whose name there may never be, or another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from einmal.metadata.image import TOPIC_RESOURCE
from einmal.types import ErrorCode
from tests.interop.conftest import Node
from tests.interop.raw import (
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_PRODUCERS,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    Connection,
)

pytestmark = pytest.mark.interop

_OFFSET_FOR_LEADER_EPOCH: Final = 23
_DESCRIBE_CONFIGS: Final = 32
_ALTER_CONFIGS: Final = 33
_CREATE_PARTITIONS: Final = 37
_INCREMENTAL_ALTER_CONFIGS: Final = 44
_DESCRIBE_TOPIC_PARTITIONS: Final = 75

_TIMEOUT_MS: Final = 30_000

ILLEGAL: Final = ("a b", ".", "..", "x" * 250, "ä", "a/b")
ABSENT: Final = "absent"

Fields = Callable[[str], dict[str, Any]]
_RETENTION: Final = {"name": "retention.ms", "value": "1"}
INVALID: Final[dict[str, tuple[int, int, Fields]]] = {
    "Metadata": (METADATA, 12, lambda name: {"topics": [{"name": name}], "allow_auto_topic_creation": False}),
    "DescribeTopicPartitions": (
        _DESCRIBE_TOPIC_PARTITIONS,
        0,
        lambda name: {"topics": [{"name": name}], "response_partition_limit": 100, "cursor": None},
    ),
    "DescribeConfigs": (
        _DESCRIBE_CONFIGS,
        4,
        lambda name: {
            "resources": [{"resource_type": TOPIC_RESOURCE, "resource_name": name, "configuration_keys": None}]
        },
    ),
    "AlterConfigs": (
        _ALTER_CONFIGS,
        2,
        lambda name: {"resources": [{"resource_type": TOPIC_RESOURCE, "resource_name": name, "configs": [_RETENTION]}]},
    ),
    "IncrementalAlterConfigs": (
        _INCREMENTAL_ALTER_CONFIGS,
        1,
        lambda name: {
            "resources": [
                {
                    "resource_type": TOPIC_RESOURCE,
                    "resource_name": name,
                    "configs": [_RETENTION | {"config_operation": 0}],
                }
            ]
        },
    ),
    "DescribeProducers": (
        DESCRIBE_PRODUCERS,
        0,
        lambda name: {"topics": [{"name": name, "partition_indexes": [0]}]},
    ),
}
UNKNOWN: Final[dict[str, tuple[int, int, Fields]]] = {
    "Fetch": (
        FETCH,
        12,
        lambda name: {"topics": [{"topic": name, "partitions": [{"partition": 0, "partition_max_bytes": 1_000}]}]},
    ),
    "ListOffsets": (
        LIST_OFFSETS,
        7,
        lambda name: {"topics": [{"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]}]},
    ),
    "OffsetForLeaderEpoch": (
        _OFFSET_FOR_LEADER_EPOCH,
        4,
        lambda name: {"topics": [{"topic": name, "partitions": [{"partition": 0, "leader_epoch": 0}]}]},
    ),
    "DeleteTopics": (DELETE_TOPICS, 5, lambda name: {"topic_names": [name], "timeout": _TIMEOUT_MS}),
    "DeleteRecords": (
        DELETE_RECORDS,
        2,
        lambda name: {"topics": [{"name": name, "partitions": [{"partition_index": 0}]}], "timeout": _TIMEOUT_MS},
    ),
    "CreatePartitions": (
        _CREATE_PARTITIONS,
        3,
        lambda name: {"topics": [{"name": name, "count": 3, "assignments": None}], "timeout": _TIMEOUT_MS},
    ),
}


@pytest.fixture
def connection(broker: Node) -> Iterator[Connection]:
    host, port = broker.bootstrap.split(",")[0].rsplit(":", 1)
    with Connection(host, int(port)) as connection:
        yield connection


def errors_in(answer: Any) -> list[ErrorCode]:
    """Those of topics and partitions, at whatever depth."""
    found = []
    for name in type(answer).__slots__ if hasattr(type(answer), "__slots__") else ():
        value = getattr(answer, name)
        if name == "error_code":
            found.append(ErrorCode(value))
        for each in value if isinstance(value, (tuple, list)) else ():
            found += errors_in(each)
    return found


def error_of(connection: Connection, question: tuple[int, int, Fields], name: str) -> ErrorCode:
    api, version, fields = question
    answer = connection.call(api, version, **fields(name))
    return errors_in(answer)[-1]


@pytest.mark.parametrize("api", INVALID)
def test_a_name_that_no_topic_may_have_is_invalid(connection: Connection, api: str) -> None:
    assert {name: error_of(connection, INVALID[api], name) for name in ILLEGAL} == dict.fromkeys(
        ILLEGAL, ErrorCode.invalid_topic_exception
    )
    assert error_of(connection, INVALID[api], ABSENT) is ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("api", UNKNOWN)
def test_other_questions_do_not_check_names(connection: Connection, api: str) -> None:
    asked = (*ILLEGAL, ABSENT)
    assert {name: error_of(connection, UNKNOWN[api], name) for name in asked} == dict.fromkeys(
        asked, ErrorCode.unknown_topic_or_partition
    )


def test_a_topic_is_not_made_with_such_a_name(connection: Connection) -> None:
    made = (
        CREATE_TOPICS,
        5,
        lambda name: {
            "topics": [{"name": name, "num_partitions": 1, "replication_factor": 1}],
            "timeout": _TIMEOUT_MS,
        },
    )
    assert {error_of(connection, made, name) for name in ILLEGAL} == {ErrorCode.invalid_topic_exception}
