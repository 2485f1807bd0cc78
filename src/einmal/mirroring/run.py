"""One flow in this process: performs the machine's effects until it is stopped."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final
from uuid import uuid4

from einmal.client.errors import KafkaError
from einmal.mirror import effects
from einmal.mirror.effects import MirrorEffect, MirrorEvent
from einmal.mirror.flow import Flow, MirrorNotice
from einmal.mirror.machine import MirrorMachine
from einmal.mirroring.copier import Copier, LocalCopier
from einmal.mirroring.map_log import UnreadableMap
from einmal.mirroring.reading import SourceUnreadable
from einmal.mirroring.source import SourceReader
from einmal.mirroring.target import TargetWriter
from einmal.mirroring.topic_settings import TopicSettings
from einmal.pipeline import effects as protocol
from einmal.pipeline.commit_record import CommitRecord, UnreadableCommitRecord
from einmal.pipeline.run_state import Held
from einmal.spark.errors import PipelineRefused
from einmal.spark.targets.kafka.verbs import VERBS, answered, perform
from einmal.types import TopicPartition
from einmal.wire.errors import WireError

_TRANSACTION: Final = (*VERBS, effects.CopyRecords, effects.SaveMaps, effects.CommitGroupOffsets)
_POLL_S: Final = 0.2
"""Between two looks at a source that has nothing new."""
_RESTARTS_MAX: Final = 5
"""Runs without a commit, one after the other, until the mirror gives up."""
_REPORTED_MAX: Final = 1_000
_HINT_FENCED: Final = "another mirror has started under this name: let only one of them run"
_HINT_UNREADABLE: Final = "run the einmal that wrote the record, or a newer one; delete a record that is no mirror's"
_logger = logging.getLogger(__name__)


class MirrorStopped(Exception):
    """The mirror cannot continue as it is."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(f"{reason}\nhint: {hint}")


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
        self._copier = copier or LocalCopier(source)
        self._target_client = target
        self._notify = notify or (lambda notice: _logger.warning("%s", notice.text))
        self._committed = committed
        self._ends_when_idle = ends_when_idle
        self._record: CommitRecord | None = None
        self._idle_rounds = self._restarts = 0
        """Since the last commit."""
        self._reported: dict[str, None] = {}
        """Notices that need not be repeated."""
        self._settings = TopicSettings(source, target, self._tell)
        self._goal: dict[TopicPartition, int] = {}
        """The ends of the source when the process has begun."""
        self.stop = threading.Event()

    def run(self) -> None:
        """Raises MirrorStopped, and KafkaError where a cluster cannot be reached at the start, or for long."""
        held: Held | None = None
        while not self.stop.is_set():
            target = TargetWriter(self._target_client, self._flow.name, self._flow.transactional_id)
            machine = MirrorMachine(self._flow, uuid4().hex, held)
            try:
                target.prepare()
                self._converse(machine, target)
            except KafkaError:
                if self._restarts in (0, _RESTARTS_MAX):
                    raise
            except PipelineRefused as error:
                raise MirrorStopped(error.reason, error.hint) from error
            except (UnreadableCommitRecord, UnreadableMap) as error:
                raise MirrorStopped(str(error), _HINT_UNREADABLE) from error
            finally:
                target.target.abandon()
                target.close()
            held = machine.held
            self._restarts += 1
            self.stop.wait(_POLL_S)

    def close(self) -> None:
        self._copier.close()
        self._source.close()

    def _converse(self, machine: MirrorMachine, target: TargetWriter) -> None:
        effect = machine.start()
        while not self.stop.is_set():
            for notice in machine.take_notices():
                self._tell(notice)
            if self._ends_when_idle and self._has_reached_goal(machine):
                return self.stop.set()
            if isinstance(effect, effects.Stopped):
                if not effect.may_restart or self._restarts >= _RESTARTS_MAX:
                    raise MirrorStopped(effect.reason, effect.hint)
                _logger.warning("%s; %s", effect.reason, effect.hint)
                return
            if isinstance(effect, effects.TakeEnds):
                # No transaction is open now.
                topics = machine.progress.topics.values()
                self._settings.synchronize({topic.name: topic.target for topic in topics if topic.target})
            effect = machine.step(self.perform(effect, target))

    def _tell(self, notice: MirrorNotice) -> None:
        if notice.text not in self._reported:
            self._reported[notice.text] = None
            self._notify(notice)
        if len(self._reported) > _REPORTED_MAX:
            self._reported.clear()

    def _has_reached_goal(self, machine: MirrorMachine) -> bool:
        scans = machine.progress.scans
        return bool(self._goal) and all(
            scans[each].position >= end for each, end in self._goal.items() if each in scans
        )

    def perform(self, effect: MirrorEffect, target: TargetWriter) -> MirrorEvent:
        """One effect, and its answer."""
        if isinstance(effect, effects.Wait):
            return self._wait()
        try:
            if isinstance(effect, _TRANSACTION):
                return self._transact(effect, target)
            return self._read(effect, target)
        except SourceUnreadable as error:
            # Of tasks, which may lack more than a connection.
            _logger.warning("the source cannot be read, trying again: %s", error)
            return effects.EffectFailed(str(error))
        except (KafkaError, WireError) as error:
            _logger.info("%s: %s", type(effect).__name__, error)
            self._idle_rounds = -1
            return effects.EffectFailed(str(error))

    def _wait(self) -> effects.Woken:
        # The first round that finds nothing may have found new topics.
        self._idle_rounds += 1
        if self._ends_when_idle and self._idle_rounds > 1:
            self.stop.set()
        self.stop.wait(_POLL_S)
        return effects.Woken()

    def _transact(self, effect: MirrorEffect, target: TargetWriter) -> MirrorEvent:
        try:
            event = answered(effect, lambda: self._event(effect, target), _HINT_FENCED)
        except SourceUnreadable as error:
            return protocol.Failed(str(error), will_again=True)
        match effect:
            case protocol.WriteCommitRecord(_, record):
                self._record = record
            case protocol.EndTxn(_, committed=True) if isinstance(event, protocol.Ended):
                self._idle_rounds = self._restarts = 0
                assert self._record is not None
                self._committed(self._record)
        return event

    def _event(self, effect: MirrorEffect, target: TargetWriter) -> MirrorEvent:
        match effect:
            case effects.CopyRecords():
                return self._copier.copy(effect, target.target)
            case effects.SaveMaps(identity, changes):
                target.save_maps(identity, changes)
            case effects.CommitGroupOffsets(identity, offsets):
                target.commit_offsets(identity, offsets)
            case _:
                return perform(effect, target.target)
        return protocol.Done()

    def _read(self, effect: MirrorEffect, target: TargetWriter) -> MirrorEvent:
        source = self._source
        match effect:
            case effects.ListTopics():
                source_id, target_id = source.cluster.cluster_id(), target.cluster.cluster_id()
                return effects.TopicsListed(source_id or "", target_id or "", source.topics(), target.topics())
            case effects.CreateTopic(source_name, name, partitions):
                target.create_topic(name, partitions, self._settings.of_new_topic(source_name))
            case effects.AddPartitions(name, partitions):
                target.add_partitions(name, partitions)
            case effects.ReadMaps():
                return effects.MapsRead(target.read_maps())
            case effects.TakeEnds(partitions):
                extents = source.extents(partitions)
                self._goal = {each: extent.end for each, extent in extents.items()} | self._goal
                return effects.EndsTaken(extents)
            case effects.ReadTransactions():
                return effects.TransactionsRead(source.transactions.prepared())
            case effects.ScanHeaders():
                return self._copier.scan(effect)
            case effects.ReadTargetGroups(groups):
                return target.read_groups(groups)
            case _:
                raise AssertionError(effect)
        return effects.TopicReady()
