import pytest

from einmal.broker.config import SETTINGS, BrokerConfig
from einmal.broker.replicas.topic_settings import log_config, setting
from einmal.metadata.topic_configs import TOPIC_SETTINGS, problem_of
from tests.suite.cases import each_case

SHOWN = [name for name, described in TOPIC_SETTINGS.items() if not described.is_internal]


@each_case("name", SHOWN)
def test_every_default_is_a_valid_value(name: str) -> None:
    assert problem_of(name, setting(BrokerConfig(), {}, name)) is None


def test_what_a_topic_inherits_is_a_broker_setting() -> None:
    for described in TOPIC_SETTINGS.values():
        assert described.broker_key is None or described.broker_key in SETTINGS


@pytest.mark.parametrize(
    ("name", "value", "is_good"),
    [
        ("retention.ms", "-1", True),
        ("retention.ms", "-2", False),
        ("retention.ms", "5.0", False),
        ("retention.ms", "", False),
        ("retention.ms", "--5", False),
        ("segment.bytes", str(2**31), False),
        ("segment.bytes", str(2**20 - 1), False),
        ("segment.bytes", str(2**20), True),
        ("internal.segment.bytes", "1", True),
        ("internal.segment.bytes", "0", False),
        ("delete.retention.ms", str(2**63 - 1), True),
        ("delete.retention.ms", str(2**63), False),
        ("segment.ms", "0", False),
        ("max.compaction.lag.ms", "0", False),
        ("compression.gzip.level", "-1", True),
        ("compression.gzip.level", "0", False),
        ("compression.gzip.level", "10", False),
        ("cleanup.policy", "compact,delete", True),
        ("cleanup.policy", "compact,", False),
        ("cleanup.policy", "", True),
        ("remote.storage.enable", "false", True),
        ("remote.storage.enable", "true", False),
        ("errors.deadletterqueue.group.enable", "true", False),
        ("flush.ms", "1000", False),
        ("leader.replication.throttled.replicas", "0:1,2:3", True),
        ("leader.replication.throttled.replicas", "*", True),
        ("follower.replication.throttled.replicas", "", True),
        ("follower.replication.throttled.replicas", "all", False),
        ("min.cleanable.dirty.ratio", "0.3", True),
        ("min.cleanable.dirty.ratio", "nan", False),
        ("min.cleanable.dirty.ratio", "2", False),
        ("preallocate", "TRUE", True),
        ("preallocate", "yes", False),
        ("message.timestamp.type", "LogAppendTime", True),
        ("message.timestamp.type", "Never", False),
    ],
)
def test_a_value_is_held_against_its_kind(name: str, value: str, is_good: bool) -> None:
    assert (problem_of(name, value) is None) == is_good


def test_a_topics_own_setting_comes_before_the_brokers() -> None:
    broker = BrokerConfig(log_retention_ms=7, log_flush_interval_messages=1)
    inherited = log_config(broker, {})
    assert (inherited.retention_ms, inherited.flush_each) == (7, True)
    own = log_config(broker, {"retention.ms": "8", "flush.messages": "1000"})
    assert (own.retention_ms, own.flush_each) == (8, False)


def test_small_segments_are_for_tests_only() -> None:
    own = {"segment.bytes": "2000000", "internal.segment.bytes": "100"}
    assert log_config(BrokerConfig(), own).segment_bytes == 100
    assert log_config(BrokerConfig(), {"segment.bytes": "2000000"}).segment_bytes == 2_000_000


def test_a_value_from_before_there_was_a_bound_still_holds() -> None:
    assert log_config(BrokerConfig(), {"segment.bytes": "100"}).segment_bytes == 100


def test_all_settings_that_a_topic_of_apache_kafka_has_are_known() -> None:
    assert len(SHOWN) == 37


def test_a_topic_without_a_cleanup_policy_keeps_everything() -> None:
    config = log_config(BrokerConfig(), {"cleanup.policy": ""})
    assert (config.is_compacted, config.deletes) == (False, False)
