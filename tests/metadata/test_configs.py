import time
from uuid import UUID

import pytest

from einmal.metadata.configs import APPEND, DELETE, SET, SUBTRACT, ConfigChange, problem_of_changes
from einmal.metadata.topic_configs import VALUE_BYTES_MAX
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


THROTTLED = "leader.replication.throttled.replicas"


def throttled(count: int, first: int = 0) -> str:
    return ",".join(f"{number}:1" for number in range(first, first + count))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ([("retention.ms", SET, "1"), ("segment.ms", DELETE, None)], None),
        ([("retention.ms", SET, "1"), ("retention.ms", SET, "2")], "duplicate"),
        ([("retention.ms", DELETE, None), ("retention.ms", SET, "2")], "duplicate"),
        ([(THROTTLED, APPEND, "0:1"), (THROTTLED, APPEND, "0:2")], "duplicate"),
        ([("retention.ms", SET, None)], "Null value not supported for: retention.ms"),
        ([(THROTTLED, SUBTRACT, None)], "Null value"),
        ([("retention.ms", 4, "1")], "Unknown operations type 4"),
        ([("retention.ms", -1, None)], "Unknown operations type -1"),
    ],
)
def test_changes_that_contradict_each_other_or_mean_nothing_are_no_valid_request(
    changes: list[tuple[str, int, str | None]], problem: str | None
) -> None:
    wanted = [ConfigChange(name=name, operation=operation, value=value) for name, operation, value in changes]
    found = problem_of_changes(wanted)
    assert found is None if problem is None else problem in (found or "")


def test_changes_of_a_topic_follow_those_before_in_the_same_decision() -> None:
    cluster = Cluster(1)
    cluster.create("t", (1,), retention_ms="5")
    back = [ConfigChange(name="retention.ms", operation=DELETE, value=None)]
    more = [ConfigChange(name="segment.ms", operation=SET, value="7")]
    bad = [ConfigChange(name="cleanup.policy", operation=APPEND, value="burn")]
    cluster.done(cluster.controller.alter_topic_configs([("t", back), ("t", bad), ("t", more)]))
    assert cluster.image.topic_configs("t") == {"segment.ms": "7"}
    replaced = [("t", {"segment.ms": "8"}), ("t", {"retention.ms": "9"})]
    cluster.done(cluster.controller.replace_topic_configs(replaced))
    assert cluster.image.topic_configs("t") == {"retention.ms": "9"}


def test_a_long_list_is_changed_in_a_time_that_grows_with_its_length() -> None:
    cluster = Cluster(1)
    cluster.create("t", (1,))
    items = 4_800
    wanted = throttled(items)
    assert VALUE_BYTES_MAX - 1_000 < len(wanted) <= VALUE_BYTES_MAX
    started = time.process_time()
    for operation, value in ((SET, wanted), (APPEND, wanted), (SUBTRACT, throttled(items - 1)), (SUBTRACT, wanted)):
        change = ConfigChange(name=THROTTLED, operation=operation, value=value)
        assert cluster.done(cluster.controller.alter_topic_configs([("t", [change])]))[0].error is ErrorCode.none
        assert cluster.image.topic_configs("t")[THROTTLED] in (wanted, f"{items - 1}:1", "")
    # Twice as long and more for one change when each item was compared with each; now a thirtieth.
    assert time.process_time() - started < 0.3


@pytest.mark.parametrize("operation", [SET, APPEND])
def test_a_value_is_at_most_as_long_as_clients_can_read(operation: int) -> None:
    cluster = Cluster(1)
    cluster.create("t", (1,))

    def changed(value: str) -> ErrorCode:
        change = ConfigChange(name=THROTTLED, operation=operation, value=value)
        return cluster.done(cluster.controller.alter_topic_configs([("t", [change])]))[0].error

    assert changed(throttled(9_000)) is ErrorCode.invalid_config
    new = NewTopic(name="new", topic_id=UUID(int=2), replication_factor=1, configs={THROTTLED: throttled(9_000)})
    assert cluster.controller.create_topics([new]).response[0].error is ErrorCode.invalid_config
    assert changed(throttled(3_000)) is ErrorCode.none
    grown = changed(throttled(3_000, first=3_000))
    assert grown is (ErrorCode.none if operation == SET else ErrorCode.invalid_config)
    assert len(cluster.image.topic_configs("t")[THROTTLED]) <= VALUE_BYTES_MAX


def test_the_settings_that_one_request_changes_have_a_bounded_size() -> None:
    """An APPEND of some bytes writes a whole value, and all of them are one batch of the metadata log."""
    cluster = Cluster(1)
    topics = [f"t{number}" for number in range(400)]
    for topic in topics:
        cluster.create(topic, (1,))
    whole = [ConfigChange(name=THROTTLED, operation=SET, value=throttled(4_000))]
    for topic in topics:
        cluster.done(cluster.controller.alter_topic_configs([(topic, whole)]))
    more = [ConfigChange(name=THROTTLED, operation=APPEND, value="9999:1")]
    decision = cluster.controller.alter_topic_configs([(topic, more) for topic in topics])
    errors = [result.error for result in decision.response]
    assert errors == sorted(errors, key=[ErrorCode.none, ErrorCode.policy_violation].index)
    assert 0 < errors.count(ErrorCode.policy_violation) < len(topics)
    assert len(decision.records) == errors.count(ErrorCode.none)
