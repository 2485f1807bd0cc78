from uuid import UUID

from einmal.metadata.image import BROKER_RESOURCE, CLUSTER_DEFAULT, TOPIC_RESOURCE, ClusterImage, ImageDelta
from einmal.metadata.records import (
    FENCE,
    NO_LEADER,
    RECOVERING,
    UNFENCE,
    AccessControlEntryRecord,
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
)
from einmal.security.acl import Acl, AclOperation, PatternType, Permission, ResourceType
from einmal.types import BrokerId, LeaderEpoch, ProducerId

ONE, TWO = BrokerId(1), BrokerId(2)
A, B = UUID(int=10), UUID(int=11)
ACL = Acl(ResourceType.TOPIC, "a", PatternType.LITERAL, "User:a", "*", AclOperation.READ, Permission.ALLOW)
OTHER_ACL = ACL._replace(permission=Permission.DENY)

BEGINNING: list[MetadataRecord] = [
    FeatureLevelRecord("transaction.version", 2),
    RegisterBrokerRecord(ONE, A, 1, (), "rack", (SupportedFeature("f", 0, 1),), log_dirs=(B,)),
    RegisterBrokerRecord(TWO, B, 2, ()),
    BrokerRegistrationChangeRecord(ONE, 1, fenced=UNFENCE),
    TopicRecord("a", A),
    PartitionRecord(0, A, (ONE, TWO), (ONE, TWO), ONE, LeaderEpoch(0), 0),
    PartitionRecord(1, A, (TWO, ONE), (TWO, ONE), TWO, LeaderEpoch(0), 0),
    ConfigRecord(TOPIC_RESOURCE, "a", "retention.ms", "5"),
    ConfigRecord(BROKER_RESOURCE, CLUSTER_DEFAULT, "min.insync.replicas", "2"),
    ProducerIdsRecord(ONE, 1, ProducerId(1_000)),
    AccessControlEntryRecord(A, *ACL),
    AccessControlEntryRecord(B, *OTHER_ACL),
]


def image_of(records: list[MetadataRecord]) -> ClusterImage:
    image = ClusterImage()
    image.apply(records)
    return image


def test_a_delta_names_what_has_changed_and_nothing_else() -> None:
    image = ClusterImage()
    assert image.apply(BEGINNING) == ImageDelta(
        {"a": None},
        (),
        {"a": None},
        cluster_configs=True,
        brokers=True,
        features=True,
        acls=((ACL, True), (OTHER_ACL, True)),
    )
    assert image.apply([NoOpRecord(), ProducerIdsRecord(ONE, 1, ProducerId(2_000))]) == ImageDelta()
    assert image.apply([PartitionChangeRecord(1, A, isr=(TWO,))]) == ImageDelta({"a": None})
    assert image.apply([ConfigRecord(TOPIC_RESOURCE, "a", "retention.ms", None)]) == ImageDelta(configs={"a": None})
    assert image.apply([UnregisterBrokerRecord(TWO, 2)]) == ImageDelta(brokers=True)
    assert image.apply([RemoveAccessControlEntryRecord(A)]) == ImageDelta(acls=((ACL, False),))
    assert (image.acls, image.acl_ids) == ({B: OTHER_ACL}, {OTHER_ACL: B})


def test_a_topic_made_anew_under_the_same_name_is_both_deleted_and_changed() -> None:
    image = image_of(BEGINNING)
    again: list[MetadataRecord] = [
        PartitionChangeRecord(0, A, isr=(ONE,)),
        RemoveTopicRecord(A),
        TopicRecord("a", B),
        PartitionRecord(0, B, (ONE,), (ONE,), ONE, LeaderEpoch(0), 0),
    ]
    assert image.apply(again) == ImageDelta({"a": None}, (("a", A),))
    assert (image.topics["a"].topic_id, image.topic_configs("a")) == (B, {})


def test_naming_a_leader_begins_a_new_leader_epoch_and_every_change_a_partition_epoch() -> None:
    image = image_of(BEGINNING)
    image.apply([PartitionChangeRecord(0, A, isr=(TWO,), leader=TWO)])
    assert (image.topics["a"].partitions[0].leader_epoch, image.topics["a"].partitions[0].partition_epoch) == (1, 1)
    image.apply([PartitionChangeRecord(0, A, isr=(TWO, ONE))])
    assert (image.topics["a"].partitions[0].leader_epoch, image.topics["a"].partitions[0].partition_epoch) == (1, 2)


def test_what_is_held_of_an_image_does_not_change_with_it() -> None:
    image = image_of(BEGINNING)
    before, topic = image.copy(), image.topics["a"]
    image.apply([PartitionChangeRecord(0, A, isr=(TWO,), leader=TWO), BrokerRegistrationChangeRecord(ONE, 1, FENCE)])
    assert topic.partitions[0].leader == ONE
    assert before == image_of(BEGINNING)


def test_a_registration_is_fenced_unfenced_and_shut_down() -> None:
    image = image_of(BEGINNING)
    assert (image.brokers[ONE].is_active, image.brokers[TWO].is_active) == (True, False)
    image.apply([BrokerRegistrationChangeRecord(ONE, 1, in_controlled_shutdown=1)])
    assert (image.brokers[ONE].is_fenced, image.brokers[ONE].is_active) == (False, False)
    image.apply([BrokerRegistrationChangeRecord(ONE, 1, fenced=FENCE)])
    assert (image.brokers[ONE].is_fenced, image.brokers[ONE].in_controlled_shutdown) == (True, True)
    image.apply([RegisterBrokerRecord(ONE, B, 9, ())])
    assert (image.brokers[ONE].is_fenced, image.brokers[ONE].in_controlled_shutdown) == (True, False)


def test_the_records_of_a_snapshot_make_an_equal_image() -> None:
    image = image_of(BEGINNING)
    image.apply(
        [
            BrokerRegistrationChangeRecord(ONE, 1, in_controlled_shutdown=1),
            PartitionChangeRecord(0, A, (), NO_LEADER, (TWO, ONE), (ONE,), (TWO,), RECOVERING, (TWO,), (ONE,)),
            FeatureLevelRecord("off", 0),
            ClientQuotaRecord((QuotaEntityPart("user", "a"),), "request_percentage", 0.5),
            ClientQuotaRecord((QuotaEntityPart("user", "a"),), "producer_byte_rate", 5.0),
            UserScramCredentialRecord("alice", 1, b"salt", b"stored", b"server", 4_096),
            UserScramCredentialRecord("alice", 2, b"salt", b"stored", b"server", 8_192),
            UserScramCredentialRecord("bob", 2, b"salt", b"stored", b"server", 8_192),
            UserScramCredentialRecord("bob", 2, b"another", b"stored", b"server", 8_192),
            RemoveUserScramCredentialRecord("alice", 1),
        ]
    )
    assert image_of(list(image.snapshot_records())) == image
    assert image_of(list(ClusterImage().snapshot_records())) == ClusterImage()


def test_a_copy_of_an_image_has_users_of_its_own() -> None:
    image = image_of([UserScramCredentialRecord("alice", 1, b"salt", b"stored", b"server", 4_096)])
    copy = image.copy()
    image.apply([RemoveUserScramCredentialRecord("alice", 1)])
    assert (list(copy.scram_credentials), image.scram_credentials) == ([1], {})


def test_a_topics_own_setting_comes_before_that_of_all_brokers() -> None:
    image = image_of(BEGINNING)
    assert image.effective_configs("a").get("min.insync.replicas") == "2"
    image.apply([ConfigRecord(TOPIC_RESOURCE, "a", "min.insync.replicas", "1")])
    assert image.effective_configs("a").get("min.insync.replicas") == "1"
    assert image.effective_configs("a").get("segment.bytes") is None
