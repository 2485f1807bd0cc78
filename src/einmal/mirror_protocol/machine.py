"""The mirror's side of every conversation: which step comes next, whatever has just happened.

Theory of operation. One target transaction copies one consistent cut (``cut``): records, the maps of their offsets, the
groups' offsets translated by these maps, and the commit record with the source positions. So whatever state of the
target a reader sees, it is the source's at one cut: no transaction is torn, and a group that resumes at its offset
there reads each record that it has not processed, and no other.

    start    look at the record  ->  acquire the transactional.id  ->  read the record, then the maps  ->  topics
    probe    ends  ->  transactions  ->  ends again  ->  topics again  ->  headers below the ends
    batch    copy records  ->  groups at the target  ->  save maps  ->  commit group offsets  ->  commit record
             ->  EndTxn

Invariants, and the ordering that keeps them:

1. *The transaction is the pipeline's.* ``commit_protocol.committer`` decides start, epochs, retries and fencing. A
   mirror is a stateless query whose checkpoint is always fresh: each run resumes at the commit record's end.
2. *Ends, transactions, ends* come in this order: ``cut`` explains why.
3. *The ends of __consumer_offsets come before those of the data.* An offset that a group has committed is never behind
   the end of its partition then, unless no record is there.
4. *Topics are listed after the ends.* A partition that is missing could have a part of a transaction, and the offset of
   a group could be of a topic that was created again. If the list differs, the probe is void.
5. *Records before maps before group offsets.* The target's answers to records make the map that translates offsets.
6. *Nothing is known before EndTxn is answered.* Positions, maps and groups change when the committer is ready again.
7. *A group that has moved to the target is left alone.* A member that joins after the question, before EndTxn, waits
   for the end of the transaction where it asks for stable offsets (KIP-447).
8. *Nothing that a group has committed is forgotten.* The commit record has the first offset that was passed for a group
   that the target has refused; once it is tried again, the log of the groups' offsets is read again from there.
9. *Nothing is skipped in a log that was truncated.* With each position goes the last leader epoch below it. Where a new
   leader's log ends that epoch earlier, its records are not those that were read, however far it has grown since. What
   was read ahead is compared in the same way, and no batch of a leader that was elected later is taken before.

The machine performs nothing: each effect is answered by one event through ``step``, until the effect is Stopped.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, MutableMapping
from dataclasses import replace
from typing import Final, TypeVar

from einmal.commit_protocol import effects as protocol
from einmal.commit_protocol.batch_plan import Batch
from einmal.commit_protocol.commit_record import mirror_checkpoint
from einmal.commit_protocol.committer import Committer
from einmal.commit_protocol.conversation import RunEnded, converse
from einmal.commit_protocol.run_state import Held, Query
from einmal.mirror_protocol import topology
from einmal.mirror_protocol.batch import StagedBatch, advance, groups_of, moved_groups, refusals, stage
from einmal.mirror_protocol.cut import Cut, Probe, find_whole, largest_cut
from einmal.mirror_protocol.effects import (
    CommitGroupOffsets,
    CopyRecords,
    CopyRefused,
    EffectFailed,
    EndsTaken,
    Extent,
    GroupsRefused,
    HeadersScanned,
    ListTopics,
    MapsRead,
    MirrorEffect,
    MirrorEvent,
    Reached,
    ReadMaps,
    ReadTargetGroups,
    ReadTransactions,
    RecordsCopied,
    SaveMaps,
    ScanHeaders,
    Stopped,
    TakeEnds,
    TargetGroupsRead,
    TopicsListed,
    TransactionsRead,
    Wait,
)
from einmal.mirror_protocol.flow import Flow, MirrorNotice, NoticeKind
from einmal.mirror_protocol.offset_map import InvalidRun, OffsetMap
from einmal.mirror_protocol.progress import OFFSETS_TOPIC, UNKNOWN, MirrorProgress, RecordedPosition
from einmal.mirror_protocol.replication_policy import NameFilter
from einmal.mirror_protocol.scan import (
    DataHeader,
    GroupCommit,
    Header,
    MalformedScan,
    PartitionScan,
)
from einmal.types import NO_LEADER_EPOCH, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition

_SURVEYS_MAX: Final = 10_000
"""Topics that one survey creates: each of them needs another list."""
_ROUNDS_HELD: Final = 100
"""Rounds without anything that may be copied, until it is reported."""
_NAMED_MAX: Final = 8
_REASON_MAX: Final = 400
_HINT_DATA_LOSS: Final = "failOnDataLoss=false continues with the records that still exist, and reports what is lost"
HINT_OVERLAP: Final = (
    'transactions = "by-partition" does not wait for transactions that overlap, and may tear those over several '
    "partitions"
)
_HINT_OPEN: Final = "find the transaction that stays open at the source, and end it: einmal txn find-hanging, abort"
_E = TypeVar("_E")
_Steps = Generator[MirrorEffect, MirrorEvent, _E]


class _Again(Exception):
    """The round cannot be finished now; nothing was written in it."""


class MirrorMachine:
    """One run of one flow. Not reusable after Stopped."""

    def __init__(
        self,
        flow: Flow,
        run: str,
        held: Held | None = None,
        aside: MutableMapping[str, str] | None = None,
        refused: MutableMapping[str, str] | None = None,
        settings: MutableMapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        """``run``: the name of this run, which no other run has. ``held``: by the run before it in this process.
        ``aside``: topics that are left out, with the reasons; the machine adds to it, its owner removes what is to be
        tried again. ``refused``: the same for groups whose offsets the target refuses. ``settings``: names of the
        settings that were copied, by the target's topic; the machine adds those of the commit record."""
        self._flow = flow
        self._aside: MutableMapping[str, str] = {} if aside is None else aside
        self._refused: MutableMapping[str, str] = {} if refused is None else refused
        self._settings: MutableMapping[str, tuple[str, ...]] = {} if settings is None else settings
        self._has_looked = False
        self._is_stale = False
        self._is_read_ahead = False
        """Whether all below the ends of the last probe was read. What was not may delete an offset of a topic that was
        created again."""
        self._run_name = run
        self._checkpoint = mirror_checkpoint(flow.name)
        query = Query(
            transactional_id=flow.transactional_id,
            query_id=run,
            checkpoint=self._checkpoint,
            is_fresh=True,
            stateful=False,
        )
        self._committer = Committer(query, held)
        self._progress = MirrorProgress()
        self._notices: list[MirrorNotice] = []
        self._groups = NameFilter(tuple(flow.groups.include), tuple(flow.groups.exclude))
        self._by_partition = flow.by_partition
        """As declared, or because the source's transactions cannot be read."""
        self._are_transactions_known = True
        self._rounds_held = 0
        self._staged: StagedBatch | None = None
        """State that becomes true with the commit of the open transaction."""
        self._steps = self._run()

    @property
    def held(self) -> Held | None:
        """The identity of this run, for a restart."""
        return self._committer.held

    @property
    def progress(self) -> MirrorProgress:
        """Progress that is committed, and what was read ahead. To be read only."""
        return self._progress

    def has_copied(self, goal: Mapping[TopicPartition, int]) -> bool:
        """Whether all topics are known, with everything that was committed when the logs had these ends, and all of it
        is copied, except for topics that are left out, which the commit record names, and for groups that are
        refused."""
        recorded = self._progress.recorded
        return (
            self._has_looked
            and recorded.aside.keys() == self._aside.keys()
            and recorded.settings == self._settings
            and (self._progress.former_groups is None or OFFSETS_TOPIC not in self._progress.topics)
            and (recorded.refused.keys() <= self._refused.keys() or OFFSETS_TOPIC in self._aside)
            and self._progress.has_copied(goal)
            and not self._passes(self._largest_cut())
        )

    def _refused_now(self) -> Mapping[str, str]:
        """Groups whose offsets are not translated now. One that is permitted again waits for the next probe, so that
        its older offsets come first."""
        progress = self._progress
        waiting = {
            group: refusal.reason for group, refusal in progress.recorded.refused.items() if progress.waits(group)
        }
        return {**waiting, **self._refused}

    def take_notices(self) -> list[MirrorNotice]:
        """Return the notices since the last call."""
        notices, self._notices = self._notices, []
        return notices

    def start(self) -> MirrorEffect:
        """Begin the run."""
        return next(self._steps)

    def step(self, event: MirrorEvent) -> MirrorEffect:
        """The answer to the last effect."""
        return self._steps.send(event)

    # --- the run --------------------------------------------------------------------------------------------------

    def _run(self) -> _Steps[None]:
        try:
            yield from self._load()
            while True:
                try:
                    has_copied = yield from self._round()
                except _Again:
                    has_copied = False
                if not has_copied:
                    yield Wait()
        except MalformedScan as error:
            yield Stopped(str(error), "the source's log is damaged: restore the partition from a replica", False)
        except RunEnded as end:
            yield Stopped(end.reason, end.hint, end.may_restart)

    def _load(self) -> _Steps[None]:
        yield from converse(self._committer, self._committer.start(), lambda identity: self._write(identity, {}))
        progress, record = self._progress, self._committer.record
        try:
            progress.recorded = RecordedPosition.of(record)
        except ValueError as error:
            raise RunEnded(str(error), f"{self._flow.transactional_id!r} belongs to a pipeline: rename it") from error
        for topic, names in progress.recorded.settings.items():
            self._settings.setdefault(topic, names)
        if progress.recorded.groups not in (None, self._groups):
            progress.former_groups = progress.recorded.groups
        while True:
            try:
                saved = (yield from self._ask(ReadMaps(), MapsRead)).maps
                break
            except _Again:
                yield Wait()
        progress.seen = {topic: dict(ends) for topic, ends in progress.recorded.seen.items()}
        for key, saved_map in saved.items():
            progress.maps[key] = OffsetMap(saved_map.runs)
            progress.groups[key] = dict(saved_map.groups)

    def _round(self) -> _Steps[bool]:
        """Copy one batch, from what was read ahead if possible. Returns whether anything was copied."""
        cut = self._largest_cut()
        if not self._is_read_ahead or not self._has_content(cut):
            if not (yield from self._probe()):
                return False
            cut = self._largest_cut()
            if not self._has_content(cut):
                self._note_held()
                # Only a transaction lets others know of topics and groups that are left out, and of copied settings.
                recorded = self._progress.recorded
                are_known = recorded.refused == refusals(self._progress, cut, self._refused_now())
                are_known &= recorded.settings == self._settings
                are_known &= recorded.groups in (None, self._progress.groups_after(cut, self._groups))
                is_same = are_known and recorded.aside.keys() == self._progress.aside_after(cut, self._aside).keys()
                if is_same and not self._passes(cut):
                    return False
        if self._has_content(cut):
            self._rounds_held = 0
        yield from self._transact(cut)
        return True

    def _note_held(self) -> None:
        """Report committed records that no cut can include, if that does not change."""
        scans = self._progress.scans.values() if self._are_transactions_known else ()
        held = [scan for scan in scans if scan.first_uncopied() is not None]
        self._rounds_held = self._rounds_held + 1 if held else 0
        if self._rounds_held == _ROUNDS_HELD:
            undecided = sorted({producer_id for scan in held for producer_id in scan.undecided})
            names = f" (producer ids {', '.join(map(str, undecided[:_NAMED_MAX]))})" if undecided else ""
            self._notice(
                NoticeKind.HELD,
                str(held[0].partition),
                f"committed records of {held[0].partition} from offset {held[0].first_uncopied()} on wait for open "
                f"transactions{names} that they overlap: they are copied together, or not at all. {HINT_OVERLAP}",
            )

    def _ask(self, effect: MirrorEffect, answer: type[_E]) -> _Steps[_E]:
        event = yield effect
        if isinstance(event, EffectFailed):
            for topic, reason in {**({event.topic: event.reason} if event.topic else {}), **event.others}.items():
                self._leave_out(topic, reason)
            # A topic that is gone has no ends: the next probe begins with the topics.
            self._is_stale |= isinstance(effect, TakeEnds)
            raise _Again(event.reason)
        assert isinstance(event, answer), f"{event} answers {effect}"
        return event

    def _notice(self, kind: NoticeKind, subject: str, text: str) -> None:
        self._notices.append(MirrorNotice(kind, subject, text))

    def _leave_out(self, topic: str, reason: str) -> None:
        reason = " ".join(reason.split())[:_REASON_MAX]
        self._aside[topic] = reason
        self._notice(
            NoticeKind.ASIDE,
            topic,
            f"topic {topic!r} is left out, all others are copied, transactions that span it without its records: "
            f"{reason} It is tried again from time to time",
        )

    # --- a probe --------------------------------------------------------------------------------------------------

    def _probe(self) -> _Steps[bool]:
        """Read ahead. False if the topics have changed meanwhile: nothing is known then."""
        progress, self._is_read_ahead = self._progress, False
        if not progress.topics or self._is_stale or not self._aside.keys().isdisjoint(progress.topics):
            yield from self._survey()
            self._is_stale = False
        progress.read_again(progress.recorded.refused.keys() - self._refused.keys())
        before = yield from self._ends(tuple(progress.scans))
        progress.see({partition: extent.end for partition, extent in before.items()})
        preparing, self._are_transactions_known = None, True
        try:
            preparing = yield from self._preparing()
        except _Again:
            # What is outside of transactions need not wait for them.
            self._are_transactions_known = False
        offsets = tuple(scan for scan in progress.scans if scan.topic == OFFSETS_TOPIC)
        after = dict((yield from self._ends(offsets)))
        after |= yield from self._ends(tuple(scan for scan in progress.scans if scan.topic != OFFSETS_TOPIC))
        if (yield from self._survey()):
            return False
        self._compare(after)
        yield from self._scan(after)
        if self._are_transactions_known:
            find_whole(
                progress.scans, Probe({partition: extent.end for partition, extent in before.items()}, preparing)
            )
        self._has_looked = self._is_read_ahead = True
        return True

    def _preparing(self) -> _Steps[Mapping[ProducerId, ProducerEpoch] | None]:
        if self._flow.by_partition:
            return None
        preparing = (yield from self._ask(ReadTransactions(), TransactionsRead)).preparing
        if preparing is None and not self._by_partition:
            self._notice(
                NoticeKind.TORN,
                "__transaction_state",
                "__transaction_state of the source cannot be read: transactions over several partitions may be torn",
            )
        self._by_partition = preparing is None
        return preparing

    def _ends(self, partitions: tuple[TopicPartition, ...]) -> _Steps[Mapping[TopicPartition, Extent]]:
        if not partitions:
            return {}
        scans = (self._progress.scans[partition] for partition in partitions)
        reached = {
            scan.partition: Reached(scan.position, scan.epoch_below(scan.scanned))
            for scan in scans
            if scan.position != UNKNOWN
        }
        extents = (yield from self._ask(TakeEnds(partitions, reached), EndsTaken)).extents
        if extents.keys() != set(partitions):
            raise _Again("partitions without an end")
        return extents

    def _survey(self) -> _Steps[bool]:
        """Compare the topics, and create what the target lacks. Returns whether anything has changed."""
        progress = self._progress
        for _ in range(_SURVEYS_MAX):
            listed = yield from self._ask(ListTopics(), TopicsListed)
            try:
                topology.check_clusters(progress, listed)
                lacking = next(topology.missing(self._flow, listed, self._aside), None)
                if lacking is None:
                    notices = topology.adopt(self._flow, progress, listed, self._aside)
                    progress.recorded = replace(
                        progress.recorded, source_cluster=listed.source_cluster, target_cluster=listed.target_cluster
                    )
                    for notice in notices or ():
                        self._lose(notice)
                    return notices is not None
            except topology.WrongCluster as error:
                raise RunEnded(str(error), "correct bootstrap.servers, or rename the flow") from error
            except topology.StaleList as error:
                raise _Again(str(error)) from error
            event = yield lacking
            if isinstance(event, EffectFailed) and event.topic:
                self._leave_out(event.topic, event.reason)
            elif isinstance(event, EffectFailed):
                raise _Again(event.reason)
        raise _Again("the target does not show the topics that were created")

    def _lose(self, notice: MirrorNotice) -> None:
        if notice.kind is NoticeKind.DATA_LOSS and self._flow.fail_on_data_loss:
            raise RunEnded(notice.text, _HINT_DATA_LOSS)
        self._notices.append(notice)

    def _compare(self, extents: Mapping[TopicPartition, Extent]) -> None:
        """Positions and what was read ahead with the logs as they are now."""
        progress = self._progress
        is_void, behind = False, ""
        for partition, extent in extents.items():
            scan = progress.scans[partition]
            progress.starts[partition] = extent.start
            if scan.position == UNKNOWN:
                scan.forget(extent.start)
                progress.behind.pop(partition, None)
            elif self._is_replaced(scan, extent):
                # The next probe asks for the last leader epoch below the position.
                is_void, behind = True, f"the log of {partition} was replaced"
            elif scan.position < extent.start:
                lost = f"{partition} offsets {scan.position} to {extent.start - 1} were deleted before they were copied"
                if partition.topic != OFFSETS_TOPIC:
                    self._lose(MirrorNotice(NoticeKind.DATA_LOSS, str(partition), lost))
                scan.forget(extent.start)
                is_void = True
            elif extent.end < scan.position:
                self._notice(
                    NoticeKind.BEHIND,
                    str(partition),
                    f"{partition} ends at offset {extent.end}, before offset {scan.position}, up to which it was copied"
                    ": the log was truncated (an unclean leader election, or a disk that was lost or restored)",
                )
                behind = f"{partition} is behind"
                if scan.epoch_below(scan.position) is None:
                    progress.behind[partition] = min(extent.end, progress.behind.get(partition, extent.end))
            elif extent.end < scan.scanned:
                is_void = True
        if is_void:
            progress.rescan()
        if behind:
            raise _Again(behind)

    def _is_replaced(self, scan: PartitionScan, extent: Extent) -> bool:
        """Whether the log is not the one that was read. What differs of what was copied is lost, and reported."""
        behind = self._progress.behind
        truncated = scan.truncated_to(extent.epoch_end)
        if truncated is not None:
            if scan.scanned == scan.position:
                self._truncate(scan, truncated, extent)
        elif extent.end < scan.position:
            return False
        elif extent.lacks_epoch:
            self._restore(scan)
        elif scan.partition in behind:
            self._regrow(scan, behind.pop(scan.partition))
        else:
            return False
        return True

    def _truncate(self, scan: PartitionScan, offset: int, extent: Extent) -> None:
        """The log is not the one that was copied any more, from this offset on."""
        partition, position = scan.partition, scan.position
        assert extent.epoch_end is not None
        text = (
            f"the source's log of {partition} was truncated to offset {offset} (an unclean leader election, or a disk "
            f"that was lost or restored): what was at offsets {offset} to {position - 1} is gone there"
        )
        self._lose_of(scan, f"{text}, and was copied before")
        self._progress.truncate(scan, offset, extent.epoch_end.epoch)

    def _regrow(self, scan: PartitionScan, end: int) -> None:
        """The log has ended there, before the position, and no leader epoch is known that would show why."""
        text = (
            f"the source's log of {scan.partition} has ended at offset {end}, and has grown past offset "
            f"{scan.position}, up to which it was copied: if it was truncated, records between the two are not copied"
        )
        self._lose_of(scan, text)

    def _restore(self, scan: PartitionScan) -> None:
        """The log is older than what was copied of it, and has other records since."""
        text = (
            f"the source's log of {scan.partition} lacks the leader epoch in which it was copied up to offset "
            f"{scan.position}: it was restored from an older copy, and records before that offset may be others"
        )
        self._lose_of(scan, text)
        self._progress.truncate(scan, scan.position, NO_LEADER_EPOCH)

    def _lose_of(self, scan: PartitionScan, text: str) -> None:
        """Records of a partition; offsets of groups are not worth a stop: what follows replaces them."""
        if scan.partition.topic == OFFSETS_TOPIC:
            self._notice(NoticeKind.BEHIND, str(scan.partition), text)
        else:
            self._lose(MirrorNotice(NoticeKind.DATA_LOSS, str(scan.partition), text))

    def _scan(self, extents: Mapping[TopicPartition, Extent]) -> _Steps[None]:
        scans = self._progress.scans
        ends = {partition: extent.end for partition, extent in extents.items()}
        topic_ids = {topic.name: topic.source_id for topic in self._progress.topics.values()}
        for partition, end in ends.items():
            scans[partition].end = end
        while True:
            ranges = {
                partition: (scans[partition].scanned, end)
                for partition, end in ends.items()
                if scans[partition].scanned < end and not self._has_enough(scans[partition])
            }
            if not ranges:
                return
            answer = yield from self._ask(ScanHeaders(ranges, topic_ids), HeadersScanned)
            for partition, headers in answer.headers.items():
                for header in headers:
                    scans[partition].take(self._relevant(partition, header))
            for partition, reached in answer.reached.items():
                scans[partition].reach(reached)
                self._note_unmarked(scans[partition])
            for partition in ranges:
                epoch, known = scans[partition].epoch_below(scans[partition].scanned), extents[partition].leader_epoch
                if epoch is not None and NO_LEADER_EPOCH < known < epoch.epoch:
                    # The log may have been truncated since it was compared.
                    self._progress.rescan()
                    raise _Again(f"{partition} has another leader")
            if all(scans[partition].scanned == start for partition, (start, _) in ranges.items()):
                raise _Again("the source returns no headers")
            parts = sum(len(scan.decided) + len(scan.undecided) for scan in scans.values())
            if parts > self._flow.parts_max:
                raise RunEnded(
                    f"{parts} parts of transactions lie between the mirror's position and the end of the source",
                    _HINT_OPEN if self._by_partition else HINT_OVERLAP,
                )

    def _has_enough(self, scan: PartitionScan) -> bool:
        """Nothing that lies further ahead can be a part of what is copied by partition. The offsets of groups are read
        to their end: those of a topic that was deleted are known by what follows them."""
        return self._by_partition and scan.is_copied and scan.has_decided(self._flow.parts_ahead)

    def _note_unmarked(self, scan: PartitionScan) -> None:
        for share in scan.unmarked:
            assert share.producer is not None
            self._notice(
                NoticeKind.UNMARKED,
                str(scan.partition),
                f"{scan.partition} has no marker for the transaction of producer id {share.producer.producer_id}, "
                f"epoch {share.producer.producer_epoch}, at offsets {share.first} to {share.last}: the source's "
                "readers see it with the producer's next transaction, and so does the mirror",
            )
        scan.unmarked.clear()

    def _relevant(self, scanned: TopicPartition, header: Header) -> Header:
        """Without the offsets that are not to be translated."""
        if not isinstance(header, DataHeader) or not header.commits:
            return header
        return replace(
            header, commits=tuple(commit for commit in header.commits if self._is_relevant(commit, scanned, header))
        )

    def _is_relevant(self, commit: GroupCommit, scanned: TopicPartition, header: DataHeader) -> bool:
        progress = self._progress
        if not progress.is_copied(commit.partition) or not self._flow.groups.accepts(commit.group):
            return False
        if progress.is_old(scanned, header.last_offset, commit.group, commit.partition.topic):
            return False
        seen = progress.seen.get(commit.partition.topic, {})
        if header.last_offset >= seen.get(scanned.partition, 0):
            return True
        if commit.offset is None:
            progress.deleted.add((commit.group, commit.partition))
            return True
        # Behind a tombstone it is one of the new topic.
        known = progress.groups.get(progress.key(commit.partition), {})
        if commit.group in known or (commit.group, commit.partition) in progress.deleted:
            return True
        text = (
            f"offset {commit.offset} of group {commit.group!r} in {commit.partition} was committed before the "
            "topic was seen to be a new one: it is not translated"
        )
        self._notices.append(MirrorNotice(NoticeKind.OLD_OFFSET, commit.group, text, commit.partition, commit.offset))
        return False

    # --- a batch --------------------------------------------------------------------------------------------------

    def _largest_cut(self) -> Cut:
        return largest_cut(self._progress.scans, self._flow.offsets_max, splits=self._by_partition)

    def _has_content(self, cut: Cut) -> bool:
        return any(scan.has_content(cut[partition]) for partition, scan in self._progress.scans.items())

    def _passes(self, cut: Cut) -> bool:
        """Whether offsets of aborted transactions lie below the cut. They have to be passed, though nothing is copied:
        once they are deleted, nobody can know that."""
        progress = self._progress
        return any(progress.is_copied(scan) and progress.scans[scan].position < end for scan, end in cut.items())

    def _transact(self, cut: Cut) -> _Steps[None]:
        progress, record = self._progress, self._committer.record
        are_ahead = all(progress.scans[partition].position <= end for partition, end in cut.items())
        assert are_ahead, "a cut below a position would record less than what is at the target"
        refused = self._refused_now()
        position = progress.position_after(
            cut, self._aside, refusals(progress, cut, refused), self._settings, self._groups
        )
        batch = Batch(
            query_id=self._run_name,
            checkpoint=self._checkpoint,
            batch_id=0 if record is None else record.batch_id + 1,
            start=None if record is None else record.end,
            end=position.end(),
            run=self._run_name,
        )
        yield from converse(self._committer, self._committer.batch(batch), lambda identity: self._write(identity, cut))
        assert self._staged is not None
        record = self._committer.record
        assert record is not None and record.end == batch.end, "positions, maps and records are of one transaction"
        self._notices += self._staged.notices
        advance(progress, cut, position, self._staged)

    def _write(self, identity: ProducerIdAndEpoch, cut: Cut) -> _Steps[MirrorEvent]:
        """One attempt to write the batch."""
        copied = yield from self._copy(identity, cut)
        if isinstance(copied, CopyRefused):
            # The next run begins without the topic.
            self._leave_out(copied.topic, copied.reason)
            return protocol.Failed(copied.reason, will_again=True)
        if isinstance(copied, EffectFailed):
            return protocol.Failed(copied.reason)
        if not isinstance(copied, RecordsCopied):
            return copied
        groups: MirrorEvent = TargetGroupsRead(frozenset(), {})
        refused = self._refused_now()
        if asked := groups_of(self._progress, cut, refused):
            groups = yield ReadTargetGroups(asked)
        if isinstance(groups, GroupsRefused):
            return _refused(groups, self._refused)
        if isinstance(groups, EffectFailed):
            return protocol.Failed(groups.reason)
        assert isinstance(groups, TargetGroupsRead)
        try:
            moved = moved_groups(self._progress, cut, groups, refused)
            batch = stage(self._flow, self._progress, cut, copied.runs, moved)
        except InvalidRun as error:
            return protocol.Failed(f"the target's answer contradicts what was copied: {error}", will_again=True)
        self._staged = batch
        return (yield from _save(identity, batch, self._refused))

    def _copy(self, identity: ProducerIdAndEpoch, cut: Cut) -> _Steps[MirrorEvent]:
        progress = self._progress
        ranges = {
            partition: (scan.position, cut[partition])
            for partition, scan in progress.scans.items()
            if progress.is_copied(partition) and scan.has_content(cut[partition])
        }
        topics = progress.topics
        return (
            yield CopyRecords(
                identity,
                ranges,
                {partition.topic: topics[partition.topic].source_id for partition in ranges},
                {
                    partition: TopicPartition(topics[partition.topic].target, partition.partition)
                    for partition in ranges
                },
            )
        )


def _save(identity: ProducerIdAndEpoch, batch: StagedBatch, refused: MutableMapping[str, str]) -> _Steps[MirrorEvent]:
    """Write maps and group offsets."""
    steps: list[MirrorEffect] = []
    if batch.changes:
        steps.append(SaveMaps(identity, batch.changes))
    if batch.offsets:
        steps.append(CommitGroupOffsets(identity, batch.offsets, batch.metadata))
    for step in steps:
        event = yield step
        if isinstance(event, GroupsRefused):
            return _refused(event, refused)
        if not isinstance(event, protocol.Done):
            return event
    return protocol.Acknowledged(batch.outputs)


def _refused(refusal: GroupsRefused, groups: MutableMapping[str, str]) -> protocol.Failed:
    """The next run translates all other groups."""
    groups.update({group: " ".join(reason.split())[:_REASON_MAX] for group, reason in refusal.reasons.items()})
    return protocol.Failed(next(iter(refusal.reasons.values())), will_again=True)
