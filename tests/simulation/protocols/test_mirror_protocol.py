"""Claims about the mirror under simulated faults, and proof that each defence is needed.

A defence is disabled from outside, by patching; then a bounded number of schedules must show an anomaly.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from dataclasses import replace

import pytest

from einmal.commit_protocol import effects as protocol
from einmal.mirror_protocol import cut, effects, machine
from einmal.mirror_protocol.effects import MirrorEffect, MirrorEvent
from einmal.mirror_protocol.machine import MirrorMachine
from einmal.mirror_protocol.progress import MirrorProgress
from einmal.mirror_protocol.scan import MarkerHeader, PartitionScan, TransactionPart
from einmal.simulation.protocols import mirror_protocol
from einmal.simulation.protocols.kafka_model import OURS, KafkaModel, ModelRecord
from einmal.simulation.protocols.mirror_protocol import SimulatedMirror, run_seed
from einmal.simulation.protocols.mirror_target import GROUPS, MAPS, GroupOffset
from einmal.simulation.protocols.model_requests import RECORDS
from einmal.simulation.protocols.source_cluster import NO_TRANSACTION, SourceCluster, SourceRecord
from einmal.types import TopicPartition

SCHEDULES = 15
SCHEDULES_WITH_A_DEFECT_MAX = 300
Steps = Generator[None, None, MirrorEvent]


@pytest.mark.parametrize("seeds", [range(SCHEDULES), pytest.param(range(SCHEDULES, 200), marks=pytest.mark.long)])
def test_no_schedule_loses_repeats_or_tears_a_transaction(seeds: range) -> None:
    found = [result for result in map(run_seed, seeds) if result.anomalies]
    assert found == []


def test_the_same_seed_gives_the_same_trace_in_another_process() -> None:
    program = "from einmal.simulation.protocols.mirror_protocol import run_seed; print(run_seed(7).trace_digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert digests == {run_seed(7).trace_digest}


def append_outside(kafka: KafkaModel, log: str, value: object) -> None:
    """A committed record in no transaction of the mirror's."""
    kafka.decided[NO_TRANSACTION] = kafka.visible[log, NO_TRANSACTION] = True
    kafka.log(log).entries.append(ModelRecord(OURS, NO_TRANSACTION, value))


def save_maps_after_the_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    perform = SimulatedMirror._perform
    late: dict[int, effects.SaveMaps] = {}

    def save_late(self: SimulatedMirror, effect: MirrorEffect) -> Steps:
        if isinstance(effect, effects.SaveMaps):
            late[id(self)] = effect
            return protocol.Done()
        event = yield from perform(self, effect)
        if isinstance(effect, protocol.EndTxn) and id(self) in late:
            changes = late.pop(id(self)).changes
            if isinstance(event, protocol.Ended) and effect.committed:
                self._die_at_times()
                for change in changes.items():
                    append_outside(self._target, MAPS, change)
        return event

    monkeypatch.setattr(SimulatedMirror, "_perform", save_late)


def commit_group_offsets_after_the_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    perform = SimulatedMirror._perform
    late: dict[int, effects.CommitGroupOffsets] = {}

    def commit_late(self: SimulatedMirror, effect: MirrorEffect) -> Steps:
        if isinstance(effect, effects.CommitGroupOffsets):
            late[id(self)] = effect
            return protocol.Done()
        event = yield from perform(self, effect)
        if isinstance(effect, protocol.EndTxn) and id(self) in late:
            offsets = late.pop(id(self)).offsets
            if isinstance(event, protocol.Ended) and effect.committed:
                yield
                for group, partitions in offsets.items():
                    for partition, offset in partitions.items():
                        append_outside(self._target, GROUPS, GroupOffset(group, partition, offset))
        return event

    monkeypatch.setattr(SimulatedMirror, "_perform", commit_late)


def write_the_position_outside_of_the_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    perform = SimulatedMirror._perform

    def write_outside(self: SimulatedMirror, effect: MirrorEffect) -> Steps:
        if isinstance(effect, protocol.WriteCommitRecord):
            append_outside(self._target, RECORDS, effect.record)
            return protocol.Done()
        return (yield from perform(self, effect))

    monkeypatch.setattr(SimulatedMirror, "_perform", write_outside)


def copy_half_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = cut._connect

    def connect_nothing(groups: Iterable[list[TransactionPart]]) -> None:
        connect([part] for parts in groups for part in parts)

    monkeypatch.setattr(cut, "_connect", connect_nothing)


def copy_aborted_records(monkeypatch: pytest.MonkeyPatch) -> None:
    committed = SourceCluster.committed

    def everything(
        self: SourceCluster, partition: TopicPartition, start: int, topic_id: str | None = None
    ) -> list[SourceRecord] | None:
        found = committed(self, partition, start, topic_id)
        if found is None or topic_id is None:
            return found
        return [record for record, _ in self.known_log(partition).records() if record.offset >= start]

    monkeypatch.setattr(SourceCluster, "committed", everything)


def trust_ends_from_before_the_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = MirrorMachine._ends
    before: dict[int, Mapping[TopicPartition, effects.Extent]] = {}

    def same_ends(
        self: MirrorMachine, partitions: tuple[TopicPartition, ...]
    ) -> Generator[MirrorEffect, MirrorEvent, Mapping[TopicPartition, effects.Extent]]:
        if set(partitions) == set(self.progress.scans):
            before[id(self)] = yield from ends(self, partitions)
        return {each: before[id(self)][each] for each in partitions}

    monkeypatch.setattr(MirrorMachine, "_ends", same_ends)


def ignore_prepared_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_nothing(self: SimulatedMirror) -> Steps:
        yield
        return effects.TransactionsRead({})

    monkeypatch.setattr(SimulatedMirror, "_read_transactions", read_nothing)


def take_one_epoch_for_one_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    take = PartitionScan._take_marker

    def take_as_unique(self: PartitionScan, marker: MarkerHeader) -> None:
        take(self, marker)
        for part in self.decided:
            part.is_unique = True

    monkeypatch.setattr(PartitionScan, "_take_marker", take_as_unique)


def commit_group_offsets_before_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut, "_needs", lambda scans: {})


def commit_group_offsets_before_records_that_are_not_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = cut._needs

    def needs_of_what_is_scanned(scans: cut.Scans) -> dict[TopicPartition, list[tuple[int, TransactionPart]]]:
        return needs({each: replace(scan, end=scan.scanned) for each, scan in scans.items()})

    monkeypatch.setattr(cut, "_needs", needs_of_what_is_scanned)


def read_some_of_the_group_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    def has_enough(self: MirrorMachine, scan: PartitionScan) -> bool:
        return self._by_partition and scan.has_decided(self._flow.parts_ahead)

    monkeypatch.setattr(MirrorMachine, "_has_enough", has_enough)


def read_some_of_the_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    def has_enough(self: MirrorMachine, scan: PartitionScan) -> bool:
        return scan.is_copied and scan.has_decided(self._flow.parts_ahead)

    monkeypatch.setattr(MirrorMachine, "_has_enough", has_enough)


def take_the_ends_of_group_offsets_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "OFFSETS_TOPIC", "input")


def translate_offsets_of_the_topic_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MirrorProgress, "see", lambda self, ends: None)


def list_topics_before_the_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    survey, probe = MirrorMachine._survey, MirrorMachine._probe
    early: set[int] = set()

    def survey_early(self: MirrorMachine) -> Generator[MirrorEffect, MirrorEvent, bool]:
        return False if id(self) in early else (yield from survey(self))

    def probe_after_survey(self: MirrorMachine) -> Generator[MirrorEffect, MirrorEvent, bool]:
        yield from survey(self)
        early.add(id(self))
        try:
            return (yield from probe(self))
        finally:
            early.discard(id(self))

    monkeypatch.setattr(MirrorMachine, "_survey", survey_early)
    monkeypatch.setattr(MirrorMachine, "_probe", probe_after_survey)


def overwrite_the_offsets_of_groups_that_have_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "moved_groups", lambda progress, cut, found, refused: {})


def forget_what_refused_groups_have_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_again(self: MirrorProgress, groups: Collection[str]) -> None:
        self.returned_groups.update(dict.fromkeys(groups, 0))

    monkeypatch.setattr(MirrorProgress, "read_again", read_again)


def let_nobody_know_of_refused_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "refusals", lambda *_: {})


SHOWN_BY: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    save_maps_after_the_transaction: 70,
    commit_group_offsets_after_the_transaction: 0,
    write_the_position_outside_of_the_transaction: 14,
    copy_half_a_transaction: 0,
    copy_aborted_records: 0,
    trust_ends_from_before_the_transactions: 0,
    ignore_prepared_transactions: 0,
    take_one_epoch_for_one_transaction: 0,
    commit_group_offsets_before_the_records: 0,
    commit_group_offsets_before_records_that_are_not_scanned: 99,
    read_some_of_the_group_offsets: 54,
    read_some_of_the_transactions: 0,
    take_the_ends_of_group_offsets_last: 36,
    translate_offsets_of_the_topic_before: 21,
    list_topics_before_the_ends: 136,
    overwrite_the_offsets_of_groups_that_have_moved: 33,
    forget_what_refused_groups_have_committed: 28,
    let_nobody_know_of_refused_groups: 28,
}
"""Each defect with the first schedule that shows it: it is tried first, and others when the product's steps change."""


@pytest.mark.parametrize("defect", SHOWN_BY)
def test_without_a_defence_an_anomaly_is_found(
    defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_protocol, "STEPS_MAX", 40_000)
    defect(monkeypatch)
    for seed in (SHOWN_BY[defect], *range(SCHEDULES_WITH_A_DEFECT_MAX)):
        try:
            anomalies = run_seed(seed).anomalies
        except AssertionError:
            continue  # The machine's own invariants stopped this schedule before it could cause an anomaly.
        if any(not text.startswith("liveness") for text in anomalies):
            return
    pytest.fail(f"{SCHEDULES_WITH_A_DEFECT_MAX} schedules did not show what {defect.__name__} breaks")
