"""Claims about metadata: an answer of a broker that lags behind brings no old leader back."""

from __future__ import annotations

from uuid import UUID

from einmal.client.cores.metadata_cache import BrokerAddress, MetadataCache, PartitionMetadata, TopicMetadata
from einmal.types import ErrorCode, TopicPartition

T0 = TopicPartition("t", 0)
BROKERS = {1: BrokerAddress(1, "a", 1), 2: BrokerAddress(2, "b", 2)}


def topic(leader: int, epoch: int, *, topic_id: int = 7, error: ErrorCode = ErrorCode.none) -> dict[str, TopicMetadata]:
    return {"t": TopicMetadata("t", UUID(int=topic_id), {0: PartitionMetadata(0, leader, epoch)}, error_code=error)}


def known(*answers: dict[str, TopicMetadata]) -> MetadataCache:
    metadata = MetadataCache()
    for each in answers:
        metadata.update("cluster", 1, BROKERS, each)
    return metadata


def leader_of(metadata: MetadataCache) -> int | None:
    leader = metadata.leader(T0)
    return None if leader is None else leader.leader


def test_a_newer_epoch_wins_whatever_the_order_of_answers() -> None:
    assert leader_of(known(topic(1, 4), topic(2, 5))) == 2
    assert leader_of(known(topic(2, 5), topic(1, 4))) == 2


def test_a_topic_that_was_made_again_starts_anew() -> None:
    assert leader_of(known(topic(2, 5), topic(1, 0, topic_id=8))) == 1


def test_a_partition_without_a_known_leader_has_none() -> None:
    assert leader_of(known(topic(-1, 5))) is None
    assert leader_of(known(topic(9, 5))) is None
    assert leader_of(MetadataCache()) is None


def test_an_error_replaces_what_was_known() -> None:
    metadata = known(topic(1, 4), topic(-1, -1, error=ErrorCode.unknown_topic_or_partition))
    assert not metadata.topics["t"].is_usable


def test_an_answer_without_brokers_keeps_those_that_are_known() -> None:
    metadata = known(topic(1, 4))
    metadata.update(None, -1, {}, {})
    assert metadata.brokers == BROKERS
