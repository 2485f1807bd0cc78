from uuid import UUID

from einmal.metadata.configs import APPEND, DELETE, SET, SUBTRACT, ConfigChange
from einmal.metadata.topics import NewTopic
from einmal.types import ErrorCode
from tests.metadata.cluster import Cluster


def test_settings_change_one_by_one() -> None:
    cluster = Cluster(1)
    cluster.create("t", (1,), cleanup_policy="delete")

    def change(operation: int, name: str, value: str | None) -> ErrorCode:
        changes = [ConfigChange(name=name, operation=operation, value=value)]
        decision = cluster.controller.alter_topic_configs([("t", changes)])
        return cluster.done(decision)[0].error

    assert change(APPEND, "cleanup.policy", "compact") is ErrorCode.none
    assert cluster.image.topic_configs("t") == {"cleanup.policy": "delete,compact"}
    assert change(SUBTRACT, "cleanup.policy", "delete") is ErrorCode.none
    assert cluster.image.topic_configs("t") == {"cleanup.policy": "compact"}
    assert change(APPEND, "retention.ms", "5") is ErrorCode.invalid_config
    assert change(SET, "retention.ms", None) is ErrorCode.invalid_config
    assert change(SET, "retention.ms", "5") is ErrorCode.none
    assert change(DELETE, "cleanup.policy", None) is ErrorCode.none
    assert cluster.image.topic_configs("t") == {"retention.ms": "5"}
    assert change(DELETE, "leader.replication.throttled.replicas", None) is ErrorCode.none
    assert change(SET, "leader.replication.throttled.replicas", "0-1") is ErrorCode.invalid_config
    assert change(SET, "remote.storage.enable", "true") is ErrorCode.invalid_config
    assert change(SUBTRACT, "cleanup.policy", "delete") is ErrorCode.none
    assert cluster.image.topic_configs("t") == {"retention.ms": "5", "cleanup.policy": ""}
    cluster.done(cluster.controller.replace_topic_configs([("t", {"segment.bytes": "1048576"})]))
    assert cluster.image.topic_configs("t") == {"segment.bytes": "1048576"}
    assert (
        cluster.controller.alter_topic_configs([("no", [])]).response[0].error is ErrorCode.unknown_topic_or_partition
    )


def test_settings_of_all_brokers_are_inherited_by_topics_until_they_are_taken_back() -> None:
    cluster = Cluster(1)
    cluster.create("t", (1,))

    def change(operation: int, name: str, value: str | None) -> ErrorCode:
        decision = cluster.controller.alter_cluster_configs([ConfigChange(name=name, operation=operation, value=value)])
        return cluster.done(decision).error

    assert change(SET, "log.retention.ms", "7") is ErrorCode.none
    assert cluster.image.effective_configs("t").get("retention.ms") == "7"
    assert change(SET, "log.retention.ms", "x") is ErrorCode.invalid_config
    assert change(SET, "num.partitions", "7") is ErrorCode.invalid_config
    assert change(SET, "retention.ms", "7") is ErrorCode.invalid_config
    assert change(SET, "min.insync.replicas", "2") is ErrorCode.invalid_config
    assert change(DELETE, "num.partitions", None) is ErrorCode.none
    assert change(DELETE, "log.retention.ms", None) is ErrorCode.none
    assert cluster.image.effective_configs("t").get("retention.ms") is None
    cluster.done(cluster.controller.replace_cluster_configs({"log.segment.bytes": "5000000"}))
    cluster.done(cluster.controller.replace_cluster_configs({"log.retention.ms": "5"}))
    assert cluster.image.effective_configs("t").get("segment.bytes") is None
    assert cluster.image.effective_configs("t").get("retention.ms") == "5"


def test_lags_of_compaction_that_contradict_each_other_are_refused() -> None:
    cluster = Cluster(1)
    lags = {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"}
    created = cluster.controller.create_topics([NewTopic(name="t", topic_id=UUID(int=2), configs=lags)])
    assert (created.response[0].error, created.records) == (ErrorCode.invalid_config, ())
    cluster.create("t", (1,))
    replaced = cluster.controller.replace_topic_configs([("t", lags)])
    assert (replaced.response[0].error, replaced.records) == (ErrorCode.invalid_config, ())
    assert "min.compaction.lag.ms (10) > max.compaction.lag.ms (9)" in (replaced.response[0].message or "")
    lags["max.compaction.lag.ms"] = "10"
    assert cluster.controller.replace_topic_configs([("t", lags)]).response[0].error is ErrorCode.none
