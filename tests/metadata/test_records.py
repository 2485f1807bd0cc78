from uuid import UUID

import pytest

from einmal.metadata.records import (
    FENCE,
    NO_LEADER,
    RECOVERING,
    UNFENCE,
    AccessControlEntryRecord,
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    QuotaEntityPart,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    SupportedFeature,
    TopicRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
    decode,
    encode,
)
from einmal.security.acl import Acl, AclOperation, PatternType, Permission, ResourceType
from einmal.types import BrokerId, LeaderEpoch, ProducerId
from einmal.wire.errors import WireError
from tests.suite.cases import each_case

TOPIC_ID = UUID(int=0x0102030405060708090A0B0C0D0E0F10)
ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
ACL = Acl(ResourceType.TOPIC, "ab", PatternType.PREFIXED, "User:a", "*", AclOperation.READ, Permission.ALLOW)

RECORDS: list[MetadataRecord] = [
    RegisterBrokerRecord(ONE, TOPIC_ID, 7, (BrokerEndpoint("PLAINTEXT", "localhost", 65_535),), None),
    RegisterBrokerRecord(TWO, TOPIC_ID, 7, (), "rack"),
    RegisterBrokerRecord(
        TWO,
        TOPIC_ID,
        7,
        (BrokerEndpoint("PLAINTEXT", "::1", 1, 2),),
        "rack",
        (SupportedFeature("metadata.version", 25, 27),),
        is_fenced=False,
        in_controlled_shutdown=True,
        log_dirs=(TOPIC_ID, UUID(int=2)),
    ),
    BrokerRegistrationChangeRecord(ONE, 7, fenced=FENCE),
    BrokerRegistrationChangeRecord(ONE, 7, fenced=UNFENCE),
    BrokerRegistrationChangeRecord(ONE, 7, in_controlled_shutdown=1),
    UnregisterBrokerRecord(ONE, 7),
    NoOpRecord(),
    UserScramCredentialRecord("älice", 1, b"salt", bytes(32), bytes(range(32)), 4_096),
    RemoveUserScramCredentialRecord("älice", 2),
    TopicRecord("t", TOPIC_ID),
    PartitionRecord(
        0, TOPIC_ID, (ONE, TWO, THREE), (), NO_LEADER, LeaderEpoch(5), 9, (ONE,), (TWO,), RECOVERING, (THREE,), (ONE,)
    ),
    PartitionChangeRecord(3, TOPIC_ID, (), NO_LEADER, (ONE, TWO), (), (TWO,), RECOVERING, (), (ONE,)),
    PartitionRecord(0, TOPIC_ID, (ONE, TWO), (TWO,), TWO, LeaderEpoch(5), 9),
    PartitionChangeRecord(3, TOPIC_ID, isr=(ONE,), leader=TWO),
    PartitionChangeRecord(3, TOPIC_ID),
    ConfigRecord(2, "t", "retention.ms", "5"),
    ConfigRecord(2, "t", "retention.ms", None),
    RemoveTopicRecord(TOPIC_ID),
    FeatureLevelRecord("transaction.version", 2),
    ProducerIdsRecord(ONE, 7, ProducerId(1_000)),
    ClientQuotaRecord((QuotaEntityPart("client-id", None), QuotaEntityPart("user", "a")), "request_percentage", 0.5),
    ClientQuotaRecord((QuotaEntityPart("ip", "::1"),), "connection_creation_rate", 0.0, remove=True),
    AccessControlEntryRecord(TOPIC_ID, *ACL),
    RemoveAccessControlEntryRecord(TOPIC_ID),
]


@each_case("record", RECORDS)
def test_a_record_is_read_as_it_was_written(record: MetadataRecord) -> None:
    key, value = encode(record)
    assert key is None
    assert decode(key, value) == record


def test_a_topic_record_has_krafts_bytes() -> None:
    # Frame version 1, API key 2, version 0, compact string, id, no tags.
    assert encode(TopicRecord("ab", TOPIC_ID))[1] == b"\x01\x02\x00\x03ab" + TOPIC_ID.bytes + b"\x00"


def test_a_client_quota_has_krafts_bytes() -> None:
    # One part of the entity: type, name null (the default), no tags; key, IEEE 754 double, not removed, no tags.
    record = ClientQuotaRecord((QuotaEntityPart("user", None),), "k", 1.0)
    assert encode(record)[1] == b"\x01\x0e\x00\x02\x05user\x00\x00\x02k" + b"\x3f\xf0" + bytes(6) + b"\x00\x00"


def test_records_of_acls_have_krafts_bytes() -> None:
    # API keys 18 and 19: id, type, name, pattern, principal, host, operation, permission, no tags.
    entry = b"\x01\x12\x00" + TOPIC_ID.bytes + b"\x02\x03ab\x04\x07User:a\x02*\x03\x03\x00"
    assert encode(AccessControlEntryRecord(TOPIC_ID, *ACL))[1] == entry
    assert encode(RemoveAccessControlEntryRecord(TOPIC_ID))[1] == b"\x01\x13\x00" + TOPIC_ID.bytes + b"\x00"


@pytest.mark.parametrize("position", [19, 23, 33, 34])
def test_an_acl_with_a_number_that_has_no_name_is_refused(position: int) -> None:
    encoded = bytearray(encode(AccessControlEntryRecord(TOPIC_ID, *ACL))[1] or b"")
    encoded[position] = 99
    with pytest.raises(WireError, match="99"):
        decode(None, bytes(encoded))


def test_a_users_credential_has_krafts_bytes() -> None:
    # Frame version 1, API key 11, version 0, name, mechanism, salt, stored key, server key, iterations, no tags.
    record = UserScramCredentialRecord("ab", 1, b"s", b"st", b"ser", 4_096)
    assert encode(record)[1] == b"\x01\x0b\x00\x03ab\x01\x02s\x03st\x04ser\x00\x00\x10\x00\x00"
    assert encode(RemoveUserScramCredentialRecord("ab", 2))[1] == b"\x01\x16\x00\x03ab\x02\x00"
    assert "ser" not in repr(record).replace("UserScramCredentialRecord", "")


def test_a_change_of_a_partition_has_krafts_bytes() -> None:
    # Frame version 1, API key 5, version 2, partition, topic, three tags: ISR, leader, eligible leader replicas.
    assert encode(PartitionChangeRecord(7, TOPIC_ID, isr=(ONE,), leader=NO_LEADER, elr=()))[1] == (
        b"\x01\x05\x02\x00\x00\x00\x07" + TOPIC_ID.bytes + b"\x03"
        b"\x00\x05\x02\x00\x00\x00\x01"
        b"\x01\x04\xff\xff\xff\xff"
        b"\x06\x01\x01"
    )


def test_records_of_older_versions_are_read() -> None:
    registration = b"\x01\x00\x00" + b"\x00\x00\x00\x01" + TOPIC_ID.bytes + bytes(7) + b"\x09\x01\x01\x00\x00\x00"
    assert decode(None, registration) == RegisterBrokerRecord(ONE, TOPIC_ID, 9, (), None, is_fenced=False)
    partition = (
        b"\x01\x03\x00\x00\x00\x00\x00" + TOPIC_ID.bytes + b"\x02\x00\x00\x00\x01\x02\x00\x00\x00\x01\x01\x01"
        b"\x00\x00\x00\x01\x00\x00\x00\x04\x00\x00\x00\x05\x00"
    )
    assert decode(None, partition) == PartitionRecord(0, TOPIC_ID, (ONE,), (ONE,), ONE, LeaderEpoch(4), 5)


def test_a_kind_of_record_that_is_not_ours_is_skipped() -> None:
    assert decode(None, b"\x01\x63\x00anything") is None


@each_case("record", RECORDS)
def test_a_record_that_ends_early_is_refused(record: MetadataRecord) -> None:
    value = encode(record)[1]
    for size in range(len(value) - 1):
        try:
            decode(None, value[:size])
        except WireError:
            continue
