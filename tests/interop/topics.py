"""Topics of a cluster of one node, ready to be used, and waiting without a clock of one's own.

Knows nothing of transactions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from einmal.types import ErrorCode
from tests.interop import raw
from tests.interop.raw import Connection

RETRIABLE: Final = (
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.concurrent_transactions,
    ErrorCode.not_enough_replicas,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.not_leader_or_follower,
)
_GROUP: Final = 0
_TRANSACTION: Final = 1
_PATIENCE_S: Final = 20.0
_PAUSE_S: Final = 0.01

T = TypeVar("T")


class Broker(NamedTuple):
    host: str
    port: int

    def connect(self) -> Connection:
        return Connection(self.host, self.port)


def at_last(ask: Callable[[], T], is_final: Callable[[T], bool]) -> T:
    """Ask until the answer is final. Raises AssertionError when that takes too long."""
    deadline = time.monotonic() + _PATIENCE_S
    while not is_final(answer := ask()):
        assert time.monotonic() < deadline, f"still {answer}"
        time.sleep(_PAUSE_S)
    return answer


def create_topic(broker: Broker, name: str, partitions: int) -> None:
    """Create a topic, and the coordinators' own topics with it, and wait until all can be used."""
    with broker.connect() as connection:
        answer = connection.call(
            raw.CREATE_TOPICS,
            7,
            # Some tests write records of long ago; retention would take them sooner or later.
            topics=[
                {
                    "name": name,
                    "num_partitions": partitions,
                    "replication_factor": 1,
                    "configs": [{"name": "retention.ms", "value": "-1"}],
                }
            ],
            timeout=10_000,
        )
        assert answer.topics[0].error_code in (ErrorCode.none, ErrorCode.topic_already_exists), answer
        for key_type in (_GROUP, _TRANSACTION):
            _wait_for_coordinator(connection, name, key_type)
        wait_for_leaders(connection, name)


def _wait_for_coordinator(connection: Connection, key: str, key_type: int) -> None:
    at_last(
        lambda: connection.call(raw.FIND_COORDINATOR, 3, key=key, key_type=key_type),
        lambda found: found.error_code == ErrorCode.none,
    )


def wait_for_leaders(connection: Connection, topic: str) -> None:
    """Wait until every partition of the topic is led, in the metadata and at its leader."""
    partitions = at_last(
        lambda: connection.call(
            raw.METADATA, 12, topics=[{"topic_id": None, "name": topic}], allow_auto_topic_creation=False
        ).topics[0],
        lambda found: found.error_code == ErrorCode.none and len(found.partitions) > 0,
    ).partitions
    indexes = [{"partition_index": each.partition_index, "timestamp": -1} for each in partitions]
    at_last(
        lambda: connection.call(
            raw.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=[{"name": topic, "partitions": indexes}]
        ).topics[0],
        lambda found: all(each.error_code == ErrorCode.none for each in found.partitions),
    )
