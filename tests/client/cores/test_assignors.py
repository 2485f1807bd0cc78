"""Claims about dividing partitions among members."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from einmal.client.cores.assignors import (
    ASSIGNORS,
    Assignment,
    assign_cooperative_sticky,
    assign_range,
    assign_roundrobin,
)
from einmal.client.cores.consumer_protocol import Subscription
from einmal.types import TopicPartition

TOPICS = ("a", "b", "c")
counts_of_topics = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 6), max_size=3)
memberships = st.dictionaries(
    st.text("mnop", min_size=1, max_size=3),
    st.sets(st.sampled_from(TOPICS), min_size=1).map(lambda topics: Subscription(tuple(sorted(topics)))),
    min_size=1,
    max_size=5,
)


def everything(members: Mapping[str, Subscription], counts: Mapping[str, int]) -> list[TopicPartition]:
    wanted = sorted({topic for each in members.values() for topic in each.topics if topic in counts})
    return [TopicPartition(topic, index) for topic in wanted for index in range(counts[topic])]


def partitions_of(assigned: Assignment) -> list[TopicPartition]:
    return sorted(each for partitions in assigned.values() for each in partitions)


@pytest.mark.parametrize("name", ASSIGNORS)
@given(members=memberships, counts=counts_of_topics)
def test_every_partition_goes_to_one_member_that_wants_it(
    name: str, members: dict[str, Subscription], counts: dict[str, int]
) -> None:
    assigned = ASSIGNORS[name].assign(members, counts)
    assert set(assigned) == set(members)
    assert partitions_of(assigned) == everything(members, counts)
    for member, partitions in assigned.items():
        assert all(each.topic in members[member].topics for each in partitions)


def test_range_gives_runs_of_each_topic() -> None:
    members = {name: Subscription(("a", "b")) for name in ("m1", "m2")}
    assigned = assign_range(members, {"a": 3, "b": 2})
    assert assigned["m1"] == [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]
    assert assigned["m2"] == [TopicPartition("a", 2), TopicPartition("b", 1)]


def test_roundrobin_deals_over_topics() -> None:
    members = {name: Subscription(("a", "b")) for name in ("m1", "m2")}
    assigned = assign_roundrobin(members, {"a": 3, "b": 3})
    assert [len(partitions) for partitions in assigned.values()] == [3, 3]
    assert assigned["m1"] == [TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)]


@given(st.integers(1, 5), st.integers(0, 20))
def test_cooperative_sticky_is_balanced_when_all_want_the_same(members: int, partitions: int) -> None:
    assigned = assign_cooperative_sticky(
        {f"m{index}": Subscription(("a",)) for index in range(members)}, {"a": partitions}
    )
    sizes = [len(each) for each in assigned.values()]
    assert max(sizes) - min(sizes) <= 1


@example(
    before={"m": Subscription(("a", "b", "c"))},
    counts={"a": 0, "b": 2, "c": 1},
    after={name: Subscription(("b",) if name == "n" else ("a", "b", "c")) for name in ("m", "mm", "n")},
)
@given(memberships, counts_of_topics, memberships)
def test_a_partition_that_moves_is_free_for_one_round(
    before: dict[str, Subscription], counts: dict[str, int], after: dict[str, Subscription]
) -> None:
    owned = assign_cooperative_sticky(before, counts)
    members = {name: Subscription(each.topics, tuple(owned.get(name, ()))) for name, each in after.items()}
    owners = {each: name for name, subscription in members.items() for each in subscription.owned}
    first = assign_cooperative_sticky(members, counts)
    for name, partitions in first.items():
        assert all(owners.get(each, name) == name for each in partitions)
    # Those who had to give something up join again; now everything has an owner.
    settled = {name: Subscription(each.topics, tuple(first[name])) for name, each in after.items()}
    second = assign_cooperative_sticky(settled, counts)
    assert partitions_of(second) == everything(after, counts)


def test_cooperative_sticky_leaves_partitions_where_they_are() -> None:
    owned = {"m1": (TopicPartition("a", 1),), "m2": (TopicPartition("a", 0),)}
    members = {name: Subscription(("a",), partitions) for name, partitions in owned.items()}
    assigned = assign_cooperative_sticky(members, {"a": 2})
    assert {name: tuple(each) for name, each in assigned.items()} == owned


def test_a_partition_claimed_by_two_members_has_no_owner() -> None:
    claimed = (TopicPartition("a", 0), TopicPartition("a", 1))
    members = {name: Subscription(("a",), claimed) for name in ("m1", "m2")}
    assigned = assign_cooperative_sticky(members, {"a": 2})
    assert sorted(map(len, assigned.values())) == [1, 1]
