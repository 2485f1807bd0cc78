"""One flow in this process: performs the machine's effects until it is stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final
from uuid import uuid4

from einmal.client.errors import FatalError, KafkaError, LocalError, RetriableError
from einmal.commit_protocol import effects as protocol
from einmal.commit_protocol.commit_record import CommitRecord, UnreadableCommitRecord
from einmal.commit_protocol.run_state import Held
from einmal.event_log import EventLog
from einmal.mirror_protocol import effects
from einmal.mirror_protocol.effects import MirrorEffect, MirrorEvent
from einmal.mirror_protocol.flow import Flow, MirrorNotice, NoticeKind
from einmal.mirror_protocol.machine import MirrorMachine
from einmal.mirror_protocol.progress import OFFSETS_TOPIC, UNKNOWN, MirrorProgress
from einmal.mirroring.copier import Copier, LocalCopier
from einmal.mirroring.faults import FaultyLeaders, Leaderless, RefusedGroups, SetAside, behind, blamed, faulty
from einmal.mirroring.first_copies import FirstCopies
from einmal.mirroring.map_log import UnreadableMap
from einmal.mirroring.reading import SourceUnreadable
from einmal.mirroring.source import SourceReader
from einmal.mirroring.target import TargetWriter
from einmal.mirroring.topic_settings import TopicSettings
from einmal.pauses import DoublingPauses
from einmal.pipeline.errors import PipelineRefused
from einmal.sinks.commit_point import SinkFailed
from einmal.sinks.perform import VERBS, answered, perform
from einmal.types import TopicPartition
from einmal.wire.errors import WireError

_TRANSACTION: Final = (*VERBS, effects.CopyRecords, effects.SaveMaps, effects.CommitGroupOffsets)
_IN_TRANSACTION: Final = (
    effects.CopyRecords,
    effects.SaveMaps,
    effects.CommitGroupOffsets,
    protocol.WriteCommitRecord,
)
_POLL_S: Final = 0.2
"""Between two looks at a source that has nothing new."""
_RESTARTS_MAX: Final = 5
"""Runs without a commit, one after the other, until the mirror gives up."""
_REPORTED_MAX: Final = 1_000
_PAUSES_S: Final = DoublingPauses(_POLL_S, 10.0)
STALLED_S: Final = 45.0
"""Until a process that is to end when everything is copied gives up where nothing is."""
_SHARE: Final = 4
"""By how much the next transaction is smaller where one took longer than it may."""
_NAMED_MAX: Final = 8
_HINT_ASIDE: Final = "correct the cause, or exclude the topic: topics.exclude"
_HINT_GROUPS: Final = "permit READ of these groups at the target, or exclude them: groups.exclude"
_HINT_STALLED: Final = (
    "run it again when both clusters answer and the source's open transactions have ended: einmal txn find-hanging"
)
_HINT_FATAL: Final = "correct the cluster's client settings in the declaration"
_HINT_FENCED: Final = "another mirror has started under this name: let only one of them run"
_HINT_UNREADABLE: Final = "run the einmal that wrote the record, or a newer one; delete a record that is no mirror's"
_logger = EventLog(__name__)


def _log_notice(notice: MirrorNotice) -> None:
    _logger.warning("mirror_notice", "%(text)s", text=notice.text, kind=notice.kind.value, subject=notice.subject)


class MirrorStopped(Exception):
    """The mirror cannot continue as it is."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(f"{reason}\nhint: {hint}" if hint else reason)
        self.reason = reason


class MirrorIncomplete(MirrorStopped):
    """It was to end when everything is copied, and something cannot be."""


class MirrorProcess:
    """Runs one after the other, until ``stop`` is set."""

    def __init__(
        self,
        flow: Flow,
        source: Mapping[str, str],
        target: Mapping[str, str],
        *,
        notify: Callable[[MirrorNotice], None] | None = None,
        committed: Callable[[CommitRecord], None] = lambda record: None,
        ends_when_idle: bool = False,
        copier: Copier | None = None,
    ) -> None:
        """``source`` and ``target``: client settings under Kafka's names. ``committed``: called after each transaction.
        ``ends_when_idle``: stop when everything is copied that was committed at the start. ``copier``: by default
        this process reads and writes the records."""
        self._flow = flow
        self._source = SourceReader(source)
        self._copier = copier or LocalCopier(self._source.reader)
        self._target = TargetWriter(target, flow.name, flow.transactional_id)
        self._notify = notify or _log_notice
        self._committed = committed
        self._ends_when_idle = ends_when_idle
        self._record: CommitRecord | None = None
        self._restarts = 0
        """Since the last commit."""
        self._has_left_out = False
        """Whether this run has begun to leave something out."""
        self._overdue = ""
        """Why this run's transaction has timed out, where a smaller one may not."""
        self._failure = ""
        self._failing: tuple[type, ...] = ()
        self._failures = 0
        """Why the last step has failed, its kind, and how often since one of its kind has succeeded."""
        self._behind: dict[str, str] = {}
        """Topics of the source that end before what was copied of them now, with the reasons."""
        self._has_run = False
        """Both clusters have answered once."""
        self._aside = SetAside()
        self._seen: tuple[object, ...] = ()
        self._seen_s = 0.0
        """Part of the goal that is not copied, and since when it has not changed."""
        self._reported: dict[str, str] = {}
        """Notices that need not be repeated, with their subjects."""
        self._copied: dict[str, tuple[str, ...]] = {}
        """Names of the settings that were copied, by the target's topic."""
        self._settings = TopicSettings(self._source.cluster.admin, self._target.cluster.admin, self._tell, self._copied)
        self._first_copies = FirstCopies(flow, self._target.cluster, self._tell)
        self._progress = MirrorProgress()
        """Progress of this run."""
        self._goal: dict[TopicPartition, int] = {}
        """The ends of the source when the process has begun."""
        self.reached: dict[TopicPartition, int] = {}
        """Up to where a process that ends when everything is copied has copied."""
        self.stop = threading.Event()

    @property
    def goal(self) -> Mapping[TopicPartition, int]:
        """The ends of the source when the process has begun, of the topics that it copies."""
        return self._goal

    def run(self) -> None:
        """Raises MirrorStopped, MirrorIncomplete if it was to end when everything is copied, and KafkaError where a
        cluster cannot be reached at the start, or for long."""
        held: Held | None = None
        target = self._target
        while not self.stop.is_set():
            machine = MirrorMachine(
                self._flow, uuid4().hex, held, self._aside.reasons, self._aside.groups, self._copied
            )
            self._progress, self._has_left_out, self._overdue = machine.progress, False, ""
            try:
                target.prepare()
                if not self._has_run:
                    # A cluster that cannot be reached at the start is an error, not an outage.
                    self._source.cluster.cluster_id()
                    self._has_run = True
                self._converse(machine, target)
            except KafkaError as error:
                may_pass = self._has_run and isinstance(error, RetriableError)
                if not may_pass or (self._ends_when_idle and self._restarts >= _RESTARTS_MAX):
                    raise
                self._stuck(f"the target cannot be reached: {error}")
            except PipelineRefused as error:
                raise MirrorStopped(error.reason, error.hint) from error
            except (UnreadableCommitRecord, UnreadableMap) as error:
                raise MirrorStopped(str(error), _HINT_UNREADABLE) from error
            finally:
                target.end_run()
            held = machine.held
            if not self._has_left_out and not self._overdue:
                self._restarts += 1
            self.stop.wait(_PAUSES_S.after(self._restarts))

    def close(self) -> None:
        self._copier.close()
        self._source.close()
        self._target.close()

    def _converse(self, machine: MirrorMachine, target: TargetWriter) -> None:
        effect = machine.start()
        while not self.stop.is_set():
            for notice in machine.take_notices():
                self._tell(notice)
            if self._ends_when_idle and machine.has_copied(self._goal):
                return self._end(machine)
            if isinstance(effect, effects.Stopped):
                if self._has_left_out and effect.may_restart:
                    # The next run leaves it out from the start.
                    return
                if self._overdue and effect.may_restart:
                    return self._shrink()
                if not effect.may_restart or self._restarts >= _RESTARTS_MAX:
                    raise MirrorStopped(effect.reason, effect.hint)
                self._stuck(f"{effect.reason}; {effect.hint}")
                return
            if self._ends_when_idle and isinstance(effect, effects.Wait | effects.TakeEnds):
                self._check_that_it_proceeds(machine)
            if isinstance(effect, effects.Wait):
                self._aside.release(time.monotonic())
            if isinstance(effect, effects.TakeEnds):
                # No transaction is open now.
                topics = machine.progress.topics.values()
                self._settings.synchronize({topic.name: topic.target for topic in topics if topic.target})
            event = self.perform(effect, target)
            left_out = self._aside.count
            effect = machine.step(event)
            self._has_left_out |= self._aside.count > left_out
            if isinstance(effect, effects.Wait | effects.TakeEnds):
                self._note_healed(machine)

    def _stuck(self, text: str) -> None:
        self._failures += 1
        name = self._flow.name
        self._tell(MirrorNotice(NoticeKind.STUCK, name, f"{name}: {text.rstrip('.')}; trying again"))

    def _shrink(self) -> None:
        """Copy less in a transaction: of a slow target, or under a quota, the same one would time out again."""
        self._flow = replace(self._flow, offsets_max=self._flow.offsets_max // _SHARE)
        # The time that it took was no standstill.
        self._seen_s = 0.0
        self._stuck(f"{self._overdue}: it has up to {self._flow.offsets_max} offsets of each partition from now on")

    def _note_healed(self, machine: MirrorMachine) -> None:
        scans = machine.progress.scans
        copied = {
            partition.topic
            for partition, scan in scans.items()
            if scan.position != UNKNOWN and scan.scanned >= scan.end
        }
        for topic in self._aside.healed(copied):
            self._forget(topic)
            self._tell(MirrorNotice(NoticeKind.BACK, topic, f"topic {topic!r} is copied again"))

    def _forget(self, subject: str) -> None:
        """Forget what was reported of a subject: it is reported anew, if it comes again."""
        self._reported = {text: about for text, about in self._reported.items() if about != subject}

    def _tell(self, notice: MirrorNotice) -> None:
        if notice.text not in self._reported:
            self._reported[notice.text] = notice.subject
            self._notify(notice)
        if len(self._reported) > _REPORTED_MAX:
            self._reported.clear()

    def _end(self, machine: MirrorMachine) -> None:
        """Raises MirrorIncomplete if not everything could be copied."""
        self.stop.set()
        self._note_reached(machine)
        if self._aside.reasons:
            left_out = "; ".join(f"topic {topic!r}: {why}" for topic, why in sorted(self._aside.reasons.items()))
            raise MirrorIncomplete(f"not everything is copied: {left_out}", _HINT_ASIDE)
        if self._aside.groups:
            refused = "; ".join(f"group {group!r}: {why}" for group, why in sorted(self._aside.groups.items()))
            raise MirrorIncomplete(f"all records are copied, but not all offsets of groups: {refused}", _HINT_GROUPS)
        if not any(topic.target for topic in machine.progress.topics.values()):
            raise MirrorIncomplete(
                "nothing is copied: no topic that the mirror can see at the source matches the flow's topics",
                "correct topics in the declaration, or permit DESCRIBE",
            )

    def _note_reached(self, machine: MirrorMachine) -> None:
        scans = machine.progress.scans
        self.reached = {
            partition: end
            for partition, end in self._goal.items()
            if partition in scans and scans[partition].has_copied(end)
        }

    def _check_that_it_proceeds(self, machine: MirrorMachine) -> None:
        """Raises MirrorIncomplete where nothing of the goal has been copied or read for long."""
        scans, now_s = machine.progress.scans, time.monotonic()
        missing = {
            partition: end
            for partition, end in self._goal.items()
            if partition not in scans or not scans[partition].has_copied(end)
        }
        seen = tuple(
            (partition, scans[partition].position, min(end, scans[partition].scanned))
            if partition in scans
            else partition
            for partition, end in missing.items()
        )
        if seen != self._seen or not self._seen_s:
            self._seen, self._seen_s = seen, now_s
        elif now_s - self._seen_s > STALLED_S:
            self._note_reached(machine)
            text = ", ".join(map(str, list(missing)[:_NAMED_MAX])) or "the source"
            why = f"the last failure: {self._failure}" if self._failures else "open transactions overlap the rest"
            raise MirrorIncomplete(
                f"not everything is copied: nothing of {text} could be copied for {STALLED_S:.0f} s; {why}",
                _HINT_STALLED,
            )

    def perform(self, effect: MirrorEffect, target: TargetWriter) -> MirrorEvent:
        """One effect, and its answer."""
        if isinstance(effect, effects.Wait):
            return self._wait()
        try:
            if isinstance(effect, _TRANSACTION):
                return self._transact(effect, target)
            event = self._read(effect, target)
            self._note_answered(effect)
            if isinstance(effect, self._failing):
                self._failing, self._failures = (), 0
                self._forget(self._flow.name)
            return event
        except RefusedGroups as error:
            return effects.GroupsRefused(error.reasons)
        except Leaderless as error:
            topic = self._aside.lasting(error.reasons, time.monotonic())
            if topic is not None:
                return effects.EffectFailed(error.reasons[topic], topic)
            self._failed(effect, str(error))
            return effects.EffectFailed(str(error))
        except FaultyLeaders as error:
            late = self._aside.unanswered(type(effect), error.reasons, time.monotonic())
            if not late:
                self._failed(effect, str(error))
            return effects.EffectFailed(str(error), others={topic: error.reasons[topic] for topic in late})
        except (FatalError, LocalError) as error:
            raise MirrorStopped(str(error), _HINT_FATAL) from error
        except (SourceUnreadable, KafkaError, WireError) as error:
            topic = blamed(effect, error) or self._late(effect, error)
            if not topic:
                self._failed(effect, f"{type(effect).__name__}: {error}")
            return effects.EffectFailed(str(error), topic)

    def _late(self, effect: MirrorEffect, error: Exception) -> str:
        """The topic whose leader has answered with errors for long."""
        topic = faulty(effect, error)
        if not topic:
            # Nothing is known of single topics while a cluster is away.
            self._aside.answered(type(effect))
            return ""
        return topic if self._aside.unanswered(type(effect), [topic], time.monotonic()) else ""

    def _note_answered(self, effect: MirrorEffect) -> None:
        match effect:
            case effects.TakeEnds(partitions):
                topics = {partition.topic for partition in partitions}
                self._aside.answered(effects.TakeEnds, topics, without=self._behind.keys())
            case effects.ScanHeaders(ranges) | effects.CopyRecords(_, ranges):
                self._aside.answered(type(effect), {partition.topic for partition in ranges})
            case effects.ListTopics():
                # The copies of those that are left out were not asked for.
                self._aside.answered(effects.ListTopics, without=self._aside.reasons)
            case _:
                pass

    def _failed(self, effect: MirrorEffect, reason: str) -> None:
        self._failing, self._failure = (type(effect),), reason
        self._stuck(reason)

    def _wait(self) -> effects.Woken:
        self.stop.wait(_PAUSES_S.after(self._failures))
        return effects.Woken()

    def _transact(self, effect: MirrorEffect, target: TargetWriter) -> MirrorEvent:
        try:
            event = answered(effect, lambda: self._act(effect, target), _HINT_FENCED)
        except SourceUnreadable as error:
            return protocol.Failed(str(error), will_again=True)
        if isinstance(event, effects.RecordsCopied):
            self._note_answered(effect)
        elif isinstance(event, protocol.Failed) and isinstance(effect, _IN_TRANSACTION):
            self._overdue = target.target.overdue() if self._flow.offsets_max >= _SHARE else ""
            event = replace(event, will_again=event.will_again or bool(self._overdue))
        match effect:
            case protocol.WriteCommitRecord(_, record):
                self._record = record
            case protocol.EndTxn(_, committed=True) if isinstance(event, protocol.Ended):
                self._restarts = 0
                assert self._record is not None
                self._committed(self._record)
        return event

    def _act(self, effect: MirrorEffect, target: TargetWriter) -> MirrorEvent:
        try:
            return self._event(effect, target)
        except RefusedGroups as error:
            return effects.GroupsRefused(error.reasons)
        except (SinkFailed, SourceUnreadable) as error:
            if topic := blamed(effect, error) or self._late(effect, error):
                return effects.CopyRefused(topic, str(error))
            raise

    def _event(self, effect: MirrorEffect, target: TargetWriter) -> MirrorEvent:
        match effect:
            case effects.CopyRecords():
                return self._copier.copy(effect, target.target)
            case effects.SaveMaps(identity, changes):
                target.save_maps(identity, changes)
            case effects.CommitGroupOffsets(identity, offsets, metadata):
                target.commit_offsets(identity, offsets, metadata)
            case _:
                return perform(effect, target.target)
        return protocol.Done()

    def _list_topics(self, target: TargetWriter) -> effects.TopicsListed:
        """Raises Leaderless, FaultyLeaders."""
        flow, cluster = self._flow, self._source.cluster
        source_id, target_id = cluster.cluster_id(), target.cluster.cluster_id()
        source = self._source.topics()
        copies = {name: flow.remote_topic(name) for name in source if flow.accepts_topic(name)}
        existing = target.look(set(copies.values()))
        lacking = {
            name: f"the copy {copy!r} has a partition without a leader."
            for name, copy in copies.items()
            if copy in existing and existing[copy].leaderless
        }
        unread = {
            name: f"partition {name}-{topic.leaderless[0]} has no leader at the source."
            for name, topic in source.items()
            if topic.leaderless and (name in copies or name == OFFSETS_TOPIC)
        }
        self._aside.only({**unread, **lacking})
        late = self._aside.lasting({**unread, **lacking}, time.monotonic())
        if late is not None or lacking.keys() - self._aside.reasons.keys():
            raise Leaderless(
                {name: why for name, why in {**unread, **lacking}.items() if name not in self._aside.reasons}
            )
        unasked = {copies[name] for name in self._aside.reasons if name in copies}
        try:
            listed = target.topics(existing, unasked)
        except FaultyLeaders as error:
            sources = {copy: name for name, copy in copies.items()}
            raise FaultyLeaders({sources[copy]: why for copy, why in error.reasons.items()}) from error
        return effects.TopicsListed(source_id or "", target_id or "", source, listed)

    def _take_ends(self, effect: effects.TakeEnds) -> MirrorEvent:
        if owned := self._first_copies.owned_by_others(self._progress):
            return effects.EffectFailed("copies are another mirror's", others=owned)
        extents = self._source.extents(effect.partitions, effect.reached)
        self._goal = {partition: extent.end for partition, extent in extents.items()} | self._goal
        self._behind = behind(effect.reached, extents)
        late = self._aside.unanswered(effects.TakeEnds, self._behind, time.monotonic())
        if late:
            return effects.EffectFailed(self._behind[late[0]], others={topic: self._behind[topic] for topic in late})
        return effects.EndsTaken(extents)

    def _read(self, effect: MirrorEffect, target: TargetWriter) -> MirrorEvent:
        source = self._source
        match effect:
            case effects.ListTopics():
                return self._list_topics(target)
            case effects.CreateTopic(source_name, name, partitions):
                target.create_topic(name, partitions, self._settings.of_new_topic(source_name, name))
                self._settings.raise_limits({source_name: name})
            case effects.AddPartitions(name, partitions):
                target.add_partitions(name, partitions)
            case effects.ReadMaps():
                return effects.MapsRead(target.read_maps())
            case effects.TakeEnds():
                return self._take_ends(effect)
            case effects.ReadTransactions():
                return effects.TransactionsRead(source.transactions.prepared())
            case effects.ScanHeaders():
                return self._copier.scan(effect)
            case effects.ReadTargetGroups(groups):
                return target.read_groups(groups)
            case _:
                raise AssertionError(effect)
        return effects.TopicReady()
