from __future__ import annotations

import pytest

from einmal.commit_protocol import effects as protocol
from einmal.commit_protocol.commit_record import CommitRecord
from einmal.mirror_protocol import effects
from einmal.mirror_protocol.effects import GroupPosition, MapChange, MapKey, MirrorEffect, MirrorEvent
from einmal.mirror_protocol.flow import NoticeKind
from einmal.mirror_protocol.machine import MirrorMachine
from einmal.mirror_protocol.offset_map import OffsetRun
from einmal.mirror_protocol.scan import DataHeader, GroupCommit, MarkerHeader
from einmal.types import EpochEnd, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tests.mirror_protocol.clusters import OFFSETS, ORDERS, Clusters, machine

PRODUCER = ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(0))
KEY = MapKey(ORDERS, "orders-1", "A.orders-1")
COPY = TopicPartition("A.orders", 0)


def five_orders() -> Clusters:
    clusters = Clusters()
    clusters.logs[ORDERS].append(DataHeader(0, 4, None))
    return clusters


def stopped(effect: MirrorEffect) -> effects.Stopped:
    assert isinstance(effect, effects.Stopped), effect
    return effect


def kinds(found: MirrorMachine) -> list[NoticeKind]:
    return [notice.kind for notice in found.take_notices()]


# --- a batch --------------------------------------------------------------------------------------------------------


def test_records_maps_group_offsets_and_position_are_one_transaction() -> None:
    clusters = five_orders()
    clusters.logs[OFFSETS].append(DataHeader(0, 0, None, (GroupCommit("g", ORDERS, 3),)))
    assert isinstance(clusters.run(machine()), effects.Wait)
    begin = clusters.kinds().index("CopyRecords")
    assert clusters.kinds()[begin : begin + 6] == [
        "CopyRecords",
        "ReadTargetGroups",
        "SaveMaps",
        "CommitGroupOffsets",
        "WriteCommitRecord",
        "EndTxn",
    ]
    identities = {each.identity for each in clusters.performed if hasattr(each, "identity")}
    assert len(identities) == 1
    (save,) = [each for each in clusters.performed if isinstance(each, effects.SaveMaps)]
    assert save.changes == {KEY: MapChange((OffsetRun(0, 100, 5),), (), {"g": GroupPosition(3, 103)})}
    (commit,) = [each for each in clusters.performed if isinstance(each, effects.CommitGroupOffsets)]
    assert commit.offsets == {"g": {TopicPartition("A.orders", 0): 103}}


def test_nothing_new_writes_no_transaction() -> None:
    clusters = five_orders()
    mirror = machine()
    clusters.run(mirror)
    clusters.performed.clear()
    clusters.logs[OFFSETS].append(DataHeader(0, 0, None, (GroupCommit("g", TopicPartition("__other", 0), 3),)))
    assert isinstance(clusters.wake(mirror), effects.Wait)
    assert "EndTxn" not in clusters.kinds()


def test_the_next_run_resumes_at_the_commit_record() -> None:
    clusters = five_orders()
    clusters.run(machine())
    clusters.logs[ORDERS].append(DataHeader(5, 6, None))
    clusters.performed.clear()
    clusters.maps = {KEY: effects.SavedMap((OffsetRun(0, 100, 5),))}
    clusters.run(machine(run="run-2"))
    (copied,) = [each for each in clusters.performed if isinstance(each, effects.CopyRecords)]
    assert copied.ranges == {ORDERS: (5, 7)}


def test_a_failed_copy_is_aborted_and_written_again_in_another_epoch() -> None:
    clusters = five_orders()
    failures = [protocol.Failed("NOT_ENOUGH_REPLICAS")]

    def fail_once(effect: MirrorEffect) -> MirrorEvent:
        return failures.pop() if failures else clusters.answer(effect)

    clusters.answers[effects.CopyRecords] = fail_once
    assert isinstance(clusters.run(machine()), effects.Wait)
    copies = [each for each in clusters.performed if isinstance(each, effects.CopyRecords)]
    assert [each.ranges for each in copies] == [{ORDERS: (0, 5)}] * 2
    assert copies[0].identity != copies[1].identity
    ends = [each.committed for each in clusters.performed if isinstance(each, protocol.EndTxn)]
    assert ends == [False, True]


def test_a_lost_answer_to_the_commit_ends_the_run_and_the_next_one_reads() -> None:
    clusters = five_orders()
    clusters.answers[protocol.EndTxn] = lambda effect: protocol.Unclear("no answer")
    assert stopped(clusters.run(machine())).may_restart


def test_answers_that_contradict_the_request_are_never_committed() -> None:
    clusters = five_orders()
    clusters.answers[effects.CopyRecords] = lambda effect: effects.RecordsCopied({ORDERS: (OffsetRun(3, 100, 7),)})
    assert "outside of orders-0" in stopped(clusters.run(machine())).reason
    assert clusters.record is None


# --- a probe --------------------------------------------------------------------------------------------------------


def test_a_partition_that_appears_after_the_ends_makes_the_probe_void() -> None:
    clusters = five_orders()
    added = TopicPartition("orders", 1)

    def add_partition(effect: MirrorEffect) -> MirrorEvent:
        clusters.logs.setdefault(added, [DataHeader(0, 0, None)])
        return clusters.answer(effect)

    clusters.answers[effects.ReadTransactions] = add_partition
    mirror = machine()
    assert isinstance(clusters.run(mirror), effects.Wait)
    assert "ScanHeaders" not in clusters.kinds()
    clusters.wake(mirror)
    (copied,) = [each for each in clusters.performed if isinstance(each, effects.CopyRecords)]
    assert copied.ranges == {ORDERS: (0, 5), added: (0, 1)}


def test_a_prepared_transaction_is_copied_when_it_is_complete() -> None:
    clusters = Clusters()
    clusters.logs[ORDERS] += [
        DataHeader(0, 0, PRODUCER),
        MarkerHeader(1, PRODUCER._replace(producer_epoch=ProducerEpoch(1)), True),
    ]
    clusters.preparing = {ProducerId(1): ProducerEpoch(1)}
    mirror = machine()
    clusters.run(mirror)
    assert clusters.record is None
    clusters.preparing = {}
    clusters.wake(mirror)
    assert clusters.record is not None


def test_a_transaction_log_that_cannot_be_read_is_reported_once() -> None:
    clusters = five_orders()
    clusters.preparing = None
    mirror = machine()
    clusters.run(mirror)
    clusters.wake(mirror)
    assert kinds(mirror) == [NoticeKind.TORN]


def test_committed_records_that_wait_for_an_open_transaction_are_reported() -> None:
    clusters = Clusters()
    other = PRODUCER._replace(producer_id=ProducerId(2))
    clusters.logs[ORDERS] += [
        DataHeader(0, 0, other),
        DataHeader(1, 1, PRODUCER),
        MarkerHeader(2, PRODUCER._replace(producer_epoch=ProducerEpoch(1)), committed=True),
    ]
    mirror = machine()
    clusters.run(mirror)
    for _ in range(150):
        clusters.wake(mirror)
    (notice,) = mirror.take_notices()
    assert notice.kind is NoticeKind.HELD
    assert "orders-0 from offset 1 on wait for open transactions (producer ids 2)" in notice.text


def test_a_transaction_without_a_marker_is_copied_as_the_sources_readers_see_it_and_reported() -> None:
    clusters = Clusters()
    clusters.logs[ORDERS] += [
        DataHeader(0, 1, PRODUCER),
        DataHeader(2, 2, PRODUCER._replace(producer_epoch=ProducerEpoch(1))),
        MarkerHeader(3, PRODUCER._replace(producer_epoch=ProducerEpoch(2)), committed=True),
    ]
    mirror = machine()
    clusters.run(mirror)
    (notice,) = mirror.take_notices()
    assert (notice.kind, notice.subject) == (NoticeKind.UNMARKED, str(ORDERS))
    (copied,) = [each for each in clusters.performed if isinstance(each, effects.CopyRecords)]
    assert copied.ranges == {ORDERS: (0, 4)}


@pytest.mark.parametrize("is_declared", [True, False])
def test_by_partition_an_open_transaction_holds_back_only_what_is_behind_it(is_declared: bool) -> None:
    clusters = Clusters()
    clusters.preparing = {} if is_declared else None
    other = PRODUCER._replace(producer_id=ProducerId(2))
    clusters.logs[ORDERS] += [
        DataHeader(0, 0, PRODUCER),
        DataHeader(1, 1, other),
        DataHeader(2, 2, PRODUCER),
        MarkerHeader(3, PRODUCER._replace(producer_epoch=ProducerEpoch(1)), committed=True),
    ]
    mirror = machine(by_partition=is_declared)
    clusters.run(mirror)
    clusters.logs[ORDERS].append(MarkerHeader(4, other._replace(producer_epoch=ProducerEpoch(1)), committed=True))
    clusters.wake(mirror)
    copied = [each.ranges for each in clusters.performed if isinstance(each, effects.CopyRecords)]
    assert copied == [{ORDERS: (0, 1)}, {ORDERS: (1, 5)}]
    assert ("ReadTransactions" in clusters.kinds()) is not is_declared
    assert NoticeKind.TORN not in kinds(mirror) or not is_declared


def history(count: int) -> Clusters:
    """Transactions with one record each, and a group that has read them all."""
    clusters = Clusters()
    for number in range(count):
        data = PRODUCER._replace(producer_epoch=ProducerEpoch(number))
        marker = PRODUCER._replace(producer_epoch=ProducerEpoch(number + 1))
        clusters.logs[ORDERS] += [DataHeader(2 * number, 2 * number, data), MarkerHeader(2 * number + 1, marker, True)]
    clusters.logs[OFFSETS].append(DataHeader(0, 0, None, (GroupCommit("g", ORDERS, 2 * count),)))

    def scan_a_little(effect: MirrorEffect) -> MirrorEvent:
        assert isinstance(effect, effects.ScanHeaders)
        ends = {each: min(start + 2, end) for each, (start, end) in effect.ranges.items()}
        headers = {each: clusters.logs[each][start : ends[each]] for each, (start, _) in effect.ranges.items()}
        return effects.HeadersScanned({each: tuple(found) for each, found in headers.items()}, ends)

    clusters.answers[effects.ScanHeaders] = scan_a_little
    return clusters


def committed_offsets(clusters: Clusters) -> list[int]:
    commits = [each for each in clusters.performed if isinstance(each, effects.CommitGroupOffsets)]
    return [each.offsets["g"][COPY] for each in commits]


def test_by_partition_a_long_history_is_copied_before_all_of_it_is_scanned() -> None:
    clusters = history(50)
    assert isinstance(clusters.run(machine(by_partition=True, parts_max=8, parts_ahead=5)), effects.Wait)
    copied = [each.ranges for each in clusters.performed if isinstance(each, effects.CopyRecords)]
    assert copied == [{ORDERS: (each, each + 10)} for each in range(0, 100, 10)]
    assert committed_offsets(clusters) == [200], "with the last records, and once"


def test_too_many_parts_to_keep_them_whole_stop_the_mirror() -> None:
    end = stopped(history(50).run(machine(parts_max=8)))
    assert "9 parts of transactions" in end.reason
    assert "by-partition" in end.hint


def test_too_many_parts_behind_an_open_transaction_stop_a_mirror_by_partition() -> None:
    clusters = history(50)
    other = PRODUCER._replace(producer_id=ProducerId(2))
    clusters.logs[ORDERS][0] = DataHeader(0, 0, other)
    end = stopped(clusters.run(machine(by_partition=True, parts_max=8, parts_ahead=2)))
    assert "find-hanging" in end.hint


def test_an_offset_of_a_group_waits_for_its_records_where_scanning_them_has_failed() -> None:
    clusters = history(3)
    clusters.logs[ORDERS] = [DataHeader(each, each, None) for each in range(6)]
    scan = clusters.answers[effects.ScanHeaders]
    failures = [effects.EffectFailed("no answer")]

    def fail_in_the_middle(effect: MirrorEffect) -> MirrorEvent:
        assert isinstance(effect, effects.ScanHeaders)
        return failures.pop() if failures and effect.ranges[ORDERS][0] else scan(effect)

    clusters.answers[effects.ScanHeaders] = fail_in_the_middle
    mirror = machine()
    clusters.run(mirror)
    assert not committed_offsets(clusters)
    clusters.wake(mirror)
    assert committed_offsets(clusters) == [106]
    assert NoticeKind.UNTRANSLATED not in kinds(mirror)


def test_a_source_without_readable_group_offsets_is_reported() -> None:
    clusters = Clusters(logs={ORDERS: [DataHeader(0, 0, None)]})
    mirror = machine()
    clusters.run(mirror)
    assert kinds(mirror) == [NoticeKind.UNTRANSLATED]
    assert clusters.record is not None


def test_reads_that_fail_are_tried_again() -> None:
    clusters = five_orders()
    clusters.answers[effects.ScanHeaders] = lambda effect: effects.EffectFailed("NOT_LEADER_OR_FOLLOWER")
    mirror = machine()
    assert isinstance(clusters.run(mirror), effects.Wait)
    clusters.answers.clear()
    clusters.wake(mirror)
    assert clusters.record is not None


def test_headers_that_no_broker_writes_stop_the_mirror() -> None:
    clusters = Clusters()
    clusters.logs[ORDERS] += [
        DataHeader(0, 0, PRODUCER._replace(producer_epoch=ProducerEpoch(1))),
        DataHeader(1, 1, PRODUCER),
    ]
    assert "writes into the transaction of" in stopped(clusters.run(machine())).reason


# --- what has changed at the source or the target -------------------------------------------------------------------


def after_five_orders() -> Clusters:
    clusters = five_orders()
    clusters.run(machine())
    clusters.maps = {KEY: effects.SavedMap((OffsetRun(0, 100, 5),), {"g": GroupPosition(3, 103)})}
    clusters.performed.clear()
    return clusters


def test_retention_that_passes_the_position_stops_the_mirror() -> None:
    clusters = after_five_orders()
    clusters.starts[ORDERS] = 9
    effect = stopped(clusters.run(machine(run="run-2")))
    assert "orders-0 offsets 5 to 8 were deleted before they were copied" in effect.reason
    assert "failOnDataLoss=false" in effect.hint


def test_aborted_records_that_are_deleted_are_no_data_loss() -> None:
    clusters = after_five_orders()
    clusters.logs[ORDERS] += [
        DataHeader(5, 6, PRODUCER),
        MarkerHeader(7, PRODUCER._replace(producer_epoch=ProducerEpoch(1)), committed=False),
    ]
    mirror = machine(run="run-2")
    assert isinstance(clusters.run(mirror), effects.Wait)
    assert clusters.record is not None and clusters.record.end[0]["orders"] == {"0": 8}
    assert [each.ranges for each in clusters.performed if isinstance(each, effects.CopyRecords)] == [{}]
    clusters.performed.clear()
    assert isinstance(clusters.wake(mirror), effects.Wait)
    assert "EndTxn" not in clusters.kinds(), "they are passed once"
    clusters.starts[ORDERS] = 8
    clusters.logs[ORDERS].clear()
    another = machine(run="run-3")
    assert isinstance(clusters.run(another), effects.Wait)
    assert kinds(another) == []


def test_a_run_to_the_end_records_that_it_has_passed_aborted_records() -> None:
    clusters = after_five_orders()
    marker = MarkerHeader(6, PRODUCER._replace(producer_epoch=ProducerEpoch(1)), committed=False)
    clusters.logs[ORDERS] += [DataHeader(5, 5, PRODUCER), marker]
    mirror = machine(run="run-2")
    effect = mirror.start()
    while not mirror.has_copied({ORDERS: 7, OFFSETS: 0}):
        effect = mirror.step(clusters.answer(effect))
    assert clusters.record is not None and clusters.record.end[0]["orders"] == {"0": 7}


def test_without_fail_on_data_loss_it_is_reported_and_the_rest_is_copied() -> None:
    clusters = after_five_orders()
    clusters.starts[ORDERS] = 9
    clusters.logs[ORDERS] = [DataHeader(9, 10, None)]
    mirror = machine(run="run-2", fail_on_data_loss=False)
    clusters.run(mirror)
    assert kinds(mirror) == [NoticeKind.DATA_LOSS]
    (copied,) = [each for each in clusters.performed if isinstance(each, effects.CopyRecords)]
    assert copied.ranges == {ORDERS: (9, 11)}


def test_a_source_topic_that_was_created_again_stops_the_mirror() -> None:
    clusters = after_five_orders()
    clusters.source_ids["orders"] = "orders-2"
    assert "deleted and created again (topic id orders-1, now orders-2)" in stopped(clusters.run(machine())).reason


def test_a_topic_that_was_created_again_begins_another_map_and_skips_offsets_of_the_old_one() -> None:
    clusters = after_five_orders()
    clusters.source_ids["orders"] = "orders-2"
    clusters.logs[ORDERS] = [DataHeader(0, 1, None)]
    clusters.target["A.orders"] = effects.TargetTopic("A.orders-1", (106,))
    clusters.answers[effects.CopyRecords] = lambda effect: effects.RecordsCopied({ORDERS: (OffsetRun(0, 106, 2),)})
    clusters.logs[OFFSETS] += [
        DataHeader(0, 0, None, (GroupCommit("g", ORDERS, 4),)),
        DataHeader(1, 1, None, (GroupCommit("h", ORDERS, None),)),
        DataHeader(2, 2, None, (GroupCommit("h", ORDERS, 1),)),
    ]
    mirror = machine(run="run-2", fail_on_data_loss=False)
    clusters.run(mirror)
    assert kinds(mirror) == [NoticeKind.DATA_LOSS, NoticeKind.OLD_OFFSET]
    (save,) = [each for each in clusters.performed if isinstance(each, effects.SaveMaps)]
    assert set(save.changes) == {KEY._replace(source_id="orders-2")}
    (commit,) = [each for each in clusters.performed if isinstance(each, effects.CommitGroupOffsets)]
    assert commit.offsets == {"h": {TopicPartition("A.orders", 0): 107}}


def test_offsets_are_translated_only_once_everything_that_may_delete_them_was_read() -> None:
    clusters = Clusters()
    clusters.logs[ORDERS].append(DataHeader(0, 4, None))
    # Of the topic before this one, which the mirror has never seen.
    old = DataHeader(0, 0, None, (GroupCommit("g", ORDERS, 3),))
    clusters.logs[OFFSETS] += [old, DataHeader(1, 1, None, (GroupCommit("g", ORDERS, None),))]
    answers: list[MirrorEvent] = [
        effects.HeadersScanned({ORDERS: tuple(clusters.logs[ORDERS]), OFFSETS: (old,)}, {ORDERS: 5, OFFSETS: 1}),
        effects.EffectFailed("the connection was lost"),
    ]
    clusters.answers[effects.ScanHeaders] = lambda effect: answers.pop(0) if answers else clusters.answer(effect)
    mirror = machine(fail_on_data_loss=False)
    clusters.run(mirror)
    assert "CopyRecords" not in clusters.kinds()
    clusters.wake(mirror)
    assert "CopyRecords" in clusters.kinds()
    assert not [each for each in clusters.performed if isinstance(each, effects.CommitGroupOffsets)]


def test_a_target_topic_that_was_created_again_stops_the_mirror() -> None:
    clusters = after_five_orders()
    clusters.target["A.orders"] = effects.TargetTopic("A.orders-2", (0,))
    assert "the records copied before are gone" in stopped(clusters.run(machine(run="run-2"))).reason


def test_a_deleted_topic_is_reported_and_the_others_are_copied() -> None:
    clusters = after_five_orders()
    del clusters.logs[ORDERS]
    other = TopicPartition("other", 0)
    clusters.logs[other] = [DataHeader(0, 0, None)]
    mirror = machine(run="run-2")
    clusters.run(mirror)
    assert kinds(mirror) == [NoticeKind.GONE]
    assert clusters.record is not None
    assert clusters.record.end[0]["orders"] == {"0": 5}
    assert clusters.record.end[0]["other"] == {"0": 1}


def test_a_log_that_ends_before_the_position_is_reported_and_awaited() -> None:
    clusters = after_five_orders()
    clusters.logs[ORDERS] = [DataHeader(0, 2, None)]
    mirror = machine(run="run-2")
    assert isinstance(clusters.run(mirror), effects.Wait)
    assert kinds(mirror) == [NoticeKind.BEHIND]
    assert "CopyRecords" not in clusters.kinds()
    clusters.logs[ORDERS].append(DataHeader(3, 9, None))
    effect = stopped(clusters.wake(mirror))
    assert "has ended at offset 3, and has grown past offset 5" in effect.reason


def truncated(offset: int, end: int) -> Clusters:
    """Five orders were copied in leader epoch 1. The leader of epoch 2 has those below ``offset``, and new ones."""
    clusters = five_orders()
    clusters.logs[ORDERS] = [DataHeader(0, 4, None, leader_epoch=1)]
    clusters.leader_epochs[ORDERS] = 1
    clusters.run(machine())
    clusters.maps = {KEY: effects.SavedMap((OffsetRun(0, 100, 5),), {"g": GroupPosition(3, 103)})}
    clusters.performed.clear()
    clusters.leader_epochs[ORDERS] = 2
    clusters.logs[ORDERS] = [DataHeader(0, offset - 1, None, leader_epoch=1)]
    if offset < end:
        clusters.logs[ORDERS].append(DataHeader(offset, end - 1, None, leader_epoch=2))
    return clusters


def copied(clusters: Clusters) -> list[dict[TopicPartition, tuple[int, int]]]:
    return [dict(each.ranges) for each in clusters.performed if isinstance(each, effects.CopyRecords)]


@pytest.mark.parametrize("end", [3, 5, 10])
def test_a_log_that_was_truncated_stops_the_mirror_also_if_it_has_grown_again(end: int) -> None:
    effect = stopped(truncated(3, end).run(machine(run="run-2")))
    assert "orders-0 was truncated to offset 3" in effect.reason
    assert "offsets 3 to 4" in effect.reason and "failOnDataLoss=false" in effect.hint
    assert not effect.may_restart


def test_without_fail_on_data_loss_what_was_written_since_a_truncation_is_copied() -> None:
    clusters = truncated(3, 10)
    clusters.target["A.orders"] = effects.TargetTopic("A.orders-1", (105,))
    clusters.answers[effects.CopyRecords] = lambda effect: effects.RecordsCopied({ORDERS: (OffsetRun(3, 105, 7),)})
    clusters.logs[OFFSETS].append(DataHeader(0, 0, None, (GroupCommit("h", ORDERS, 3),)))
    mirror = machine(run="run-2", fail_on_data_loss=False)
    clusters.run(mirror)
    clusters.wake(mirror)
    assert kinds(mirror) == [NoticeKind.DATA_LOSS]
    assert copied(clusters) == [{ORDERS: (3, 10)}]
    (save,) = [each for each in clusters.performed if isinstance(each, effects.SaveMaps)]
    assert save.changes[KEY].added[0] == OffsetRun(0, 100, 3) and save.changes[KEY].dropped == (OffsetRun(0, 100, 5),)
    (commit,) = [each for each in clusters.performed if isinstance(each, effects.CommitGroupOffsets)]
    assert commit.offsets == {"h": {COPY: 105}}, "behind the copies of what was truncated"
    clusters.performed.clear()
    clusters.answers.clear()
    clusters.maps = {KEY: effects.SavedMap((OffsetRun(0, 100, 3), OffsetRun(3, 105, 7)))}
    again = machine(run="run-3")
    assert isinstance(clusters.run(again), effects.Wait), "it is reported once"
    assert kinds(again) == []


def test_a_new_leader_with_everything_that_was_copied_is_no_data_loss() -> None:
    clusters = truncated(5, 9)
    assert isinstance(clusters.run(machine(run="run-2")), effects.Wait)
    assert copied(clusters) == [{ORDERS: (5, 9)}]


def test_a_new_leader_whose_high_watermark_is_not_there_yet_is_awaited() -> None:
    clusters = truncated(5, 5)
    lagging = effects.Extent(0, 3, 2, EpochEnd(1, 5))
    clusters.answers[effects.TakeEnds] = lambda effect: effects.EndsTaken(
        {each: lagging if each == ORDERS else effects.Extent(0, 0) for each in _asked(effect)}
    )
    mirror = machine(run="run-2")
    assert isinstance(clusters.run(mirror), effects.Wait)
    assert kinds(mirror) == [NoticeKind.BEHIND]
    clusters.answers.clear()
    clusters.logs[ORDERS].append(DataHeader(5, 6, None, leader_epoch=2))
    assert isinstance(clusters.wake(mirror), effects.Wait)
    assert copied(clusters) == [{ORDERS: (5, 7)}]


def _asked(effect: MirrorEffect) -> tuple[TopicPartition, ...]:
    assert isinstance(effect, effects.TakeEnds)
    return effect.partitions


def test_what_was_read_ahead_of_a_log_that_was_truncated_since_is_read_again() -> None:
    clusters = truncated(5, 5)
    other = PRODUCER._replace(producer_id=ProducerId(2))
    clusters.logs[ORDERS].append(DataHeader(5, 9, other, leader_epoch=2))
    mirror = machine(run="run-2")
    clusters.run(mirror)
    assert copied(clusters) == []
    clusters.logs[ORDERS][1:] = [DataHeader(5, 6, other, leader_epoch=2), DataHeader(7, 11, None, leader_epoch=3)]
    clusters.logs[ORDERS].append(MarkerHeader(12, other._replace(producer_epoch=ProducerEpoch(1)), True, 3))
    clusters.leader_epochs[ORDERS] = 3
    clusters.wake(mirror)
    clusters.wake(mirror)
    assert copied(clusters) == [{ORDERS: (5, 13)}]
    assert kinds(mirror) == []
    scans = [each.ranges[ORDERS] for each in clusters.performed if isinstance(each, effects.ScanHeaders)]
    assert scans == [(5, 10), (5, 13)]


def test_batches_of_a_leader_that_was_elected_after_the_comparison_are_read_again_after_the_next_one() -> None:
    clusters = truncated(3, 10)
    clusters.answers[effects.TakeEnds] = lambda effect: effects.EndsTaken(
        {each: effects.Extent(0, 10 if each == ORDERS else 0, 1 if each == ORDERS else -1) for each in _asked(effect)}
    )
    mirror = machine(run="run-2")
    assert isinstance(clusters.run(mirror), effects.Wait)
    assert copied(clusters) == []
    clusters.answers.clear()
    assert "was truncated to offset 3" in stopped(clusters.wake(mirror)).reason


def test_a_log_that_was_restored_from_an_older_copy_stops_the_mirror() -> None:
    clusters = truncated(5, 5)
    clusters.leader_epochs[ORDERS] = 0
    clusters.logs[ORDERS] = [DataHeader(0, 8, None, leader_epoch=0)]
    assert "was restored from an older copy" in stopped(clusters.run(machine(run="run-2"))).reason


def test_truncated_offsets_of_groups_stop_nothing_and_what_was_committed_since_is_translated() -> None:
    clusters = five_orders()
    clusters.logs[OFFSETS] = [DataHeader(0, 3, None, (GroupCommit("g", ORDERS, 2),), leader_epoch=1)]
    clusters.leader_epochs[OFFSETS] = 1
    clusters.run(machine())
    clusters.maps = {KEY: effects.SavedMap((OffsetRun(0, 100, 5),), {"g": GroupPosition(2, 102)})}
    clusters.performed.clear()
    clusters.leader_epochs[OFFSETS] = 2
    clusters.logs[OFFSETS] = [DataHeader(1, 5, None, (GroupCommit("g", ORDERS, 4),), leader_epoch=2)]
    clusters.logs[OFFSETS].insert(0, DataHeader(0, 0, None, leader_epoch=1))
    mirror = machine(run="run-2")
    clusters.run(mirror)
    assert isinstance(clusters.wake(mirror), effects.Wait)
    assert kinds(mirror) == [NoticeKind.BEHIND]
    (commit,) = [each for each in clusters.performed if isinstance(each, effects.CommitGroupOffsets)]
    assert commit.offsets == {"g": {COPY: 104}}


def test_another_cluster_behind_the_address_is_refused() -> None:
    clusters = after_five_orders()
    clusters.source_cluster = "C"
    assert (
        "the source is cluster C, but the commit record's positions are of A"
        in stopped(clusters.run(machine(run="run-2"))).reason
    )


def test_a_cluster_is_not_mirrored_to_itself() -> None:
    clusters = five_orders()
    clusters.source_cluster = "B"
    assert "source and target are one cluster, B" in stopped(clusters.run(machine())).reason
    assert "CreateTopic" not in clusters.kinds()


def test_the_commit_record_of_a_pipeline_is_refused() -> None:
    clusters = five_orders()
    clusters.record = CommitRecord(
        transactional_id="einmal-mirror-A-B", query_id="", checkpoint="", batch_id=-1, end=({"orders": {"0": 5}},)
    )
    assert "is not of a mirror" in stopped(clusters.run(machine())).reason


# --- group offsets --------------------------------------------------------------------------------------------------


def test_an_offset_below_the_map_is_reported_and_not_translated() -> None:
    clusters = after_five_orders()
    clusters.maps = {KEY: effects.SavedMap((OffsetRun(3, 103, 2),))}
    clusters.logs[OFFSETS].append(DataHeader(0, 0, None, (GroupCommit("g", ORDERS, 1),)))
    mirror = machine(run="run-2")
    clusters.run(mirror)
    assert kinds(mirror) == [NoticeKind.UNTRANSLATED]
    assert "CommitGroupOffsets" not in clusters.kinds()


def committing_again(clusters: Clusters, offset: int = 4) -> MirrorMachine:
    clusters.logs[OFFSETS].append(DataHeader(0, 0, None, (GroupCommit("g", ORDERS, offset),)))
    mirror = machine(run="run-2")
    clusters.run(mirror)
    return mirror


def test_a_group_whose_offset_is_still_the_translated_one_moves_on() -> None:
    clusters = after_five_orders()
    clusters.groups = effects.TargetGroupsRead(frozenset(), {"g": {COPY: 103}})
    assert kinds(committing_again(clusters)) == []
    (commit,) = [each for each in clusters.performed if isinstance(each, effects.CommitGroupOffsets)]
    assert commit.offsets == {"g": {COPY: 104}}


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (effects.TargetGroupsRead(frozenset({"g"}), {}), "has members at the target"),
        (effects.TargetGroupsRead(frozenset(), {"g": {COPY: 107}}), "has committed offset 107 in A.orders-0"),
    ],
)
def test_a_group_that_has_moved_to_the_target_is_left_alone(found: effects.TargetGroupsRead, why: str) -> None:
    clusters = after_five_orders()
    clusters.groups = found
    mirror = committing_again(clusters)
    (notice,) = mirror.take_notices()
    assert (notice.kind, notice.subject) == (NoticeKind.MOVED, "g")
    assert why in notice.text and "einmal group delete g" in notice.text
    assert "CommitGroupOffsets" not in clusters.kinds()
    assert "EndTxn" in clusters.kinds()


def test_an_offset_that_was_deleted_and_committed_again_at_the_source_is_still_the_mirrors() -> None:
    clusters = after_five_orders()
    clusters.logs[OFFSETS].append(DataHeader(0, 0, None, (GroupCommit("g", ORDERS, None),)))
    clusters.run(machine(run="run-2"))
    (save,) = [each for each in clusters.performed if isinstance(each, effects.SaveMaps)]
    clusters.maps = {KEY: effects.SavedMap((OffsetRun(0, 100, 5),), save.changes[KEY].groups)}
    clusters.groups = effects.TargetGroupsRead(frozenset(), {"g": {COPY: 103}})
    clusters.logs[OFFSETS].append(DataHeader(1, 1, None, (GroupCommit("g", ORDERS, 5),)))
    mirror = machine(run="run-3")
    clusters.run(mirror)
    assert kinds(mirror) == []
    (commit,) = [each for each in clusters.performed if isinstance(each, effects.CommitGroupOffsets)]
    assert commit.offsets == {"g": {COPY: 105}}


def test_the_metadata_of_an_offset_is_committed_with_it() -> None:
    clusters = after_five_orders()
    other = TopicPartition("other", 0)
    clusters.logs[OFFSETS] += [
        DataHeader(0, 0, None, (GroupCommit("g", ORDERS, 3, "of the offset before"),)),
        DataHeader(1, 1, None, (GroupCommit("g", ORDERS, 4, "state=42"), GroupCommit("h", ORDERS, 2))),
        DataHeader(2, 2, None, (GroupCommit("g", other, 4, "of a topic that is not copied"),)),
    ]
    clusters.run(machine(run="run-2"))
    (commit,) = [each for each in clusters.performed if isinstance(each, effects.CommitGroupOffsets)]
    assert commit.offsets == {"g": {COPY: 104}, "h": {COPY: 102}}
    assert commit.metadata == {"g": {COPY: "state=42"}}


def test_runs_below_all_known_groups_are_dropped_when_there_are_too_many() -> None:
    clusters = after_five_orders()
    runs = tuple(OffsetRun(source, 100 + source, 1) for source in range(0, 5, 2))
    clusters.maps = {KEY: effects.SavedMap(runs, {"g": GroupPosition(3, 103)})}
    clusters.logs[ORDERS].append(DataHeader(5, 6, None))
    clusters.run(machine(run="run-2", runs_max=2))
    (save,) = [each for each in clusters.performed if isinstance(each, effects.SaveMaps)]
    # The run below offset 3 is kept: behind it, the next one has the first record.
    assert save.changes[KEY].dropped == runs[:1] + runs[2:]
    assert save.changes[KEY].added == (OffsetRun(4, 104, 3),)
