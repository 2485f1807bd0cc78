"""Offsets of groups that are read again: for a group that is permitted again, for a topic that is back, and for what
the flow did not accept before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from einmal.mirror_protocol import effects
from einmal.mirror_protocol.effects import MirrorEffect, MirrorEvent
from einmal.mirror_protocol.flow import Flow, NoticeKind
from einmal.mirror_protocol.machine import MirrorMachine
from einmal.mirror_protocol.progress import OFFSETS_TOPIC, RecordedPosition
from einmal.mirror_protocol.replication_policy import NameFilter
from einmal.mirror_protocol.scan import DataHeader, GroupCommit, Header, MarkerHeader
from einmal.types import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tests.mirror_protocol.clusters import OFFSETS, ORDERS, Clusters

LARGE = TopicPartition("large", 0)
REFUSED = {"bad": "GROUP_AUTHORIZATION_FAILED (30): bad"}
FIRST, SECOND = (ProducerIdAndEpoch(ProducerId(number), ProducerEpoch(0)) for number in (1, 2))


class Killed(Exception):
    pass


def committed(offset: int, group: str, partition: TopicPartition, value: int) -> DataHeader:
    return DataHeader(offset, offset, None, (GroupCommit(group, partition, value),))


def end_of(offset: int, producer: ProducerIdAndEpoch) -> MarkerHeader:
    return MarkerHeader(offset, producer._replace(producer_epoch=ProducerEpoch(1)), committed=True)


class Mirror:
    """Runs over two clusters, each in a process of its own."""

    def __init__(self, *offsets: Header, offsets_max: int = 100, by_partition: bool = False) -> None:
        self.clusters = Clusters(
            {ORDERS: [DataHeader(0, 4, None)], LARGE: [DataHeader(0, 4, None)], OFFSETS: list(offsets)}
        )
        self.log = self.clusters.logs[OFFSETS]
        self.flow = Flow(
            source="A", target="B", fail_on_data_loss=False, offsets_max=offsets_max, by_partition=by_partition
        )
        self.aside: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.runs = 0

    def start(self, aside: str = "", refused: dict[str, str] | None = None) -> None:
        """Another process."""
        self.aside, self.refused = dict.fromkeys([aside] if aside else [], "no leader"), dict(refused or {})
        self.runs += 1
        self.machine = MirrorMachine(self.flow, f"run-{self.runs}", None, self.aside, self.refused)
        self.clusters.run(self.machine)

    def end(self) -> None:
        progress = self.machine.progress
        self.clusters.maps = {
            key: effects.SavedMap(each.runs, progress.groups.get(key, {})) for key, each in progress.maps.items()
        }

    def die_at(self, effect: type[MirrorEffect], number: int) -> None:
        count = 0

        def answer(asked: MirrorEffect) -> MirrorEvent:
            nonlocal count
            count += 1
            if count == number:
                raise Killed
            return self.clusters.answer(asked)

        self.clusters.answers[effect] = answer
        with pytest.raises(Killed):
            self.start()
        del self.clusters.answers[effect]
        self.end()

    def wake(self, times: int = 5) -> None:
        for _ in range(times):
            self.clusters.wake(self.machine)

    def translated(self, group: str, partition: TopicPartition) -> list[int]:
        """Every offset of the group at the target, in order."""
        copy = TopicPartition(f"A.{partition.topic}", partition.partition)
        found = [each.offsets for each in self.clusters.performed if isinstance(each, effects.CommitGroupOffsets)]
        return [each[group][copy] for each in found if copy in each.get(group, {})]

    @property
    def recorded(self) -> RecordedPosition:
        return RecordedPosition.of(self.clusters.record)


def test_a_topic_comes_back_while_a_group_is_refused() -> None:
    mirror = Mirror(committed(0, "bad", LARGE, 1), committed(1, "x", ORDERS, 1), committed(2, "bad", ORDERS, 2))
    mirror.start(aside="large")
    mirror.log.append(committed(3, "bad", ORDERS, 4))
    mirror.refused.update(REFUSED)
    mirror.wake()
    assert mirror.recorded.refused["bad"].position == 3
    mirror.aside.clear()
    mirror.wake()
    assert mirror.recorded.refused["bad"].position <= 0
    mirror.refused.clear()
    mirror.wake()
    assert mirror.translated("bad", LARGE) == [101]


def test_the_offsets_of_groups_are_created_again_while_a_group_is_refused() -> None:
    mirror = Mirror(*(committed(offset, "x", ORDERS, 2) for offset in range(9)))
    mirror.start()
    mirror.refused.update(REFUSED)
    mirror.log.append(committed(9, "bad", ORDERS, 2))
    mirror.wake()
    mirror.clusters.source_ids[OFFSETS_TOPIC] = "other"
    mirror.log[:] = [committed(0, "bad", ORDERS, 3)]
    mirror.wake()
    mirror.refused.clear()
    mirror.wake()
    assert mirror.translated("bad", ORDERS) == [103]
    assert not mirror.recorded.refused


def test_a_group_is_permitted_while_the_offsets_of_groups_cannot_be_read() -> None:
    mirror = Mirror(committed(0, "bad", ORDERS, 2))
    mirror.start(refused=REFUSED)
    mirror.aside[OFFSETS_TOPIC] = "no leader"
    mirror.wake()
    mirror.refused.clear()
    mirror.wake()
    mirror.aside.clear()
    mirror.wake()
    assert mirror.translated("bad", ORDERS) == [102]


def test_the_offsets_of_groups_cannot_be_read_while_they_are_read_again() -> None:
    mirror = Mirror(committed(0, "bad", ORDERS, 2), committed(1, "x", ORDERS, 2))
    mirror.start(refused=REFUSED)
    mirror.refused.clear()
    mirror.clusters.answers[effects.ScanHeaders] = lambda _: effects.EffectFailed("no leader", OFFSETS_TOPIC)
    mirror.wake(1)
    del mirror.clusters.answers[effects.ScanHeaders]
    assert OFFSETS_TOPIC in mirror.aside
    mirror.wake()
    mirror.aside.clear()
    mirror.wake()
    assert mirror.translated("bad", ORDERS) == [102]


def test_a_topic_is_back_before_the_offsets_of_groups_are() -> None:
    mirror = Mirror(committed(0, "g", LARGE, 2), committed(1, "x", ORDERS, 2))
    mirror.start(aside="large")
    mirror.aside[OFFSETS_TOPIC] = "no leader"
    mirror.wake()
    del mirror.aside["large"]
    mirror.wake()
    assert "large" in mirror.recorded.aside, "whoever comes next reads them again, too"
    mirror.aside.clear()
    mirror.wake()
    assert mirror.translated("g", LARGE) == [102]
    assert not mirror.recorded.aside


def test_a_mirror_that_dies_while_it_reads_the_offsets_of_a_topic_again_forgets_none() -> None:
    mirror = Mirror(committed(0, "g", LARGE, 4), committed(1, "x", ORDERS, 2), offsets_max=2)
    mirror.start(aside="large")
    mirror.wake()
    mirror.end()
    mirror.die_at(effects.CopyRecords, 2)
    mirror.start()
    mirror.wake()
    assert mirror.translated("g", LARGE) == [104]
    assert mirror.machine.has_copied({ORDERS: 5, LARGE: 5, OFFSETS: 2})


def test_an_offset_of_the_topic_before_is_never_translated_for_a_group_that_is_permitted_again() -> None:
    mirror = Mirror(committed(0, "bad", ORDERS, 4))
    mirror.start(refused=REFUSED)
    mirror.clusters.source_ids["orders"] = "other"
    mirror.wake()
    mirror.machine.take_notices()
    mirror.refused.clear()
    mirror.wake()
    assert mirror.translated("bad", ORDERS) == []
    assert NoticeKind.OLD_OFFSET in {each.kind for each in mirror.machine.take_notices()}
    assert not mirror.recorded.refused


def test_a_group_does_not_go_back_if_the_mirror_dies_while_it_reads_again() -> None:
    mirror = Mirror(*(committed(offset, "bad", ORDERS, min(offset // 2, 5)) for offset in range(10)), offsets_max=3)
    mirror.start(refused=REFUSED)
    mirror.wake()
    mirror.end()
    mirror.die_at(effects.CommitGroupOffsets, 3)
    mirror.start()
    mirror.wake()
    found = mirror.translated("bad", ORDERS)
    assert found == sorted(found)
    assert found[-1] == 104


def test_a_group_does_not_go_back_because_another_one_is_permitted() -> None:
    mirror = Mirror(committed(0, "other", LARGE, 1), offsets_max=3)
    mirror.start(aside="large")
    mirror.aside.clear()
    mirror.wake()
    mirror.refused.update(REFUSED)
    mirror.log.append(committed(1, "bad", ORDERS, 2))
    mirror.log.extend(committed(offset, "other", LARGE, value) for offset, value in enumerate((2, 3, 3, 4, 5), start=2))
    mirror.wake()
    mirror.refused.clear()
    mirror.wake()
    found = mirror.translated("other", LARGE)
    assert found == sorted(found)
    assert found[-1] == 105
    assert mirror.translated("bad", ORDERS) == [102]


@pytest.mark.parametrize("is_refused", (False, True))
def test_a_position_inside_of_a_groups_transaction_loses_none_of_its_offsets(is_refused: bool) -> None:
    mirror = Mirror(
        DataHeader(0, 0, FIRST, (GroupCommit("bad", ORDERS, 2),)),
        DataHeader(1, 1, SECOND, (GroupCommit("x", ORDERS, 1),)),
        DataHeader(2, 2, FIRST, (GroupCommit("bad", LARGE, 3),)),
        end_of(3, FIRST),
        by_partition=True,
    )
    mirror.start(refused=REFUSED if is_refused else {})
    mirror.log.append(end_of(4, SECOND))
    if is_refused:
        mirror.wake()
        mirror.refused.clear()
        mirror.wake()
    else:
        mirror.end()
        mirror.start()
    assert mirror.translated("bad", ORDERS) == [102]
    assert mirror.translated("bad", LARGE) == [103]
    assert mirror.translated("x", ORDERS) == [101]


def test_a_group_whose_partition_is_gone_is_not_waited_for() -> None:
    mirror = Mirror()
    mirror.clusters.logs[TopicPartition(OFFSETS_TOPIC, 1)] = [committed(0, "bad", ORDERS, 2)]
    mirror.start(refused=REFUSED)
    assert mirror.recorded.refused["bad"].partition == 1
    del mirror.clusters.logs[TopicPartition(OFFSETS_TOPIC, 1)]
    mirror.clusters.source_ids[OFFSETS_TOPIC] = "other"
    mirror.end()
    mirror.start()
    mirror.wake()
    assert not mirror.recorded.refused
    assert mirror.machine.has_copied({ORDERS: 5, LARGE: 5, OFFSETS: 0})


def test_groups_that_the_flow_accepts_from_now_on_need_not_commit_once_more() -> None:
    mirror = Mirror(committed(0, "late", ORDERS, 3), committed(1, "early", ORDERS, 2))
    every = mirror.flow
    mirror.flow = replace(every, groups=NameFilter(("early",)))
    mirror.start()
    mirror.end()
    mirror.flow = every
    mirror.die_at(effects.CommitGroupOffsets, 1)
    mirror.clusters.performed.clear()
    mirror.start(aside=OFFSETS_TOPIC)
    mirror.aside.clear()
    mirror.wake()
    assert mirror.translated("late", ORDERS) == [103]
    assert mirror.translated("early", ORDERS) == [], "once is enough"
    assert mirror.machine.has_copied({ORDERS: 5, LARGE: 5, OFFSETS: 2})
    mirror.end()
    mirror.clusters.performed.clear()
    mirror.start()
    assert "EndTxn" not in mirror.clusters.kinds(), "once is enough"


def test_without_a_group_that_is_new_to_the_flow_its_filter_is_recorded() -> None:
    mirror = Mirror(committed(0, "g", ORDERS, 3))
    mirror.start()
    mirror.end()
    mirror.flow = replace(mirror.flow, groups=NameFilter(("g",)))
    mirror.start()
    assert mirror.recorded.groups == mirror.flow.groups
    assert mirror.machine.has_copied({ORDERS: 5, LARGE: 5, OFFSETS: 1})


def test_what_groups_commit_while_their_topic_does_not_match_is_translated_once_it_does() -> None:
    mirror = Mirror(committed(0, "g", LARGE, 1))
    every = mirror.flow
    mirror.start()
    mirror.end()
    mirror.flow = replace(every, topics=NameFilter(("orders",)))
    mirror.log += [committed(1, "g", LARGE, 4), committed(2, "g", ORDERS, 2)]
    mirror.start()
    mirror.end()
    mirror.flow = every
    mirror.start()
    mirror.wake()
    assert mirror.translated("g", LARGE)[-1] == 104
    assert not mirror.recorded.aside
    assert not mirror.recorded.gone
