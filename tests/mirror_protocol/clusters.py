"""Two clusters in memory that answer a machine's effects, without faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from einmal.commit_protocol import effects as protocol
from einmal.commit_protocol.commit_record import CommitRecord
from einmal.mirror_protocol import effects
from einmal.mirror_protocol.effects import MirrorEffect, MirrorEvent
from einmal.mirror_protocol.flow import Flow
from einmal.mirror_protocol.machine import MirrorMachine
from einmal.mirror_protocol.offset_map import OffsetRun
from einmal.mirror_protocol.scan import DataHeader, Header
from einmal.types import NO_LEADER_EPOCH, EpochEnd, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition

ORDERS = TopicPartition("orders", 0)
OFFSETS = TopicPartition("__consumer_offsets", 0)
Answer = Callable[[MirrorEffect], MirrorEvent]


@dataclass
class Clusters:
    """``logs``: headers by partition. ``answers``: instead of the usual ones, by type of effect."""

    logs: dict[TopicPartition, list[Header]] = field(default_factory=lambda: {ORDERS: [], OFFSETS: []})
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    leader_epochs: dict[TopicPartition, int] = field(default_factory=dict)
    source_ids: dict[str, str] = field(default_factory=dict)
    target: dict[str, effects.TargetTopic] = field(default_factory=dict)
    preparing: dict[ProducerId, ProducerEpoch] | None = field(default_factory=dict)
    record: CommitRecord | None = None
    maps: dict[effects.MapKey, effects.SavedMap] = field(default_factory=dict)
    source_cluster: str = "A"
    groups: effects.TargetGroupsRead = field(default_factory=lambda: effects.TargetGroupsRead(frozenset(), {}))
    performed: list[MirrorEffect] = field(default_factory=list)
    answers: dict[type, Answer] = field(default_factory=dict)
    _epoch: int = 0
    _staged: CommitRecord | None = None

    def end(self, place: TopicPartition) -> int:
        last = self.logs[place][-1] if self.logs[place] else None
        if last is None:
            return self.starts.get(place, 0)
        return (last.last_offset if isinstance(last, DataHeader) else last.offset) + 1

    def run(self, machine: MirrorMachine) -> MirrorEffect:
        """Perform effects until the machine waits or stops; that effect."""
        effect = machine.start()
        return self.resume(machine, effect)

    def wake(self, machine: MirrorMachine) -> MirrorEffect:
        return self.resume(machine, machine.step(effects.Woken()))

    def resume(self, machine: MirrorMachine, effect: MirrorEffect) -> MirrorEffect:
        while not isinstance(effect, effects.Wait | effects.Stopped):
            self.performed.append(effect)
            effect = machine.step(self.answers.get(type(effect), self.answer)(effect))
        return effect

    def kinds(self) -> list[str]:
        return [type(each).__name__ for each in self.performed]

    def answer(self, effect: MirrorEffect) -> MirrorEvent:
        match effect:
            case protocol.ReadRecord():
                return protocol.RecordRead(self.record)
            case protocol.InitProducerId():
                return protocol.IdentityGranted(self._next_identity())
            case protocol.WriteCommitRecord(_, record):
                self._staged = record
            case protocol.EndTxn(_, committed):
                self.record = self._staged if committed else self.record
                return protocol.Ended(self._next_identity())
            case effects.CopyRecords(_, ranges):
                return effects.RecordsCopied(
                    {each: (OffsetRun(start, 100 + start, end - start),) for each, (start, end) in ranges.items()}
                )
            case _:
                return self._answer_about_clusters(effect)
        return protocol.Done()

    def _answer_about_clusters(self, effect: MirrorEffect) -> MirrorEvent:
        match effect:
            case effects.ReadTargetGroups():
                return self.groups
            case effects.ReadMaps():
                return effects.MapsRead(self.maps)
            case effects.ListTopics():
                counts: dict[str, int] = {}
                for place in self.logs:
                    counts[place.topic] = counts.get(place.topic, 0) + 1
                source = {
                    name: effects.SourceTopic(self.source_ids.get(name, f"{name}-1"), count)
                    for name, count in counts.items()
                }
                return effects.TopicsListed(self.source_cluster, "B", source, dict(self.target))
            case effects.CreateTopic(_, target, count) | effects.AddPartitions(target, count):
                self.target[target] = effects.TargetTopic(f"{target}-1", (100,) * count)
                return effects.TopicReady()
            case effects.TakeEnds(places, reached):
                return effects.EndsTaken({each: self._extent(each, reached.get(each)) for each in places})
            case effects.ReadTransactions():
                return effects.TransactionsRead(self.preparing)
            case effects.ScanHeaders(ranges):
                return effects.HeadersScanned(
                    {each: tuple(self.logs[each]) for each in ranges}, {each: end for each, (_, end) in ranges.items()}
                )
            case _:
                return protocol.Done()

    def _extent(self, place: TopicPartition, reached: effects.Reached | None) -> effects.Extent:
        asked = NO_LEADER_EPOCH if reached is None or reached.epoch is None else reached.epoch.epoch
        leader = self.leader_epochs.get(place, NO_LEADER_EPOCH)
        end = None if asked in (NO_LEADER_EPOCH, leader) else self._epoch_end(place, asked, leader)
        return effects.Extent(self.starts.get(place, 0), self.end(place), leader, end)

    def _epoch_end(self, place: TopicPartition, asked: int, leader: int) -> EpochEnd:
        """OffsetForLeaderEpoch, in a log whose leader has written since it leads, or has noted where it would."""
        firsts = {leader: self.end(place)}
        for header in reversed(self.logs[place]):
            firsts[header.leader_epoch] = header.first_offset if isinstance(header, DataHeader) else header.offset
        later = [first for epoch, first in firsts.items() if epoch > asked]
        if not later:
            return EpochEnd(NO_LEADER_EPOCH, -1)
        return EpochEnd(max((epoch for epoch in firsts if epoch <= asked), default=asked), min(later))

    def _next_identity(self) -> ProducerIdAndEpoch:
        self._epoch += 1
        return ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(self._epoch))


def machine(
    *,
    by_partition: bool = False,
    fail_on_data_loss: bool = True,
    run: str = "run-1",
    runs_max: int = 100,
    parts_max: int = 1_000,
    parts_ahead: int = 100,
) -> MirrorMachine:
    flow = Flow(
        source="A",
        target="B",
        by_partition=by_partition,
        fail_on_data_loss=fail_on_data_loss,
        runs_max=runs_max,
        parts_max=parts_max,
        parts_ahead=parts_ahead,
    )
    return MirrorMachine(flow, run)
