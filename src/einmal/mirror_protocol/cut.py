"""The consistent cut: one end per source partition, such that every transaction is wholly below it or wholly above it.

Theory of operation. A target transaction copies each partition up to its end in the cut. So a reader of the target sees
every transaction of the source whole or not at all, if no end splits one, in its partition or between partitions.

What must be known for that are all parts of a transaction. Nothing in a partition's log lists them: a batch has
producer id and epoch, a marker too, and the coordinator's record of the partitions is compacted away. A *probe* makes
them known, by the order of three reads:

    before   the high watermark of every partition
    state    the last state of every transaction, from ``__transaction_state``, read up to its high watermark of now
    after    the high watermark of every partition, again; and all headers below it

A marker below ``before`` was written after its transaction was prepared, and the record of that is in ``state``. If the
transaction is not PrepareCommit there, it is complete, and the coordinator completes a transaction when every marker is
written and replicated. So all its parts lie below ``after``, with their markers, and all are known. Such a transaction
is *whole*. Ends that were read before ``state`` would not do: a marker may lie just behind one.

Which parts are one transaction? Under TV2 each transaction has an epoch of its own: producer id and epoch name it, and
a marker whose epoch is later than that of the data shows that it was TV2. Below TV2 all transactions of one producer id
and epoch have the same name. They become known in groups: if no marker of the producer lies between ``before`` and
``after``, all its parts below are of complete transactions, and none has a part elsewhere. Such a group stays together
as if it were one transaction. (A producer whose transactions are longer than a probe gets such a probe soon.)

A group's offsets are parts in ``__consumer_offsets`` like any other, so that input positions and output of one
transaction arrive together. They also *need* the records that they have passed: an offset below which some records
are not copied yet would be committed too early, so the cut excludes it, and with it its transaction.

The cuts that split nothing are closed under the maximum of each partition: what is below one of two cuts is below their
maximum. So there is a largest one, and lowering an end wherever it splits or excludes a part finds it, in any order.

Under load there may be no cut for long: where some transaction is open at every moment, all of them overlap. To keep
records in order *and* transactions whole is to wait then. A flow can be declared to copy by partition instead, and
without the right to read ``__transaction_state`` (``preparing`` None) there is no other way: each partition is copied
in order and without aborted records up to its first open transaction, as a ``read_committed`` consumer reads it. A part
may lie on both sides of such an end, so a transaction may be torn; the offsets of groups still need their records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from einmal.mirror_protocol.scan import PartitionScan, TransactionPart
from einmal.types import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition

Scans = Mapping[TopicPartition, PartitionScan]
Cut = dict[TopicPartition, int]
"""The end of each partition, exclusive."""


@dataclass(frozen=True, slots=True)
class Probe:
    """``preparing``: the transactions that are PrepareCommit, with the epoch in that record, by producer id; None if
    ``__transaction_state`` cannot be read. ``before`` and ``after``: see the head of this module."""

    before: Mapping[TopicPartition, int]
    preparing: Mapping[ProducerId, ProducerEpoch] | None

    def may_be_preparing(self, producer: ProducerIdAndEpoch) -> bool:
        """Under TV2 the record has the epoch after that of the data."""
        if self.preparing is None:
            return False
        epoch = self.preparing.get(producer.producer_id)
        return epoch is not None and producer.producer_epoch >= epoch - 1


def find_whole(scans: Scans, probe: Probe) -> None:
    """Connect the parts of every transaction that the probe shows to be complete. All partitions are scanned up to
    ``after``, unless ``preparing`` is None."""
    groups: dict[ProducerIdAndEpoch, list[TransactionPart]] = {}
    for scan in scans.values():
        for share in scan.decided:
            if share.whole is None:
                assert share.producer is not None
                groups.setdefault(share.producer, []).append(share)
    for producer, shares in groups.items():
        if probe.preparing is None:
            _connect([share] for share in shares)
        elif not probe.may_be_preparing(producer) and _are_all_known(shares, probe.before):
            _connect([shares])


def _are_all_known(shares: list[TransactionPart], before: Mapping[TopicPartition, int]) -> bool:
    is_early = [share.marker < before.get(share.partition, 0) for share in shares]
    return any(is_early) if all(share.is_unique for share in shares) else all(is_early)


def _connect(groups: Iterable[list[TransactionPart]]) -> None:
    for shares in groups:
        whole = tuple(shares)
        for share in shares:
            share.whole = whole


def largest_cut(scans: Scans, offsets_max: int | None = None, *, splits: bool = False) -> Cut:
    """The largest consistent cut of what is scanned. ``offsets_max``: per partition, beyond its position, where that
    leaves anything to copy. ``splits``: by partition, as the head of this module has it."""
    while offsets_max is not None:
        cut = _largest(
            scans, {partition: scan.position + offsets_max for partition, scan in scans.items()}, splits=splits
        )
        if any(scan.has_content(cut[partition]) for partition, scan in scans.items()):
            return cut
        if all(scan.position + offsets_max >= scan.scanned for scan in scans.values()):
            return cut
        # A transaction, or a chain of transactions that overlap, is longer.
        offsets_max *= 2
    return _largest(scans, {}, splits=splits)


def _largest(scans: Scans, limits: Mapping[TopicPartition, int], *, splits: bool) -> Cut:
    cut = {partition: min(scan.scanned, limits.get(partition, scan.scanned)) for partition, scan in scans.items()}
    for scan in scans.values():
        for share in scan.unfinished():
            _lower(cut, share)
    by_last = {
        partition: sorted((share for share in scan.decided if share.whole and not splits), key=lambda share: share.last)
        for partition, scan in scans.items()
    }
    needs = _needs(scans)
    lowered = deque(scans)
    while lowered:
        partition = lowered.popleft()
        shares, needing = by_last[partition], needs.get(partition, [])
        excluded = []
        while shares and shares[-1].last >= cut[partition]:
            excluded.append(shares.pop())
        while needing and needing[-1][0] > cut[partition]:
            excluded.append(needing.pop()[1])
        for share in excluded:
            for member in share.whole or ():
                if _lower(cut, member):
                    lowered.append(member.partition)
    return cut


def _lower(cut: Cut, share: TransactionPart) -> bool:
    """Exclude the share. Returns whether the end has changed."""
    if share.first >= cut[share.partition]:
        return False
    cut[share.partition] = share.first
    return True


def _needs(scans: Scans) -> dict[TopicPartition, list[tuple[int, TransactionPart]]]:
    """Ends that the cut must have reached for a group's offset to be part of it, in order.

    An offset beyond ``after``, which was read after the offset was committed, is beyond the end of the partition: no
    record will ever be missing below it. What is scanned may end earlier: by partition, or where reading has failed.
    """
    needs: dict[TopicPartition, list[tuple[int, TransactionPart]]] = {}
    for scan in scans.values():
        for share in scan.decided:
            for commit in share.commits:
                needed = scans.get(commit.partition)
                if needed is not None and commit.offset is not None and share.whole:
                    end = min(commit.offset, needed.end)
                    needs.setdefault(commit.partition, []).append((end, share))
    for needing in needs.values():
        needing.sort(key=lambda need: need[0])
    return needs
