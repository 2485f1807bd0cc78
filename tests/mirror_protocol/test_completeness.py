"""When a mirror has copied everything, and what it does with a topic that cannot be copied."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from einmal.commit_protocol import effects as protocol
from einmal.mirror_protocol import effects
from einmal.mirror_protocol.effects import MirrorEffect, MirrorEvent
from einmal.mirror_protocol.flow import Flow, NoticeKind
from einmal.mirror_protocol.machine import MirrorMachine
from einmal.mirror_protocol.progress import RecordedPosition
from einmal.mirror_protocol.replication_policy import NameFilter
from einmal.mirror_protocol.scan import DataHeader, GroupCommit, Header, MarkerHeader
from einmal.types import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tests.mirror_protocol.clusters import OFFSETS, ORDERS, Clusters

LARGE = TopicPartition("large", 0)
GOAL = {ORDERS: 5, LARGE: 3, OFFSETS: 2}
PRODUCER = ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(0))
END = MarkerHeader(4, PRODUCER._replace(producer_epoch=ProducerEpoch(1)), committed=True)


def clusters_with_three_logs() -> Clusters:
    return Clusters(
        {
            ORDERS: [DataHeader(0, 4, None)],
            LARGE: [DataHeader(0, 2, None)],
            OFFSETS: [
                DataHeader(0, 0, None, (GroupCommit("g", ORDERS, 2),)),
                DataHeader(1, 1, None, (GroupCommit("g", LARGE, 1),)),
            ],
        }
    )


def started(
    number: int = 0,
    aside: dict[str, str] | None = None,
    topics: tuple[str, ...] = (".*",),
    *,
    by_partition: bool = False,
    groups: dict[str, str] | None = None,
) -> MirrorMachine:
    flow = Flow(source="A", target="B", topics=NameFilter(topics), by_partition=by_partition)
    return MirrorMachine(flow, f"run-{number}", None, aside, groups)


def copied(clusters: Clusters) -> dict[TopicPartition, int]:
    return dict(RecordedPosition.of(clusters.record).offsets)


def refused(effect: MirrorEffect) -> MirrorEvent:
    assert isinstance(effect, effects.CopyRecords)
    if LARGE in effect.ranges:
        return effects.CopyRefused("large", "MESSAGE_TOO_LARGE (10): too large")
    return Clusters().answer(effect)


_OF_THE_TRANSACTION = (effects.CopyRecords, effects.SaveMaps, effects.CommitGroupOffsets)


def test_nothing_counts_as_copied_before_it_is_whatever_step_fails() -> None:
    """Each step fails once, in a run of its own, and further runs follow: whatever counts as complete at any moment is
    recorded at the target."""
    failing = has_failed = 1
    while has_failed:
        has_failed = runs_that_copy_everything(failing)
        failing += 1
    assert failing > 15


def runs_that_copy_everything(failing: int) -> int:
    """Returns how many steps have failed, which is one at most."""
    clusters, step, failed = clusters_with_three_logs(), 0, 0
    for number in range(10):
        machine = started(number)
        effect = machine.start()
        for _ in range(100):
            if machine.has_copied(GOAL):
                assert copied(clusters) == GOAL, f"step {failing} has failed"
                return failed
            if isinstance(effect, effects.Stopped):
                break
            step += 1
            if isinstance(effect, effects.Wait):
                event: MirrorEvent = effects.Woken()
            elif step == failing:
                failed += 1
                is_protocol = type(effect).__module__ == protocol.__name__ or isinstance(effect, _OF_THE_TRANSACTION)
                reason = "the target is away"
                event = protocol.Failed(reason) if is_protocol else effects.EffectFailed(reason)
            else:
                event = clusters.answer(effect)
            effect = machine.step(event)
    raise AssertionError("it never ends")


@pytest.mark.parametrize(
    ("log", "end", "expected"),
    (
        ([], 0, True),
        ([DataHeader(0, 1, PRODUCER)], 2, True),  # Open: nothing of it is committed.
        ([DataHeader(0, 1, PRODUCER), MarkerHeader(2, PRODUCER, committed=False)], 3, True),
        ([DataHeader(0, 1, PRODUCER), DataHeader(2, 2, None)], 3, False),
        ([DataHeader(0, 1, PRODUCER._replace(producer_id=ProducerId(2))), DataHeader(2, 3, PRODUCER), END], 5, False),
        # Committed after the goal was known.
        ([DataHeader(0, 1, PRODUCER._replace(producer_id=ProducerId(2))), DataHeader(2, 3, PRODUCER), END], 4, True),
    ),
)
@pytest.mark.parametrize("by_partition", (False, True))
def test_what_open_transactions_hold_back_is_not_copied(
    log: list[Header], end: int, expected: bool, by_partition: bool
) -> None:
    clusters = Clusters({ORDERS: log, OFFSETS: []})
    machine = started(by_partition=by_partition)
    clusters.run(machine)
    assert machine.has_copied({ORDERS: end, OFFSETS: 0}) is expected


def test_records_outside_of_transactions_that_are_held_back_are_reported() -> None:
    clusters = Clusters({ORDERS: [DataHeader(0, 1, PRODUCER), DataHeader(2, 2, None)], OFFSETS: []})
    machine = started()
    clusters.run(machine)
    for _ in range(150):
        clusters.wake(machine)
    assert [each.kind for each in machine.take_notices()] == [NoticeKind.HELD]


def test_records_outside_of_transactions_are_copied_while_nobody_knows_of_the_transactions() -> None:
    clusters = Clusters(
        {
            ORDERS: [DataHeader(0, 4, None)],
            LARGE: [DataHeader(0, 3, PRODUCER), END],
            OFFSETS: [DataHeader(0, 0, None, (GroupCommit("g", ORDERS, 2),))],
        }
    )
    clusters.answers[effects.ReadTransactions] = lambda effect: effects.EffectFailed("no leader")
    machine, goal = started(), {ORDERS: 5, LARGE: 5, OFFSETS: 1}
    clusters.run(machine)
    assert copied(clusters) == {ORDERS: 5, LARGE: 0, OFFSETS: 1}
    for _ in range(150):
        clusters.wake(machine)
    assert machine.take_notices() == []
    assert not machine.has_copied(goal)
    del clusters.answers[effects.ReadTransactions]
    clusters.wake(machine)
    assert copied(clusters) == goal
    assert machine.has_copied(goal)


# --- a group that the target refuses ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", (effects.ReadTargetGroups, effects.CommitGroupOffsets))
def test_a_group_that_the_target_refuses_holds_back_neither_records_nor_other_groups(kind: type[MirrorEffect]) -> None:
    clusters = clusters_with_three_logs()
    clusters.logs[OFFSETS].append(DataHeader(2, 2, None, (GroupCommit("bad", ORDERS, 2),)))
    clusters.answers[kind] = lambda effect: (
        effects.GroupsRefused({"bad": "GROUP_AUTHORIZATION_FAILED (30): bad"})
        if "bad" in getattr(effect, "groups", getattr(effect, "offsets", ()))
        else clusters.answer(effect)
    )
    groups: dict[str, str] = {}
    first = started(groups=groups)
    assert isinstance(clusters.run(first), effects.Stopped)
    assert groups.keys() == {"bad"}
    second = started(1, groups=groups)
    assert isinstance(clusters.run(second), effects.Wait)
    assert copied(clusters) == {**GOAL, OFFSETS: 3}
    (notice,) = second.take_notices()
    assert (notice.kind, notice.subject, notice.offset) == (NoticeKind.REFUSED, "bad", 2)
    (offsets,) = [effect.offsets for effect in clusters.performed if isinstance(effect, effects.CommitGroupOffsets)][
        -1:
    ]
    assert offsets.keys() == {"g"}


def refuse(clusters: Clusters, kind: type[MirrorEffect]) -> None:
    clusters.answers[kind] = lambda effect: (
        effects.GroupsRefused({"bad": "GROUP_AUTHORIZATION_FAILED (30): bad"})
        if "bad" in getattr(effect, "groups", getattr(effect, "offsets", ()))
        else clusters.answer(effect)
    )


def save_maps(clusters: Clusters, machine: MirrorMachine) -> None:
    progress = machine.progress
    clusters.maps = {
        key: effects.SavedMap(each.runs, progress.groups.get(key, {})) for key, each in progress.maps.items()
    }


def end_of(clusters: Clusters, goal: dict[TopicPartition, int], groups: dict[str, str], number: int) -> MirrorMachine:
    """Runs of a process, one after the other, until everything counts as copied."""
    for count in range(5):
        machine = started(10 * number + count, groups=groups)
        effect = clusters.run(machine)
        if isinstance(effect, effects.Wait) and not machine.has_copied(goal):
            clusters.wake(machine)
        save_maps(clusters, machine)
        if machine.has_copied(goal):
            return machine
    raise AssertionError("it never ends")


def commits_of(clusters: Clusters) -> list[effects.TargetOffsets]:
    return [each.offsets for each in clusters.performed if isinstance(each, effects.CommitGroupOffsets)]


@pytest.mark.parametrize("kind", (effects.ReadTargetGroups, effects.CommitGroupOffsets))
@pytest.mark.parametrize("is_another_process", (False, True))
def test_an_offset_that_was_passed_because_its_group_was_refused_is_never_forgotten(
    kind: type[MirrorEffect], is_another_process: bool
) -> None:
    clusters, goal = clusters_with_three_logs(), {**GOAL, OFFSETS: 3}
    clusters.logs[OFFSETS].append(DataHeader(2, 2, None, (GroupCommit("bad", ORDERS, 2),)))
    refuse(clusters, kind)
    groups: dict[str, str] = {}
    machine = end_of(clusters, goal, groups, 1)
    assert groups.keys() == {"bad"}
    for number in range(2, 4):
        # Whoever comes next knows that it is missing, although its commit was passed.
        groups = {}
        machine = end_of(clusters, goal, groups, number)
        assert groups.keys() == RecordedPosition.of(clusters.record).refused.keys() == {"bad"}
    del clusters.answers[kind]
    clusters.performed.clear()
    groups.clear()
    if is_another_process:
        machine = end_of(clusters, goal, groups, 4)
    else:
        assert not machine.has_copied(goal)
        clusters.wake(machine)
        assert machine.has_copied(goal)
    assert [each["bad"] for each in commits_of(clusters)] == [{TopicPartition("A.orders", 0): 102}]
    assert copied(clusters) == goal
    assert not RecordedPosition.of(clusters.record).refused
    # Once is enough.
    clusters.performed.clear()
    save_maps(clusters, machine)
    end_of(clusters, goal, groups, 5)
    assert "EndTxn" not in clusters.kinds()


def test_a_group_that_is_permitted_again_never_goes_back() -> None:
    clusters, groups = clusters_with_three_logs(), dict[str, str]()
    first = DataHeader(2, 2, None, (GroupCommit("bad", ORDERS, 3),))
    clusters.logs[OFFSETS].append(first)
    end_of(clusters, {**GOAL, OFFSETS: 3}, groups, 1)
    refuse(clusters, effects.CommitGroupOffsets)
    clusters.logs[OFFSETS] += [
        DataHeader(offset, offset, None, (GroupCommit("bad", ORDERS, offset + 1),)) for offset in (3, 4)
    ]
    goal = {**GOAL, OFFSETS: 5}
    machine = end_of(clusters, goal, groups, 2)
    assert RecordedPosition.of(clusters.record).refused["bad"].position == 3
    del clusters.answers[effects.CommitGroupOffsets]
    clusters.performed.clear()
    groups.clear()
    clusters.wake(machine)
    assert commits_of(clusters) == [{"bad": {TopicPartition("A.orders", 0): 105}}]
    assert machine.has_copied(goal)


def test_what_a_refused_group_has_deleted_since_is_not_translated() -> None:
    clusters, groups = clusters_with_three_logs(), dict[str, str]()
    clusters.logs[OFFSETS].append(DataHeader(2, 2, None, (GroupCommit("bad", ORDERS, 2),)))
    refuse(clusters, effects.CommitGroupOffsets)
    machine = end_of(clusters, {**GOAL, OFFSETS: 3}, groups, 1)
    clusters.logs[OFFSETS].append(DataHeader(3, 3, None, (GroupCommit("bad", ORDERS, None),)))
    groups.clear()
    clusters.performed.clear()
    clusters.wake(machine)
    assert commits_of(clusters) == []
    assert machine.has_copied({**GOAL, OFFSETS: 4})
    assert not RecordedPosition.of(clusters.record).refused


def test_a_commit_record_names_a_bounded_number_of_refused_groups() -> None:
    clusters = clusters_with_three_logs()
    names = {f"{number:>03}": "GROUP_AUTHORIZATION_FAILED" * 100 for number in range(600)}
    clusters.logs[OFFSETS] += [
        DataHeader(2 + offset, 2 + offset, None, (GroupCommit(each, ORDERS, 2),)) for offset, each in enumerate(names)
    ]
    machine = end_of(clusters, {**GOAL, OFFSETS: 602}, names, 1)
    assert len(machine.progress.recorded.refused) == 500
    assert clusters.record is not None
    assert len(json.dumps(clusters.record.end)) < 200_000


# --- a topic that cannot be copied ------------------------------------------------------------------------------------


def test_a_topic_that_cannot_be_created_is_left_out_and_recorded_with_the_reason() -> None:
    clusters = clusters_with_three_logs()

    def create(effect: MirrorEffect) -> MirrorEvent:
        assert isinstance(effect, effects.CreateTopic)
        if effect.source == "large":
            return effects.EffectFailed("INVALID_TOPIC_EXCEPTION (17): too long", "large")
        return clusters.answer(effect)

    clusters.answers[effects.CreateTopic] = create
    machine = started()
    assert isinstance(clusters.run(machine), effects.Wait)
    assert copied(clusters) == {ORDERS: 5, OFFSETS: 2}
    (notice,) = machine.take_notices()
    assert (notice.kind, notice.subject) == (NoticeKind.ASIDE, "large")
    assert dict(RecordedPosition.of(clusters.record).aside) == {"large": "INVALID_TOPIC_EXCEPTION (17): too long"}
    assert machine.has_copied({ORDERS: 5, OFFSETS: 2})


def test_records_that_the_target_refuses_leave_their_topic_out_in_the_next_run() -> None:
    clusters, aside = clusters_with_three_logs(), dict[str, str]()
    clusters.answers[effects.CopyRecords] = refused
    machine = started(0, aside)
    stop = clusters.run(machine)
    assert isinstance(stop, effects.Stopped)
    assert stop.may_restart
    assert not machine.has_copied(GOAL)
    assert isinstance(clusters.run(started(1, aside)), effects.Wait)
    assert list(aside) == ["large"]
    assert copied(clusters) == {ORDERS: 5, OFFSETS: 2}


def test_a_topic_that_alone_cannot_be_copied_is_recorded_too() -> None:
    clusters = Clusters({LARGE: [DataHeader(0, 2, None)], OFFSETS: []})
    aside = {"large": "no leader"}
    machine = started(0, aside)
    assert isinstance(clusters.run(machine), effects.Wait)
    assert dict(RecordedPosition.of(clusters.record).aside) == aside
    clusters.performed.clear()
    clusters.wake(machine)
    assert "EndTxn" not in clusters.kinds(), "once is enough"


@pytest.mark.parametrize("is_another_process", (False, True))
def test_groups_of_a_topic_that_is_back_resume_there_and_no_other_offset_goes_back(is_another_process: bool) -> None:
    clusters, aside = clusters_with_three_logs(), {"large": "no leader"}
    # Compaction has not reached the first offset of the other group yet.
    clusters.logs[OFFSETS].append(DataHeader(2, 2, None, (GroupCommit("g", ORDERS, 4),)))
    machine = started(0, aside)
    clusters.run(machine)
    clusters.performed.clear()
    aside.clear()
    if is_another_process:
        clusters.maps = {
            each: effects.SavedMap(machine.progress.maps[each].runs, machine.progress.groups.get(each, {}))
            for each in machine.progress.maps
        }
        clusters.run(started(1))
    else:
        # The first round finds the topic.
        clusters.wake(machine)
        clusters.wake(machine)
    commits = [each.offsets for each in clusters.performed if isinstance(each, effects.CommitGroupOffsets)]
    assert commits == [{"g": {TopicPartition("A.large", 0): 101}}]
    assert copied(clusters) == {ORDERS: 5, LARGE: 3, OFFSETS: 3}
    assert not RecordedPosition.of(clusters.record).aside


def test_a_topic_that_leaves_the_pattern_is_not_called_deleted() -> None:
    clusters = clusters_with_three_logs()
    clusters.run(started())
    machine = started(1, topics=("orders",))
    clusters.run(machine)
    (notice,) = machine.take_notices()
    assert (notice.kind, notice.subject) == (NoticeKind.GONE, "large")
    assert "no longer matches" in notice.text
    del clusters.logs[LARGE]
    machine = started(2)
    clusters.run(machine)
    (notice,) = machine.take_notices()
    assert "was deleted" in notice.text


def test_a_position_with_topics_left_out_can_be_read_and_written() -> None:
    position = RecordedPosition("a", "b", {"orders": "1"}, {}, {ORDERS: 5}, {}, {"large": "x = y: 1=2 é\n"})
    end = position.end()
    assert end[0]["orders"] == {"0": 5}
    assert all(value == {} for key, value in end[0].items() if key.startswith("@"))
    clusters = clusters_with_three_logs()
    clusters.run(started())
    assert clusters.record is not None
    assert RecordedPosition.of(replace(clusters.record, end=end)) == position
