"""Topics of a cluster of one node, ready to be used, and waiting without a clock of one's own.

Knows nothing of transactions.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Final, NamedTuple, TypeVar

from einmal.types import ErrorCode
from einmal.wire.java_hash import partition_for_id
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
_PATIENCE_S: Final = 120.0
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
            timeout=60_000,
        )
        assert answer.topics[0].error_code in (ErrorCode.none, ErrorCode.topic_already_exists), answer
        wait_for_coordinators(connection)
        wait_for_leaders(connection, name)


def wait_for_coordinators(connection: Connection) -> None:
    """Wait until every coordinator, of groups and of transactional ids, is elected and has loaded what it knew.

    FindCoordinator answers earlier: it names the leader of a coordinator's partition, which loads it afterwards. Until
    then the first request of a test, whatever it asks, is answered with NOT_COORDINATOR.
    """
    for key_type, topic in ((_GROUP, "__consumer_offsets"), (_TRANSACTION, "__transaction_state")):
        # The first time, this creates the coordinators' topic.
        at_last(partial(_find_coordinator, connection, key_type), lambda error: error == ErrorCode.none)
        for key in _one_key_per_partition(_count_partitions(connection, topic)):
            at_last(partial(_ask_coordinator, connection, key_type, key), lambda error: error not in RETRIABLE)


def _find_coordinator(connection: Connection, key_type: int) -> int:
    return int(connection.call(raw.FIND_COORDINATOR, 3, key="any", key_type=key_type).error_code)


def _ask_coordinator(connection: Connection, key_type: int, key: str) -> int:
    """The error of a request that changes nothing."""
    if key_type == _TRANSACTION:
        return connection.describe_transaction(key).error_code
    return int(connection.call(raw.OFFSET_FETCH, 7, group_id=key, topics=None, require_stable=False).error_code)


@cache
def _one_key_per_partition(count: int) -> list[str]:
    found: dict[int, str] = {}
    keys = (f"key-{number}" for number in itertools.count())
    while len(found) < count:
        key = next(keys)
        found.setdefault(partition_for_id(key, count), key)
    return list(found.values())


def _count_partitions(connection: Connection, topic: str) -> int:
    answer = connection.call(
        raw.METADATA, 12, topics=[{"topic_id": None, "name": topic}], allow_auto_topic_creation=False
    )
    return len(answer.topics[0].partitions)


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
