"""Claims about what a cluster does between two looks: rates, lags and open transactions, from views made here."""

from __future__ import annotations

from dataclasses import replace

import jsonschema_rs

from einmal.inspection.activity import Activity, activity
from einmal.inspection.document import document, schema
from einmal.inspection.lag import GroupLag
from einmal.inspection.model import BrokerView, ClusterView, GroupView, PartitionView, TransactionView

GROUP = GroupView("g", "Stable", "consumer", (), ())


def partition(topic: str, index: int, high: int | None, stable: int | None = None) -> PartitionView:
    unknown = {} if high is not None else dict.fromkeys(("last_stable_offset", "high_watermark"), "no leader")
    start, last_stable = (None, None) if high is None else (0, high if stable is None else stable)
    return PartitionView(topic, index, 1, 0, (1, 2), (1,), start, last_stable, high, (), unknown=unknown)


def transaction(name: str, age_ms: int | None) -> TransactionView:
    return TransactionView(name, "Ongoing", 1, 7, 0, False, 60_000, 1, age_ms, ())


def view(time: int, *partitions: PartitionView, transactions: tuple[TransactionView, ...] | None = ()) -> ClusterView:
    brokers = (BrokerView(1, "h", 1, None), BrokerView(2, "h", 2, None))
    unknown = {} if transactions is not None else {"transactions": "denied"}
    return ClusterView(time, "c", 2, 2, brokers, partitions, transactions, (GROUP,), unknown)


LAGS = {"g": GroupLag("g", 3, 1, True, ())}


def valid(found: Activity) -> Activity:
    jsonschema_rs.validate(schema("Activity"), document(found))
    return found


def test_a_rate_is_the_growth_of_all_partitions_in_a_second() -> None:
    before = view(1_000, partition("t", 0, 10), partition("t", 1, 5))
    found = valid(activity(view(3_000, partition("t", 0, 20), partition("t", 1, 8)), LAGS, before))
    (topic,) = found.topics
    assert (topic.partitions, topic.offsets_per_s, topic.under_replicated) == (2, 6.5, 2)
    assert [(each.node_id, each.is_controller, each.leads) for each in found.brokers] == [(1, False, 2), (2, True, 0)]


def test_what_cannot_be_a_rate_yet_is_unknown_and_not_zero() -> None:
    (first,) = valid(activity(view(1_000, partition("t", 0, 10, 4)), LAGS, None)).topics
    assert (first.offsets_per_s, first.held_back, first.unknown) == (
        None,
        6,
        {"offsets_per_s": "a rate needs two looks"},
    )
    before = view(1_000, partition("t", 0, 10))
    (leaderless,) = valid(activity(view(2_000, partition("t", 0, None)), LAGS, before)).topics
    assert (leaderless.offsets_per_s, leaderless.held_back) == (None, None)
    assert leaderless.unknown == {"offsets_per_s": "no leader", "held_back": "no leader"}


def test_a_topic_that_was_made_again_does_not_shrink() -> None:
    before = view(1_000, partition("t", 0, 10))
    (topic,) = activity(view(2_000, partition("t", 0, 1)), LAGS, before).topics
    assert topic.offsets_per_s == 0


def test_another_cluster_at_the_address_has_no_rate_yet() -> None:
    before = replace(view(1_000, partition("t", 0, 10)), cluster_id="former")
    (topic,) = valid(activity(view(2_000, partition("t", 0, 500)), LAGS, before)).topics
    assert (topic.offsets_per_s, topic.unknown) == (None, {"offsets_per_s": "a rate needs two looks"})


def test_groups_have_their_lag_or_the_reason_why_not() -> None:
    (group,) = valid(activity(view(1), LAGS, None)).groups or ()
    assert (group.members, group.unread, group.behind, group.is_upper_bound) == (0, 3, 1, True)
    (denied,) = valid(activity(view(1), {"g": "denied"}, None)).groups or ()
    assert (denied.unread, denied.unknown) == (None, {"unread": "denied", "behind": "denied"})


def test_only_open_transactions_are_there_and_none_is_no_empty_list() -> None:
    # Whose topics may not be described has no partitions, and may have no age.
    every = (transaction("open", 5), transaction("hidden", None), replace(transaction("ended", None), state="Empty"))
    found = valid(activity(view(1, transactions=every), LAGS, None))
    assert [each.transactional_id for each in found.open_transactions or ()] == ["open", "hidden"]
    denied = valid(activity(view(1, transactions=None), LAGS, None))
    assert (denied.open_transactions, denied.unknown) == (None, {"open_transactions": "denied"})
