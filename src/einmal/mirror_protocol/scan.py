"""Scan of the batch headers and markers of one source partition, between the mirror's position and the scanned end.

A *part* is the share of a transaction in one partition: the range of its data, until its marker. Parts of aborted
transactions are dropped at their marker. Partitions of ``__consumer_offsets`` are scanned like all others; their parts
carry the offsets that a group has committed.

A marker can be missing: Apache Kafka completes a transaction without it where the partition has no leader for a moment
(docs/decisions/0001). The producer's next transaction writes behind it then, and the source's readers see both as one:
the next marker decides both. So does the scan, and reports it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from einmal.types import NO_LEADER_EPOCH, EpochEnd, ProducerId, ProducerIdAndEpoch, TopicPartition

UNDECIDED: Final = -1


class MalformedScan(Exception):
    """Headers or markers contradict each other: no broker writes such a log."""


class EpochSpan(NamedTuple):
    """Batches of one leader epoch that were read: from the first offset of theirs to the last one, exclusive."""

    epoch: int
    start: int
    end: int


def is_truncated(read: EpochSpan | None, end: EpochEnd | None) -> bool:
    """Whether a log has lost some of what was read of it, by the end of that leader epoch there. A replica that becomes
    the leader in a healthy cluster has all of it."""
    return read is not None and end is not None and end.epoch != NO_LEADER_EPOCH and end.offset < read.end


@dataclass(frozen=True, slots=True)
class GroupCommit:
    """A group's committed offset of one source partition. ``offset`` None: it was deleted. ``metadata``: what the group
    has committed with it."""

    group: str
    partition: TopicPartition
    offset: int | None
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class DataHeader:
    """A batch of records; offsets inclusive. ``producer``: None outside of transactions. ``commits``: those of the
    mirror's groups and topics, in a batch of ``__consumer_offsets``."""

    first_offset: int
    last_offset: int
    producer: ProducerIdAndEpoch | None
    commits: tuple[GroupCommit, ...] = ()
    leader_epoch: int = NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True)
class MarkerHeader:
    """A marker; ``producer`` has the marker's own epoch, which under TV2 is later than that of the data."""

    offset: int
    producer: ProducerIdAndEpoch
    committed: bool
    leader_epoch: int = NO_LEADER_EPOCH


Header = DataHeader | MarkerHeader


@dataclass(slots=True, eq=False)
class TransactionPart:
    """``is_unique``: no other transaction has this producer id and epoch (TV2). ``whole``: the parts that the cut must
    keep together with this one, itself included; None while more of them may be unknown. ``begin``: the first offset,
    where a cut has split the part and ``first`` is behind it."""

    partition: TopicPartition
    producer: ProducerIdAndEpoch | None
    first: int
    last: int
    marker: int = UNDECIDED
    is_unique: bool = False
    commits: list[GroupCommit] = field(default_factory=list)
    whole: tuple[TransactionPart, ...] | None = None
    begin: int | None = None


@dataclass(slots=True)
class PartitionScan:
    """``position``: the mirror has copied everything below it. ``scanned``: the headers below it are known. ``end``: of
    the log, as the last probe has read it. ``is_copied``: its records go to the target; otherwise only the offsets that
    groups have committed do."""

    partition: TopicPartition
    position: int
    scanned: int
    is_copied: bool = True
    end: int = 0
    undecided: dict[ProducerId, TransactionPart] = field(default_factory=dict)
    decided: list[TransactionPart] = field(default_factory=list)
    """Committed, by their markers' offsets."""
    unmarked: list[TransactionPart] = field(default_factory=list)
    """Parts whose marker is missing, as they were before the producer's next transaction. For the caller to report."""
    plain: tuple[int, int] | None = None
    """From the first to the last record outside of transactions that is not copied yet; others may lie between."""
    epochs: list[EpochSpan] = field(default_factory=list)
    """Leader epochs of what was scanned, from the last one below the position on."""

    def forget(self, position: int) -> None:
        """Scan again, from ``position``."""
        below = self.epoch_below(position)
        self.epochs = [] if below is None else [below]
        self.position = self.scanned = position
        self.undecided.clear()
        self.decided.clear()
        self.unmarked.clear()
        self.plain = None

    def take(self, header: Header) -> None:
        """The next header, in the order of offsets. Raises MalformedScan."""
        before = self.scanned
        if isinstance(header, MarkerHeader):
            self._take_marker(header)
        else:
            self._take_data(header)
        if before < self.scanned and header.leader_epoch != NO_LEADER_EPOCH:
            self._take_epoch(header.leader_epoch, before)

    def _take_epoch(self, epoch: int, start: int) -> None:
        if self.epochs and self.epochs[-1].epoch == epoch:
            self.epochs[-1] = self.epochs[-1]._replace(end=self.scanned)
        else:
            self.epochs.append(EpochSpan(epoch, start, self.scanned))

    def epoch_below(self, offset: int) -> EpochSpan | None:
        """The last leader epoch that was read below ``offset``, as far as it lies there; None: not known."""
        span = next((span for span in reversed(self.epochs) if span.start < offset), None)
        return None if span is None else span._replace(end=min(span.end, offset))

    def truncated_to(self, end: EpochEnd | None) -> int | None:
        """The offset from which on the source's log is not the one that was scanned, by the end of the last leader
        epoch that was; None: it is the same, as far as is known."""
        span = self.epoch_below(self.scanned)
        if end is None or span is None or not is_truncated(span, end):
            return None
        # The log may have more of an earlier epoch than was read.
        return end.offset if end.epoch == span.epoch else min(end.offset, span.start)

    def reach(self, end: int) -> None:
        """All headers below ``end`` were taken."""
        self.scanned = max(self.scanned, end)

    def _take_data(self, header: DataHeader) -> None:
        if header.last_offset < self.scanned:
            return  # A reader gets whole batches, which may begin before the range.
        first = max(header.first_offset, self.scanned)
        if first > header.last_offset:
            raise MalformedScan(f"{self.partition}: a batch from {header.first_offset} to {header.last_offset}")
        self.scanned = header.last_offset + 1
        if header.producer is None:
            self._take_plain(first, header)
            return
        share = self.undecided.get(header.producer.producer_id)
        if share is None:
            share = TransactionPart(self.partition, header.producer, first, header.last_offset)
            self.undecided[header.producer.producer_id] = share
        elif share.producer != header.producer:
            self._continue_unmarked(share, header.producer)
        share.last = header.last_offset
        share.commits += header.commits

    def _continue_unmarked(self, share: TransactionPart, producer: ProducerIdAndEpoch) -> None:
        assert share.producer is not None
        if producer.producer_epoch < share.producer.producer_epoch:
            raise MalformedScan(f"{self.partition}: {producer} writes into the transaction of {share.producer}")
        self.unmarked.append(replace(share))
        share.producer = producer

    def _take_plain(self, first: int, header: DataHeader) -> None:
        if header.commits:
            share = TransactionPart(self.partition, None, first, header.last_offset, header.last_offset)
            share.commits += header.commits
            share.whole = (share,)
            self.decided.append(share)
        elif self.is_copied:
            self.plain = (self.plain[0] if self.plain else first, header.last_offset)

    def _take_marker(self, marker: MarkerHeader) -> None:
        if marker.offset < self.scanned:
            return
        self.scanned = marker.offset + 1
        share = self.undecided.pop(marker.producer.producer_id, None)
        if share is None:
            return  # The transaction wrote nothing here, or nothing that is not copied, or a marker was repeated.
        assert share.producer is not None
        if marker.producer.producer_epoch < share.producer.producer_epoch:
            raise MalformedScan(f"{self.partition}: {marker.producer} ends the transaction of {share.producer}")
        if marker.committed and (self.is_copied or share.commits):
            share.marker = marker.offset
            share.is_unique = marker.producer.producer_epoch > share.producer.producer_epoch
            self.decided.append(share)

    def unfinished(self) -> Iterator[TransactionPart]:
        """Parts that no cut may include: undecided ones, and those whose transaction may have unknown parts."""
        yield from self.undecided.values()
        yield from (share for share in self.decided if share.whole is None)

    def has_decided(self, count: int) -> bool:
        """Whether that many parts were read ahead, and any of them, or a record, lies below all undecided ones."""
        first = min((share.first for share in self.undecided.values()), default=self.scanned)
        return len(self.decided) >= count and self.has_content(first)

    def has_content(self, cut: int) -> bool:
        """Whether there is anything to copy below ``cut``."""
        is_plain = self.plain is not None and self.plain[0] < cut
        return is_plain or any(share.first < cut for share in self.decided)

    def has_copied(self, end: int) -> bool:
        """Whether everything is copied that was committed when the log ended at ``end``."""
        if self.position >= end:
            return True
        is_plain = self.plain is not None and self.plain[0] < end
        return self.scanned >= end and not is_plain and all(share.marker >= end for share in self.decided)

    def first_uncopied(self) -> int | None:
        """The first offset of what is committed, scanned and not copied."""
        firsts = [share.first for share in self.decided]
        return min(firsts + ([] if self.plain is None else [self.plain[0]]), default=None)

    def commits_below(self, cut: int) -> Iterator[GroupCommit]:
        """Offsets that groups have committed below ``cut``, by the offsets of their records. Those that are known to be
        deleted later are not among them: they may be of a topic that was deleted."""
        shares = sorted((share for share in self.decided if share.commits), key=lambda share: share.first)
        deleted = {
            (commit.group, commit.partition)
            for share in shares
            for commit in share.commits
            if share.last >= cut and commit.offset is None
        }
        for share in shares:
            if share.last < cut:
                yield from (commit for commit in share.commits if (commit.group, commit.partition) not in deleted)

    def resumes_at(self, cut: int) -> int:
        """Where another process has to begin, once everything below ``cut`` is copied: offsets of groups are committed
        at the end of their transaction, which a cut may split."""
        begins = (
            share.first if share.begin is None else share.begin
            for share in self.decided
            if share.commits and share.last >= cut
        )
        return min([cut, *begins])

    def advance(self, cut: int) -> None:
        """Everything below ``cut`` is copied, and committed at the target."""
        assert self.position <= cut <= self.scanned, "a mirror repeats nothing, and skips nothing that it has not seen"
        self.position = cut
        below = self.epoch_below(cut)
        self.epochs = [span for span in self.epochs if below is None or span.start >= below.start]
        self.decided = [share for share in self.decided if share.last >= cut]
        for share in self.decided:
            if share.first < cut:
                share.begin = share.first if share.begin is None else share.begin
                share.first = cut
        if self.plain is not None:
            first, last = self.plain
            self.plain = None if last < cut else (max(first, cut), last)
