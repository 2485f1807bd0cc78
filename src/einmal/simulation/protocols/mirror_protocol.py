"""The mirror, simulated: the real machine between models of two clusters.

A schedule is a seed. The mirror dies before and after any effect, restarts in its process or in another one, continues
as a zombie beside its successor; answers are lost, requests are late, reads fail, the target refuses a group for a
while; the source's clients write what ``source_clients`` describes. After every commit, whatever is visible at the
target must be the source at one cut (``mirror_check``), and when the source is quiet, all of it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from einmal.commit_protocol import effects as protocol
from einmal.commit_protocol.run_state import Held
from einmal.mirror_protocol import effects
from einmal.mirror_protocol.effects import MirrorEffect, MirrorEvent
from einmal.mirror_protocol.flow import Flow, NoticeKind
from einmal.mirror_protocol.machine import MirrorMachine
from einmal.mirror_protocol.offset_map import OffsetRun
from einmal.mirror_protocol.progress import RecordedPosition
from einmal.simulation.protocols.mirror_check import Checked, check_all, check_visible
from einmal.simulation.protocols.mirror_target import GROUPS, MAPS, GroupOffset, MirrorTarget
from einmal.simulation.protocols.model_requests import RECORDS, ModelRequests, Request
from einmal.simulation.protocols.source_clients import AUDIT, INPUT, OTHER, OUTPUT, SourceClients
from einmal.simulation.protocols.source_cluster import SourceCluster, SourceRecord, SourceState
from einmal.simulation.protocols.spark_model import ModelWorld, Steps
from einmal.simulation.result import Result
from einmal.types import ErrorCode, ProducerIdAndEpoch, TopicPartition, TransactionVersion

STEPS_MAX: Final = 100_000
_FAULTS_MAX: Final = 16
_RUNS_MAX: Final = 3
"""Maximum number of runs of the machine in one process."""


class MirrorCrash(Exception):
    """The mirror's process has died, or has ended."""


@dataclass(slots=True)
class Mirror:
    """The flow under test, over all its processes."""

    world: ModelWorld
    source: SourceClients
    target: MirrorTarget
    flow: Flow
    incarnations: int = 0
    finished: bool = False
    untranslated: list[str] = field(default_factory=list)
    """Offsets of groups that could have been translated."""
    skipped: set[tuple[TopicPartition, int]] = field(default_factory=set)
    """Offsets that were reported as possibly of a topic that was created again."""
    stops: list[str] = field(default_factory=list)


class SimulatedMirror:
    """One process."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._world = mirror.world
        self._source = mirror.source.cluster
        self._target = mirror.target
        self._requests = ModelRequests(mirror.world, lambda: None)
        self._sequences: dict[str, int] = {}
        self._idle_rounds = 0
        self._refused: dict[str, str] = {}
        """Groups that the target refuses, until this process tries them again."""

    def run(self) -> Steps:
        mirror, held = self._mirror, None
        incarnation = mirror.incarnations
        for number in range(_RUNS_MAX):
            machine = MirrorMachine(mirror.flow, f"{incarnation}.{number}", held, refused=self._refused)
            yield from self._converse(machine)
            held = self._held(machine)
            yield

    def _held(self, machine: MirrorMachine) -> Held | None:
        return machine.held

    def _converse(self, machine: MirrorMachine) -> Steps:
        mirror, effect = self._mirror, machine.start()
        self._idle_rounds = 0
        while True:
            yield
            self._read_notices(machine)
            if isinstance(effect, effects.Stopped):
                mirror.stops.append(effect.reason)
                if effect.may_restart:
                    return
                raise MirrorCrash(effect.reason)
            self._die_at_times()
            event = yield from self._perform(effect)
            self._die_at_times()
            effect = machine.step(event)

    def _read_notices(self, machine: MirrorMachine) -> None:
        for notice in machine.take_notices():
            if notice.partition is None or notice.offset is None or notice.kind is NoticeKind.REFUSED:
                continue
            if notice.kind is NoticeKind.MOVED:
                if not self._target.moved:
                    self._mirror.untranslated.append(f"left alone without a reason: {notice.text}")
                continue
            if notice.kind is NoticeKind.OLD_OFFSET:
                self._mirror.skipped.add((notice.partition, notice.offset))
                continue
            topic_id = machine.progress.topics[notice.partition.topic].source_id
            log = self._source.log(notice.partition, topic_id)
            if log is not None and log.start <= notice.offset:
                self._mirror.untranslated.append(f"not translated: {notice.text}")

    def _die_at_times(self) -> None:
        if self._world.fault(0.02):
            raise MirrorCrash("killed")

    def _perform(self, effect: MirrorEffect) -> Generator[None, None, MirrorEvent]:
        if isinstance(effect, Request):
            return (yield from self._requests.perform(effect))
        match effect:
            case effects.CopyRecords():
                return (yield from self._copy(effect))
            case effects.SaveMaps(identity, changes):
                return (yield from self._append(identity, MAPS, list(changes.items())))
            case effects.CommitGroupOffsets(identity, offsets):
                return (yield from self._commit_offsets(identity, offsets))
            case effects.Wait():
                return (yield from self._wait())
            case _:
                return (yield from self._read(effect))

    # --- the target -------------------------------------------------------------------------------------------------

    def _copy(self, effect: effects.CopyRecords) -> Generator[None, None, MirrorEvent]:
        self._sequences = {}
        copied: dict[TopicPartition, tuple[OffsetRun, ...]] = {}
        for partition, (start, end) in effect.ranges.items():
            yield
            committed = self._source.committed(partition, start, effect.topic_ids[partition.topic])
            if committed is None:
                return protocol.Failed(f"{partition} has no offset {start} any more")
            records = [record for record in committed if record.offset < end]
            log = str(effect.targets[partition])
            targets: list[int] = []
            while len(targets) < len(records):
                chunk = records[len(targets) : len(targets) + self._world.rng.randint(1, 4)]
                answer = yield from self._produce(effect.identity, log, [record.value for record in chunk])
                if isinstance(answer, ErrorCode):
                    return protocol.Failed(answer.name)
                targets += range(answer[0], answer[1] + 1)
            copied[partition] = _runs(records, targets)
        return effects.RecordsCopied(copied)

    def _read_groups(self, groups: effects.GroupPartitions) -> MirrorEvent:
        """A group that has moved has no members any more: only its offset shows it."""
        committed = self._target.group_offsets()
        offsets: dict[str, dict[TopicPartition, int]] = {}
        for (group, partition), offset in committed.items():
            if partition in groups.get(group, ()):
                offsets.setdefault(group, {})[partition] = offset
        return effects.TargetGroupsRead(frozenset(), offsets)

    def _commit_offsets(
        self, identity: ProducerIdAndEpoch, offsets: effects.TargetOffsets
    ) -> Generator[None, None, MirrorEvent]:
        if self._world.fault(0.05):
            return effects.GroupsRefused({self._world.rng.choice(sorted(offsets)): "GROUP_AUTHORIZATION_FAILED"})
        values = [
            GroupOffset(group, partition, offset)
            for group, partitions in offsets.items()
            for partition, offset in partitions.items()
        ]
        return (yield from self._append(identity, GROUPS, values))

    def _append(
        self, identity: ProducerIdAndEpoch, log: str, values: Sequence[object]
    ) -> Generator[None, None, MirrorEvent]:
        answer = yield from self._produce(identity, log, values)
        return protocol.Failed(answer.name) if isinstance(answer, ErrorCode) else protocol.Done()

    def _produce(
        self, identity: ProducerIdAndEpoch, log: str, values: Sequence[object]
    ) -> Generator[None, None, tuple[int, int] | ErrorCode]:
        sequence = self._sequences.get(log, 0)
        self._sequences[log] = sequence + len(values)
        return (yield from self._requests.produce(identity, log, sequence, tuple(values)))

    # --- the source -------------------------------------------------------------------------------------------------

    def _read(self, effect: MirrorEffect) -> Generator[None, None, MirrorEvent]:
        yield
        if self._world.fault(0.01):
            return effects.EffectFailed("no answer")
        match effect:
            case effects.ListTopics():
                return (yield from self._list_topics())
            case effects.CreateTopic(_, target, partitions) | effects.AddPartitions(target, partitions):
                self._target.create(target, partitions)
                return effects.TopicReady()
            case effects.ReadMaps():
                return effects.MapsRead(self._target.saved_maps())
            case effects.TakeEnds(partitions):
                return (yield from self._take_ends(partitions))
            case effects.ReadTransactions():
                return (yield from self._read_transactions())
            case effects.ScanHeaders():
                return (yield from self._scan(effect))
            case effects.ReadTargetGroups(groups):
                return self._read_groups(groups)
            case _:
                raise AssertionError(effect)

    def _list_topics(self) -> Generator[None, None, MirrorEvent]:
        source = {
            name: effects.SourceTopic(topic.topic_id, len(topic.logs)) for name, topic in self._source.topics.items()
        }
        yield from self._delay()
        target = {
            name: effects.TargetTopic(
                self._target.topic_id(name), tuple(self._target.high_watermark(log) for log in logs)
            )
            for name, logs in self._target.topics.items()
        }
        return effects.TopicsListed("A", "B", source, target)

    def _take_ends(self, partitions: Iterable[TopicPartition]) -> Generator[None, None, MirrorEvent]:
        extents = {}
        for partition in partitions:
            yield
            log = self._source.log(partition)
            if log is None:
                return effects.EffectFailed(f"{partition} is unknown")
            extents[partition] = effects.Extent(log.start, log.end)
        yield from self._delay()
        return effects.EndsTaken(extents)

    def _read_transactions(self) -> Generator[None, None, MirrorEvent]:
        preparing = {}
        for producer in list(self._source.producers):
            yield
            if producer.state is SourceState.PREPARE_COMMIT:
                preparing[producer.producer_id] = producer.identity.producer_epoch
        return effects.TransactionsRead(preparing)

    def _scan(self, effect: effects.ScanHeaders) -> Generator[None, None, MirrorEvent]:
        headers, reached = {}, {}
        for partition, (start, end) in effect.ranges.items():
            yield
            log = self._source.log(partition, effect.topic_ids[partition.topic])
            if log is None:
                return effects.EffectFailed(f"{partition} is not the same any more")
            batches = [batch for batch in log.batches if start <= batch.last and batch.first < end]
            reached[partition] = end
            if len(batches) > 1 and self._world.rng.random() < 0.2:
                batches = batches[: len(batches) // 2]
                reached[partition] = batches[-1].last + 1
            headers[partition] = tuple(batch.header() for batch in batches)
        return effects.HeadersScanned(headers, reached)

    def _delay(self) -> Steps:
        """The answer is under way."""
        for _ in range(self._world.rng.choice((1, 1, 1, 5, 30))):
            yield

    def _wait(self) -> Generator[None, None, MirrorEvent]:
        """The flow is finished when a whole round found nothing to copy from a quiet source."""
        self._idle_rounds = self._idle_rounds + 1 if self._mirror.source.is_quiet and not self._refused else 0
        if self._idle_rounds > 2:
            self._mirror.finished = True
        for _ in range(self._world.rng.choice((1, 10, 50))):
            yield
        if self._refused and (self._mirror.source.is_quiet or self._world.rng.random() < 0.2):
            self._refused.clear()
        return effects.Woken()


def _runs(records: list[SourceRecord], targets: list[int]) -> tuple[OffsetRun, ...]:
    runs: list[OffsetRun] = []
    for record, target in zip(records, targets, strict=True):
        last = runs[-1] if runs else None
        if last is not None and (last.source_end, last.target_end) == (record.offset, target):
            runs[-1] = last._replace(records=last.records + 1)
        else:
            runs.append(OffsetRun(record.offset, target, 1))
    return tuple(runs)


def run_seed(seed: int) -> Result:
    """One schedule, decided by ``seed`` alone."""
    rng = random.Random(seed)
    target = MirrorTarget(rng.choice((TransactionVersion.TV_1, TransactionVersion.TV_2)))
    world = ModelWorld(rng, target)
    world.faults_left = rng.randrange(_FAULTS_MAX)
    source = SourceClients(world, SourceCluster({INPUT: 2, OUTPUT: 2, OTHER: 2}))
    flow = Flow(
        source="A",
        target="B",
        by_partition=seed % 5 == 4,
        fail_on_data_loss=False,
        offsets_max=rng.choice((2, 10, 1_000)),
        parts_ahead=(1, 3, 1_000)[seed % 3],
    )
    mirror = Mirror(world, source, target, flow)
    source.is_recorded = lambda topic_id: any(
        topic_id in RecordedPosition.of(record).source_ids.values() for record in target.committed(RECORDS)[-1:]
    )
    source.start()
    checked = Checked()
    trace = hashlib.sha256()
    processes: list[Steps] = []
    anomalies: list[str] = []
    steps = decided = 0
    while not mirror.finished and not anomalies and steps < STEPS_MAX:
        steps += 1
        if not processes or (len(processes) == 1 and world.fault(0.0005)):
            mirror.incarnations += 1
            processes.append(SimulatedMirror(mirror).run())
        choice = rng.randrange(len(processes) + len(world.running) + 1)
        if choice < len(processes):
            _advance(processes, choice)
        elif choice < len(processes) + len(world.running):
            _advance(world.running, choice - len(processes))
        else:
            target.write_one_marker(rng.randrange(8))
            _disturb(world)
            if not target.moved and world.fault(0.0005):
                target.move_group(AUDIT, rng.randrange(8))
        if len(target.decided) != decided:
            decided = len(target.decided)
            anomalies += check_visible(source, target, flow, checked)
        trace.update(f"{choice},{decided};".encode())
    if not anomalies and not mirror.finished:
        anomalies.append(f"liveness: not finished after {steps} steps; last stops {mirror.stops[-2:]}")
    elif not anomalies:
        anomalies += check_all(source, target, flow, mirror.skipped)
        anomalies += mirror.untranslated
    return Result(seed, tuple(anomalies), steps / 1000, trace.hexdigest())


def _disturb(world: ModelWorld) -> None:
    """Events at the target: a transaction times out, a leader is replaced, the transactional id expires."""
    if world.fault(0.002):
        world.kafka.time_out()
    if world.fault(0.001):
        world.kafka.depose(RECORDS)
    if world.fault(0.001):
        world.kafka.expire()


def _advance(processes: list[Steps], index: int) -> None:
    """One step of one process, which is removed when it has ended."""
    try:
        next(processes[index])
    except (StopIteration, MirrorCrash):
        del processes[index]
