from uuid import UUID

import pytest

from einmal.metadata.records import (
    BrokerEndpoint,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    decode,
    encode,
)
from einmal.types import BrokerId, LeaderEpoch, ProducerId
from einmal.wire.errors import WireError

TOPIC_ID = UUID(int=0x0102030405060708090A0B0C0D0E0F10)
ONE, TWO = BrokerId(1), BrokerId(2)

RECORDS: list[MetadataRecord] = [
    RegisterBrokerRecord(ONE, TOPIC_ID, 7, (BrokerEndpoint("PLAINTEXT", "localhost", 65_535),), None),
    RegisterBrokerRecord(TWO, TOPIC_ID, 7, (), "rack"),
    TopicRecord("t", TOPIC_ID),
    PartitionRecord(0, TOPIC_ID, (ONE, TWO), (TWO,), TWO, LeaderEpoch(5), 9),
    PartitionChangeRecord(3, TOPIC_ID, isr=(ONE,), leader=TWO),
    PartitionChangeRecord(3, TOPIC_ID),
    ConfigRecord(2, "t", "retention.ms", "5"),
    ConfigRecord(2, "t", "retention.ms", None),
    RemoveTopicRecord(TOPIC_ID),
    FeatureLevelRecord("transaction.version", 2),
    ProducerIdsRecord(ONE, 7, ProducerId(1_000)),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_is_read_as_it_was_written(record: MetadataRecord) -> None:
    key, value = encode(record)
    assert key is None
    assert decode(key, value) == record


def test_a_topic_record_has_krafts_bytes() -> None:
    # Frame version 1, API key 2, version 0, compact string, id, no tags.
    assert encode(TopicRecord("ab", TOPIC_ID))[1] == b"\x01\x02\x00\x03ab" + TOPIC_ID.bytes + b"\x00"


def test_a_kind_of_record_that_is_not_ours_is_skipped() -> None:
    assert decode(None, b"\x01\x63\x00anything") is None


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_that_ends_early_is_refused(record: MetadataRecord) -> None:
    value = encode(record)[1]
    for size in range(len(value) - 1):
        try:
            decode(None, value[:size])
        except WireError:
            continue
