"""Claims about routing: which records wait, in which order they continue, and what they occupy meanwhile."""

from __future__ import annotations

import random
from uuid import UUID

from einmal.client.cores.metadata_cache import PartitionMetadata, TopicMetadata
from einmal.client.cores.partitioner import Partitioner
from einmal.client.cores.record_router import RecordRouter, UnroutedRecord
from einmal.types import ErrorCode, TopicPartition
from einmal.wire.murmur2 import partition_for_key
from einmal.wire.record_batch import NewRecord


def topic_of(partitions: int, error: ErrorCode = ErrorCode.none) -> TopicMetadata:
    known = {index: PartitionMetadata(index, leader=1) for index in range(partitions)}
    return TopicMetadata("t", UUID(int=7), known, error_code=error)


def router_of() -> RecordRouter:
    return RecordRouter(Partitioner(random.Random(1), 1_000))


def record(value: bytes, partition: int | None = None, key: bytes | None = None) -> UnroutedRecord:
    return UnroutedRecord(NewRecord(key, value, 0), 10, partition, value)


def routed(router: RecordRouter, known: TopicMetadata) -> list[tuple[TopicPartition, bytes]]:
    return [(where, each.ticket) for where, each in router.routable("t", known)]


def test_a_record_of_a_known_topic_is_routed_at_once() -> None:
    router = router_of()
    assert router.route("t", topic_of(4), b"key", 10, None) == partition_for_key(b"key", 4)
    assert router.route("t", topic_of(4), b"key", 10, 3) == 3
    assert router.route("t", topic_of(4), b"key", 10, 0) == 0


def test_a_record_waits_for_its_topic_and_for_its_partition() -> None:
    router = router_of()
    assert router.route("t", None, b"key", 10, None) is None
    assert router.route("t", topic_of(2, ErrorCode.leader_not_available), b"key", 10, 0) is None
    assert router.route("t", topic_of(0), None, 10, None) is None
    assert router.route("t", topic_of(2), None, 10, 2) is None


def test_nothing_overtakes_a_record_that_waits() -> None:
    router = router_of()
    router.wait("t", record(b"a", partition=1))
    assert router.route("t", topic_of(2), None, 10, 0) is None
    assert router.route("u", topic_of(2), None, 10, 0) == 0
    router.wait("t", record(b"b", partition=0))
    assert routed(router, topic_of(2)) == [(TopicPartition("t", 1), b"a"), (TopicPartition("t", 0), b"b")]
    assert not router.is_waiting("t")
    assert router.route("t", topic_of(2), None, 10, 0) == 0


def test_a_record_for_a_partition_that_is_missing_holds_up_those_behind_it() -> None:
    router = router_of()
    for value, partition in ((b"a", 0), (b"b", 2), (b"c", 0)):
        router.wait("t", record(value, partition))
    assert router.missing_partition("t", topic_of(2)) is None
    assert routed(router, topic_of(2)) == [(TopicPartition("t", 0), b"a")]
    assert router.missing_partition("t", topic_of(2)) == 2
    assert routed(router, topic_of(2)) == []
    assert router.missing_partition("t", topic_of(3)) is None
    assert routed(router, topic_of(3)) == [(TopicPartition("t", 2), b"b"), (TopicPartition("t", 0), b"c")]


def test_only_records_for_missing_partitions_are_given_up() -> None:
    router = router_of()
    for value, partition in ((b"a", 2), (b"b", 0), (b"c", 3), (b"d", None)):
        router.wait("t", record(value, partition))
    assert [each.ticket for each in router.drop_missing("t", topic_of(2))] == [b"a", b"c"]
    assert router.waiting_bytes == 20
    assert [value for _, value in routed(router, topic_of(2))] == [b"b", b"d"]
    router.wait("t", record(b"e", 2))
    assert [each.ticket for each in router.drop_missing("t", topic_of(2))] == [b"e"]
    assert not router.is_waiting("t")


def test_a_waiting_record_without_a_partition_is_partitioned_by_its_key() -> None:
    router = router_of()
    router.wait("t", record(b"a", key=b"key"))
    assert router.missing_partition("t", topic_of(4)) is None
    assert routed(router, topic_of(4)) == [(TopicPartition("t", partition_for_key(b"key", 4)), b"a")]


def test_what_waits_counts_until_it_is_routed_or_dropped() -> None:
    router = router_of()
    for topic in ("t", "t", "u"):
        router.wait(topic, record(b"a", partition=0))
    assert (router.waiting_bytes, router.topics) == (30, ["t", "u"])
    assert [each.ticket for each in router.drop("u")] == [b"a"]
    assert router.waiting_bytes == 20
    assert len(routed(router, topic_of(1))) == 2
    assert (router.waiting_bytes, router.topics) == (0, [])
    assert router.drop("t") == []
