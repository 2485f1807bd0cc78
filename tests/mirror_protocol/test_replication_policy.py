from __future__ import annotations

import pytest

from einmal.mirror_protocol.replication_policy import (
    DEFAULT_POLICY,
    IDENTITY_POLICY,
    TOPICS_EXCLUDE,
    NameFilter,
    ReplicationPolicy,
    UnknownPolicy,
    accepts_topic,
)


def test_the_default_policy_adds_the_alias_of_the_source() -> None:
    assert ReplicationPolicy.of(DEFAULT_POLICY).remote_topic("A", "orders") == "A.orders"
    assert ReplicationPolicy.of("DefaultReplicationPolicy", "_").remote_topic("A", "orders") == "A_orders"
    assert ReplicationPolicy.of(IDENTITY_POLICY).remote_topic("A", "orders") == "orders"


def test_another_policy_is_refused_with_the_supported_ones() -> None:
    with pytest.raises(UnknownPolicy, match="supported: DefaultReplicationPolicy, IdentityReplicationPolicy"):
        ReplicationPolicy.of("com.example.Policy")


@pytest.mark.parametrize(
    ("topic", "is_cycle"),
    [("B.orders", True), ("C.B.orders", True), ("C.orders", False), ("orders", False), ("B", False)],
)
def test_topics_that_come_from_the_target_are_not_mirrored_back(topic: str, is_cycle: bool) -> None:
    assert ReplicationPolicy().is_cycle(topic, "B") == is_cycle
    assert accepts_topic(NameFilter(), ReplicationPolicy(), topic, "B") != is_cycle


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state", "__einmal_commits"])
def test_internal_topics_are_mirrored_by_no_filter(topic: str) -> None:
    assert not accepts_topic(NameFilter(include=(".*", topic)), ReplicationPolicy(), topic, "B")


def test_filters_are_expressions_of_whole_names() -> None:
    names = NameFilter(include=("orders.*",), exclude=TOPICS_EXCLUDE)
    assert [each for each in ("orders", "orders-eu", "old-orders", "orders.replica") if names.accepts(each)] == [
        "orders",
        "orders-eu",
    ]


def test_a_pattern_matches_names_with_line_feeds() -> None:
    """Kafka allows them in the ids of groups."""
    assert NameFilter().accepts("payments\nold")
    assert not NameFilter(exclude=("payments.*",)).accepts("payments\nold")
