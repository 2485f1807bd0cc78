"""Claims about who may commit offsets, and what is read back (failures.md 39-43)."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from einmal.broker.coordinators.decided_batches import decided_batches
from einmal.groups import records
from einmal.groups.classic.subscription import subscribed_topics
from einmal.groups.config import GroupConfig
from einmal.groups.requests import GroupDecision, OffsetCommit, OffsetFetchGroup, OffsetToCommit
from einmal.types import ErrorCode, TopicPartition
from einmal.wire.api.offset_fetch import OffsetFetchResponsePartitions, OffsetFetchResponseTopics
from tests.groups.drive import GROUP, TOPIC, Consumer, GroupLog, only_error, producer, settle, stable_group

NO_DELAY = GroupConfig(initial_rebalance_delay_ms=0)
DAY_MS = 24 * 60 * 60_000


def shard_at_once() -> GroupLog:
    return GroupLog(NO_DELAY)


def subscription(*topics: str) -> bytes:
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">ii", -1, 0)


# --- plain commits ---------------------------------------------------------------------------------------------


def test_a_simple_consumer_commits_without_a_group() -> None:
    shard = shard_at_once()
    assert shard.fetch() == -1
    assert shard.commit(42) is ErrorCode.none
    assert shard.fetch() == 42
    assert shard.state() == "Empty"


def test_a_zombie_of_an_older_generation_cannot_commit() -> None:
    shard = shard_at_once()
    old, new = Consumer(shard, "a"), Consumer(shard, "b")
    stable_group(shard, old)
    assert old.commit(5) is ErrorCode.none
    new.join()
    old.join()
    zombie = Consumer(shard, "a", member_id=old.member_id, generation_id=old.generation_id)
    settle(old, new)
    assert zombie.commit(1) is ErrorCode.illegal_generation
    assert zombie.txn_commit(1, producer()) is ErrorCode.illegal_generation
    assert shard.fetch() == 5


def test_a_member_that_was_expelled_cannot_commit() -> None:
    shard = shard_at_once()
    expelled, other = Consumer(shard, "a"), Consumer(shard, "b")
    stable_group(shard, expelled)
    shard.pass_time(expelled.session_timeout_ms)
    stable_group(shard, other)
    assert expelled.commit(1) is ErrorCode.unknown_member_id
    assert expelled.txn_commit(1, producer()) is ErrorCode.unknown_member_id
    assert shard.fetch() == -1


def test_only_members_commit_in_an_active_group() -> None:
    shard = shard_at_once()
    stable_group(shard, Consumer(shard, "a"))
    assert shard.commit(1) is ErrorCode.unknown_member_id
    assert shard.commit(1, group_instance_id="X") is ErrorCode.unknown_member_id


def test_a_generation_of_a_group_that_is_not_there_is_refused() -> None:
    shard = shard_at_once()
    assert shard.commit(1, generation_id=3, member_id="m") is ErrorCode.illegal_generation
    assert shard.txn_commit(1, producer(), generation_id=3, member_id="m") is ErrorCode.illegal_generation
    not_found = ErrorCode.group_id_not_found
    assert shard.commit(1, generation_id=3, member_id="m", unknown_group=not_found) is not_found
    assert shard.log == []


def test_a_group_that_has_only_offsets_has_no_such_member() -> None:
    shard = shard_at_once()
    assert shard.commit(1) is ErrorCode.none
    unknown, not_found = ErrorCode.unknown_member_id, ErrorCode.group_id_not_found
    assert shard.commit(2, generation_id=3, member_id="m", unknown_group=not_found) is unknown
    assert shard.txn_commit(2, producer(), generation_id=3, member_id="m") is unknown
    assert shard.fetch() == 1


def test_the_empty_group_commits_outside_transactions_only() -> None:
    shard = shard_at_once()
    assert shard.commit(1, group_id="") is ErrorCode.none
    assert shard.fetch("") == 1
    assert shard.txn_commit(1, producer(), group_id="") is ErrorCode.invalid_group_id
    assert shard.delete("") is ErrorCode.none
    assert shard.commit(1, group_id="ü" * 16_001) is ErrorCode.invalid_group_id


def test_a_commit_between_join_and_sync_is_sent_back() -> None:
    shard = shard_at_once()
    consumer = Consumer(shard, "a")
    consumer.join()
    consumer.joined()
    assert consumer.commit(1) is ErrorCode.rebalance_in_progress
    # In a transaction it is the generation alone that counts.
    assert consumer.txn_commit(1, producer()) is ErrorCode.none


def test_a_member_may_commit_while_its_group_prepares_a_rebalance() -> None:
    shard = shard_at_once()
    old, new = Consumer(shard, "a"), Consumer(shard, "b")
    stable_group(shard, old)
    new.join()
    assert old.commit(7) is ErrorCode.none
    assert shard.fetch() == 7


def test_metadata_that_is_too_large_is_refused_for_its_partition_alone() -> None:
    shard = shard_at_once()
    fits, too_large = OffsetToCommit(1, -1, "x" * 4_096), OffsetToCommit(2, -1, "ü" * 4_097)
    assert shard.commit(0, offsets={TOPIC: fits}) is ErrorCode.none
    assert shard.commit(0, offsets={TOPIC: too_large}) is ErrorCode.offset_metadata_too_large
    assert shard.fetch() == 1


def test_a_commit_that_does_not_fit_into_a_segment_is_refused() -> None:
    shard = GroupLog(GroupConfig(max_commit_bytes=2_000))
    offsets = {TopicPartition("t", number): OffsetToCommit(1, -1, "x" * 100) for number in range(20)}
    commit = OffsetCommit(group_id=GROUP, generation_id=-1, member_id="", group_instance_id=None, offsets=offsets)
    answer = shard.apply(shard.coordinator.offset_commit(commit, shard.now))
    errors = {partition.error_code for topic in answer.topics for partition in topic.partitions}
    assert errors == {ErrorCode.invalid_commit_offset_size}


def test_all_offsets_of_a_group_can_be_fetched() -> None:
    shard = shard_at_once()
    other = TopicPartition("other", 1)
    shard.commit(0, offsets={TOPIC: OffsetToCommit(5, 2, None)})
    shard.commit(0, offsets={other: OffsetToCommit(6, -1, "note")})
    request = OffsetFetchGroup(GROUP, None)
    response = shard.apply(shard.coordinator.offset_fetch(request, require_stable=False))
    first = OffsetFetchResponsePartitions(0, 5, committed_leader_epoch=2, metadata="")
    second = OffsetFetchResponsePartitions(1, 6, committed_leader_epoch=-1, metadata="note")
    assert response.topics == (
        OffsetFetchResponseTopics(name="topic", partitions=(first,)),
        OffsetFetchResponseTopics(name="other", partitions=(second,)),
    )


# --- commits in a transaction ----------------------------------------------------------------------------------


def test_offsets_in_a_transaction_are_read_only_after_its_commit() -> None:
    shard = shard_at_once()
    shard.commit(1)
    assert shard.txn_commit(5, producer()) is ErrorCode.none
    assert shard.fetch() == 1
    assert shard.fetch(require_stable=True) is ErrorCode.unstable_offset_commit
    shard.mark(producer(), True)
    assert shard.fetch(require_stable=True) == 5


def test_offsets_of_an_aborted_transaction_were_never_there() -> None:
    shard = shard_at_once()
    shard.commit(1)
    shard.txn_commit(5, producer())
    shard.mark(producer(), False)
    assert shard.fetch(require_stable=True) == 1


def test_a_fetch_of_everything_shows_what_is_not_decided() -> None:
    shard = shard_at_once()
    shard.txn_commit(5, producer())
    request = OffsetFetchGroup(GROUP, None)
    stable = shard.apply(shard.coordinator.offset_fetch(request, require_stable=True))
    assert only_error(stable) is ErrorCode.unstable_offset_commit
    assert shard.apply(shard.coordinator.offset_fetch(request, require_stable=False)).topics == ()


@pytest.mark.parametrize("committed", [True, False])
def test_pending_offsets_survive_a_change_of_coordinator(committed: bool) -> None:
    shard = shard_at_once()
    shard.commit(1)
    shard.txn_commit(5, producer())
    shard.fail_over()
    assert shard.fetch(require_stable=True) is ErrorCode.unstable_offset_commit
    shard.mark(producer(), committed)
    shard.fail_over()
    assert shard.fetch(require_stable=True) == (5 if committed else 1)


def test_a_rebalance_in_mid_transaction_fences_the_old_generation() -> None:
    shard = shard_at_once()
    static = Consumer(shard, "a", group_instance_id="A")
    stable_group(shard, static)
    assert static.txn_commit(5, producer()) is ErrorCode.none
    restarted = Consumer(shard, "b", group_instance_id="A")
    restarted.join()
    restarted.joined()
    assert static.txn_commit(6, producer()) is ErrorCode.fenced_instance_id
    assert shard.fetch(require_stable=True) is ErrorCode.unstable_offset_commit
    shard.mark(producer(), False)
    assert shard.fetch(require_stable=True) == -1


def test_a_transactional_client_without_a_generation_is_accepted() -> None:
    shard = shard_at_once()
    stable_group(shard, Consumer(shard, "a"))
    assert shard.txn_commit(5, producer()) is ErrorCode.none


# --- what is dropped, and when ---------------------------------------------------------------------------------


def test_offsets_of_an_empty_group_expire_after_the_retention_and_the_group_with_them() -> None:
    shard = shard_at_once()
    consumer = Consumer(shard, "a", session_timeout_ms=6_000)
    stable_group(shard, consumer)
    consumer.commit(5)
    consumer.leave()
    shard.pass_time(7 * DAY_MS - 1)
    assert shard.fetch() == 5
    shard.pass_time(600_001)
    assert shard.fetch() == -1
    assert shard.state() == "Dead"
    shard.fail_over()
    assert shard.state() == "Dead"


def test_the_retention_of_a_group_begins_when_its_last_member_leaves() -> None:
    shard = shard_at_once()
    consumer = Consumer(shard, "a", session_timeout_ms=1_800_000)
    stable_group(shard, consumer)
    consumer.commit(5)
    for _ in range(8 * 24 * 4):
        shard.pass_time(15 * 60_000)
        assert consumer.heartbeat() is ErrorCode.none
    assert shard.fetch() == 5
    # Its session ends in the same moment in which expired offsets are looked for.
    shard.pass_time(6 * DAY_MS)
    assert shard.fetch() == 5
    shard.fail_over()
    shard.pass_time(2 * DAY_MS)
    assert shard.fetch() == -1


def test_offsets_of_a_topic_that_no_member_wants_any_more_expire() -> None:
    shard = shard_at_once()
    protocols = (("range", subscription(TOPIC.topic)),)
    member = Consumer(shard, "a", session_timeout_ms=1_800_000, protocols=protocols)
    stable_group(shard, member)
    other = TopicPartition("other", 0)
    assert member.commit(5) is ErrorCode.none
    offsets = {other: OffsetToCommit(5, -1, None)}
    own = {"generation_id": member.generation_id, "member_id": member.member_id}
    assert shard.commit(0, offsets=offsets, **own) is ErrorCode.none
    for expected in ({TOPIC: 5, other: 5}, {TOPIC: 5}):
        for _ in range(4 * 24 * 4):
            shard.pass_time(900_000)
            assert member.heartbeat() is ErrorCode.none
        assert shard.coordinator.position(GROUP).offsets == expected
    shard.fail_over()
    assert shard.coordinator.position(GROUP).offsets == {TOPIC: 5}


@pytest.mark.parametrize("kind", ["consumer", "connect", "unreadable", "rebalancing"])
def test_offsets_expire_only_where_it_is_known_what_members_want(kind: str) -> None:
    shard = shard_at_once()
    fields: dict[str, Any] = {"session_timeout_ms": 1_800_000, "rebalance_timeout_ms": 1_800_000}
    fields["protocol_type"] = "connect" if kind == "connect" else "consumer"
    fields["protocols"] = (("range", b"?" if kind == "unreadable" else subscription("wanted")),)
    member = Consumer(shard, "a", **fields)
    stable_group(shard, member)
    assert member.commit(5) is ErrorCode.none
    for _ in range(7 * 24 * 4 - 1):
        shard.pass_time(900_000)
        assert member.heartbeat() is ErrorCode.none
    if kind == "rebalancing":
        Consumer(shard, "b", **fields).join()
    shard.pass_time(901_000)
    shard.pass_time(600_000)
    assert shard.fetch() == (-1 if kind == "consumer" else 5)


def test_offsets_of_a_simple_consumer_expire_one_by_one() -> None:
    shard = shard_at_once()
    other = TopicPartition("other", 0)
    shard.commit(5)
    shard.pass_time(4 * DAY_MS)
    shard.commit(0, offsets={other: OffsetToCommit(6, -1, None)})
    shard.pass_time(4 * DAY_MS)
    assert shard.fetch() == -1
    assert shard.state() == "Empty"
    shard.pass_time(4 * DAY_MS)
    assert shard.state() == "Dead"


def test_an_old_client_may_ask_for_a_retention_of_its_own() -> None:
    shard = shard_at_once()
    shard.commit(5, retention_ms=DAY_MS)
    shard.fail_over()
    shard.pass_time(DAY_MS - 1)
    assert shard.fetch() == 5
    shard.pass_time(600_001)
    assert shard.fetch() == -1


def test_offsets_that_a_transaction_may_move_do_not_expire() -> None:
    shard = shard_at_once()
    shard.commit(5)
    shard.txn_commit(6, producer())
    shard.pass_time(30 * DAY_MS)
    assert shard.fetch() == 5
    assert shard.delete() is ErrorCode.non_empty_group
    shard.mark(producer(), True)
    assert shard.fetch() == 6


def test_an_empty_group_can_be_deleted_and_a_living_one_cannot() -> None:
    shard = shard_at_once()
    consumer = Consumer(shard, "a")
    stable_group(shard, consumer)
    consumer.commit(5)
    assert shard.delete() is ErrorCode.non_empty_group
    consumer.leave()
    assert shard.delete() is ErrorCode.none
    assert shard.delete() is ErrorCode.group_id_not_found
    assert shard.fetch() == -1
    shard.fail_over()
    assert (shard.fetch(), shard.state()) == (-1, "Dead")


def test_offsets_of_a_deleted_topic_go_with_it_the_pending_ones_too() -> None:
    shard = shard_at_once()
    other = TopicPartition("other", 0)
    shard.commit(0, offsets={other: OffsetToCommit(6, -1, None)})
    shard.commit(5)
    shard.txn_commit(9, producer())
    shard.txn_commit(9, producer(), group_id="pending")
    shard.apply(shard.coordinator.forget_other_topics(["other", "new"]))
    shard.mark(producer(), True)
    assert (shard.fetch(), shard.fetch("pending")) == (-1, -1)
    request = OffsetFetchGroup(GROUP, (other,))
    kept = shard.apply(shard.coordinator.offset_fetch(request, require_stable=True))
    assert kept.topics[0].partitions[0].committed_offset == 6


def test_offsets_of_a_deleted_topic_go_also_where_a_new_one_has_its_name() -> None:
    shard = shard_at_once()
    shard.commit(5)
    shard.apply(shard.coordinator.forget_other_topics([TOPIC.topic]))
    assert shard.fetch() == 5
    shard.txn_commit(9, producer())
    shard.apply(shard.coordinator.forget_other_topics([TOPIC.topic], {TOPIC.topic}))
    shard.mark(producer(), True)
    assert shard.fetch() == -1


# --- sizes -----------------------------------------------------------------------------------------------------


EMOJI = "\U0001f600"
"""One character, two of a Java string, four bytes."""
SEGMENT_BYTES = 1 << 16
SMALL = GroupConfig(initial_rebalance_delay_ms=0, max_commit_bytes=SEGMENT_BYTES * 3 // 4)


def batch_sizes(decision: GroupDecision[Any]) -> list[int]:
    """Bytes of the batches in which a decision is written."""
    return [len(batch) for _written, batch in decided_batches(decision, records, 0, SEGMENT_BYTES)]


@pytest.mark.parametrize(
    ("group_id", "topic", "metadata", "partitions"),
    [
        (GROUP, "topic", EMOJI * 1_000, 40),
        (EMOJI * 1_000, "topic", "", 40),
        (GROUP, "ü" * 10_000, "", 8),
        (GROUP, "topic", "", 2_000),
    ],
)
def test_a_commit_that_is_accepted_fits_into_a_segment(
    group_id: str, topic: str, metadata: str, partitions: int
) -> None:
    shard = GroupLog(SMALL)
    sizes = []
    for count in range(1, partitions + 1, max(1, partitions // 40)):
        offsets = {TopicPartition(topic, index): OffsetToCommit(1, -1, metadata) for index in range(count)}
        request = OffsetCommit(
            group_id=group_id, generation_id=-1, member_id="", group_instance_id=None, offsets=offsets
        )
        decision = shard.coordinator.offset_commit(request, shard.now)
        if not decision.records:
            errors = {partition.error_code for each in decision.response.topics for partition in each.partitions}
            assert errors == {ErrorCode.invalid_commit_offset_size}
            break
        sizes += batch_sizes(decision)
    else:
        raise AssertionError("every commit is accepted")
    assert sizes and max(sizes) <= SEGMENT_BYTES


def test_metadata_is_as_long_as_its_java_string() -> None:
    shard = GroupLog(GroupConfig(offset_metadata_max_bytes=10))

    def commit(metadata: str) -> ErrorCode:
        return shard.commit(5, offsets={TOPIC: OffsetToCommit(5, -1, metadata)})

    assert commit("ü" * 10) is ErrorCode.none
    assert commit(EMOJI * 5) is ErrorCode.none
    assert commit(EMOJI * 5 + "x") is ErrorCode.offset_metadata_too_large
    assert commit("x" * 11) is ErrorCode.offset_metadata_too_large


def many_offsets() -> GroupLog:
    """A shard with more offsets than the tombstones of one segment, of one group and of many."""
    shard = GroupLog(SMALL)
    for start in range(0, 1_500, 300):
        offsets = {TopicPartition("topic", start + index): OffsetToCommit(1, -1, "") for index in range(300)}
        assert shard.apply(
            shard.coordinator.offset_commit(
                OffsetCommit(group_id=GROUP, generation_id=-1, member_id="", group_instance_id=None, offsets=offsets),
                shard.now,
            )
        )
    for number in range(50):
        shard.commit(1, group_id=f"{number}" + EMOJI * 1_000)
    return shard


def test_the_tombstones_of_a_deleted_group_fit_into_segments() -> None:
    sizes = batch_sizes(many_offsets().coordinator.delete_groups([GROUP]))
    assert len(sizes) > 1 and max(sizes) <= SEGMENT_BYTES


def test_the_tombstones_of_a_deleted_topic_fit_into_segments() -> None:
    sizes = batch_sizes(many_offsets().coordinator.forget_other_topics(()))
    assert len(sizes) > 4 and max(sizes) <= SEGMENT_BYTES


def test_the_tombstones_of_single_offsets_fit_into_segments() -> None:
    partitions = tuple(TopicPartition("topic", index) for index in range(1_500))
    sizes = batch_sizes(many_offsets().coordinator.offset_delete(GROUP, partitions))
    assert len(sizes) > 1 and max(sizes) <= SEGMENT_BYTES


def test_the_tombstones_of_expired_offsets_fit_into_segments() -> None:
    shard = many_offsets()
    shard.now_ms += 8 * DAY_MS
    sizes = [size for decision in shard.coordinator.tick(shard.now) for size in batch_sizes(decision)]
    assert len(sizes) > 4 and max(sizes) <= SEGMENT_BYTES


# --- single offsets --------------------------------------------------------------------------------------------


def delete_offset(shard: GroupLog, group_id: str = GROUP) -> ErrorCode:
    response = shard.apply(shard.coordinator.offset_delete(group_id, (TOPIC,)))
    if response.error_code is not ErrorCode.none:
        error = response.error_code
        assert isinstance(error, ErrorCode)
        return error
    return only_error(response)


def test_single_offsets_can_be_deleted_unless_a_member_may_need_them() -> None:
    shard = shard_at_once()
    assert delete_offset(shard) is ErrorCode.group_id_not_found
    shard.commit(5)
    shard.txn_commit(6, producer())
    assert delete_offset(shard) is ErrorCode.unstable_offset_commit
    shard.mark(producer(), True)
    assert delete_offset(shard) is ErrorCode.none
    assert shard.fetch() == -1


def test_a_subscription_is_read_once_however_many_offsets_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []

    def reads(metadata: bytes) -> frozenset[str] | None:
        read.append(metadata)
        return subscribed_topics(metadata)

    monkeypatch.setattr("einmal.groups.classic.group.subscribed_topics", reads)
    shard = shard_at_once()
    stable_group(shard, Consumer(shard, "a", protocols=(("range", subscription("other")),)))
    partitions = tuple(TopicPartition(topic, index) for topic in ("other", "topic") for index in range(100))
    response = shard.apply(shard.coordinator.offset_delete(GROUP, partitions))
    errors = [{partition.error_code for partition in topic.partitions} for topic in response.topics]
    assert errors == [{ErrorCode.group_subscribed_to_topic}, {ErrorCode.none}]
    assert len(read) == 1


@pytest.mark.parametrize(
    ("protocol_type", "metadata", "error"),
    [
        ("consumer", subscription("topic"), ErrorCode.group_subscribed_to_topic),
        ("consumer", subscription("other"), ErrorCode.none),
        ("consumer", b"unreadable", ErrorCode.group_subscribed_to_topic),
        ("connect", subscription("other"), ErrorCode.non_empty_group),
    ],
)
def test_the_offsets_of_a_living_group_can_be_deleted_where_it_does_not_subscribe(
    protocol_type: str, metadata: bytes, error: ErrorCode
) -> None:
    shard = shard_at_once()
    consumer = Consumer(shard, "a", protocol_type=protocol_type, protocols=(("range", metadata),))
    stable_group(shard, consumer)
    consumer.commit(5)
    assert delete_offset(shard) is error
    assert shard.fetch() == (-1 if error is ErrorCode.none else 5)
