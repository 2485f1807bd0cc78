"""State that a partition remembers of each producer id: epoch, the last five batches, the open transaction.

A value machine: ``check`` and ``check_marker`` validate an append against the state and change nothing;
``replay_batch`` and ``replay_marker`` take over what is in the log, at run time and in recovery alike (KIP-98, KIP-360,
KIP-890, KIP-1228). Knows no file.
"""

# Theory of operation
# ===================
#
# The state is a function of the log: only the ``replay_*`` methods change it, and they are called for what has been
# written, in order. So every replica has the same state at the same offset, whichever of them leads recognizes a
# retry that another has accepted, and recovery needs nothing but the batches. (Verifications and idle times are the
# exception: both are of this process only, and losing them costs a retry, never a record.)
#
# Idempotence (KIP-98). A producer numbers its records per partition; a batch carries the first number. The window holds
# the last five batches, as many as a client may have in flight:
#
#   - a batch whose first and last sequence equal one in the window is a duplicate: it is answered with the offset of
#     the original and not written;
#   - the batch right after the last one is next, and is written;
#   - anything else is a gap, OUT_OF_ORDER_SEQUENCE_NUMBER, and the client must not skip it: something before it is
#     lost, or still on its way. A repeat that has left the window looks like a gap too.
#
# A new epoch starts at sequence 0 with an empty window. A producer that is not known (expired, or its records are
# deleted) may start anywhere (KIP-360): nobody knows what would be a gap. Sequences wrap from 2**31 - 1 to 0.
#
# Fencing. A batch of an older epoch is refused, always; that is how a successor keeps its predecessor out. A batch of a
# newer epoch is accepted, because only the coordinator hands out epochs.
#
# Transactions. A transaction is open from its first batch to its marker. Its first offset bounds the last stable
# offset: an *unstable* offset belongs to a transaction that is open (`_open`), or whose marker is in the log but not
# yet below the high watermark (`_unreplicated`). The second kind matters: another leader may not have the marker, and
# a consumer that has read past it would see records of a transaction that is open again. `_open` is ordered by first
# offset without sorting, since a transaction that begins now begins at the end of the log.
#
# A marker ends the transaction, moves the epoch to its own, and is written even if there is no transaction, because
# it fences. Under version 2 (KIP-890) the coordinator raises the epoch with every transaction, so a marker of the
# *current* epoch can only be a repeat of the last one, or late: refused if a transaction of that epoch is open
# (KIP-1228), else it would end a transaction that has nothing to do with it.
#
# Verification (KIP-890). The first batch of a transaction is appended only if the coordinator confirms that the
# partition is part of it; otherwise a late batch could open a transaction that nobody will ever end, and hold the
# last stable offset for good ("hanging transaction"). The answer takes a round trip, in which the world may change,
# so the check is bound to a *guard*: taken before asking, void once a marker has been replayed, presented with the
# append. While it is pending, the lowest sequence asked for is remembered, so that of several batches on their way
# the first is appended first.
#
# Expiry. Idle time is counted on the monotonic clock from the last append or load, never from timestamps that a
# producer chose: a backfill with old timestamps would lose its window at once. A snapshot stores the wall clock's
# time of the last append in Kafka's timestamp field, so that age survives a restart. A producer with an open
# transaction never expires.

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple, NewType

from einmal.log.producer_snapshot import SnapshotEntry, SnapshotPicture, SnapshotTable, decode_entries
from einmal.types import (
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    SEQUENCE_MAX,
    ErrorCode,
    Instant,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    Sequence,
    TransactionVersion,
)
from einmal.wire.record_batch import CONTROL, TRANSACTIONAL, BatchHeader

WINDOW: Final = 5
"""Batches remembered per producer: as many as Kafka's clients may have in flight."""

_UNPACKED_MAX: Final = 100
"""Changed entries that are not packed for a snapshot yet: so many are packed in a fraction of a millisecond."""
_SHIFT_MIN_MS: Final = 60_000
"""Snapshots take account of a wall clock that was set by so much; clocks are corrected by less all the time."""
_STEP: Final = 100
"""Producers that ``expire`` looks at between two of its steps."""

VerificationGuard = NewType("VerificationGuard", int)
CONTINUES: Final = VerificationGuard(0)
"""The guard of a batch that needed no verification: its transaction must still be open here when it is appended."""


class AppendOrigin(Enum):
    """Who appends, and so what has to be checked."""

    CLIENT = "client"
    """Everything."""
    COORDINATOR = "coordinator"
    """The epoch only: a coordinator's batches have no sequences."""
    REPLICATION = "replication"
    """Nothing: the leader has checked."""


# Looked up once: every append needs them.
_NONE: Final = ErrorCode.none
CLIENT: Final = AppendOrigin.CLIENT
REPLICATION: Final = AppendOrigin.REPLICATION


class BatchMetadata(NamedTuple):
    """One batch of the window. ``timestamp``: the batch's largest, in ms."""

    first_sequence: Sequence
    last_sequence: Sequence
    first_offset: Offset
    last_offset: Offset
    timestamp: int


class CompletedTransaction(NamedTuple):
    """A transaction that a marker has ended. ``last_offset`` is the marker's."""

    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    committed: bool
    last_stable_offset: Offset
    """The first offset of the oldest transaction that is open after this one; else the offset after the marker."""


class KnownProducer(NamedTuple):
    """A producer as DescribeProducers (KIP-664) shows it; -1 where there is none."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    last_sequence: Sequence
    last_timestamp: int
    coordinator_epoch: LeaderEpoch
    current_txn_start_offset: Offset


class ProducerEntry:
    __slots__ = (
        "batches",
        "coordinator_epoch",
        "current_txn_began_ms",
        "current_txn_first_offset",
        "is_packed",
        "last_seen_ms",
        "last_timestamp",
        "producer_epoch",
        "slot",
    )

    def __init__(self) -> None:
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.coordinator_epoch = LeaderEpoch(-1)
        self.batches: list[BatchMetadata] = []
        """Oldest first; all of ``producer_epoch``."""
        self.current_txn_first_offset = NO_OFFSET
        """-1: no transaction is open."""
        self.current_txn_began_ms = 0
        """Monotonic time of its first append here, or of the load of this log."""
        self.last_timestamp = -1
        self.last_seen_ms = 0
        """Monotonic time of the last append."""
        self.slot = -1
        """Where it is in the table of snapshots; -1: nowhere yet."""
        self.is_packed = True
        """Whether that has its last change, or it is noted that it has not."""

    @property
    def last_sequence(self) -> Sequence:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def find(self, header: BatchHeader) -> BatchMetadata | None:
        """The batch of the window that has exactly these sequences."""
        first = header.base_sequence
        for batch in self.batches:
            if batch.first_sequence == first and batch.last_sequence == header.last_sequence:
                return batch
        return None

    def move_to(self, epoch: ProducerEpoch) -> None:
        if self.producer_epoch != epoch:
            self.producer_epoch = epoch
            self.batches.clear()


class _Verification:
    """A first batch of a transaction whose producer is asked about at the coordinator right now (KIP-890)."""

    __slots__ = ("epoch", "guard", "lowest_sequence", "since_ms", "starts_at_zero")

    def __init__(self, guard: VerificationGuard, epoch: ProducerEpoch, sequence: Sequence, since_ms: int) -> None:
        self.guard = guard
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.since_ms = since_ms
        self.starts_at_zero = False


class ProducerStates:
    def __init__(self) -> None:
        self._entries: dict[ProducerId, ProducerEntry] = {}
        # First offset of each open transaction to its producer, in order of the offset: a new one is always last.
        self._open: dict[Offset, ProducerId] = {}
        # First offset to marker's offset of those that are over, but whose marker is not below the high watermark.
        self._unreplicated: dict[Offset, Offset] = {}
        self._verifications: dict[ProducerId, _Verification] = {}
        self._last_guard = 0
        self._now = Instant(0, 0)
        # What a snapshot has, but for the changes of these producers.
        self._table = SnapshotTable()
        self._unpacked: list[ProducerId] = []
        # The wall clock's time at zero of the monotonic clock, when the table was begun.
        self._wall_zero = 0

    # --- questions -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._entries)

    def entry(self, producer_id: ProducerId) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    @property
    def first_unstable_offset(self) -> Offset | None:
        """Where the oldest transaction begins that is open, or whose marker the high watermark has not passed."""
        first_open = next(iter(self._open), None)
        if not self._unreplicated:
            return first_open
        first_unreplicated = min(self._unreplicated)
        return first_unreplicated if first_open is None else min(first_open, first_unreplicated)

    @property
    def open_count(self) -> int:
        """Transactions that are open."""
        return len(self._open)

    def held_since_ms(self) -> int | None:
        """When the oldest open transaction began, as far as this process knows; None: none is open."""
        producer_id = next(iter(self._open.values()), None)
        return None if producer_id is None else self._entries[producer_id].current_txn_began_ms

    def has_open_transaction(self, producer: ProducerIdAndEpoch) -> bool:
        entry = self._entries.get(producer.producer_id)
        return (
            entry is not None
            and entry.current_txn_first_offset >= 0
            and entry.producer_epoch == producer.producer_epoch
        )

    def describe(self) -> Iterator[KnownProducer]:
        """The producers that are known now, each as it is when it is taken; one that is forgotten meanwhile is left
        out."""
        for producer_id in list(self._entries):
            entry = self._entries.get(producer_id)
            if entry is not None:
                yield KnownProducer(
                    producer_id,
                    entry.producer_epoch,
                    entry.last_sequence,
                    entry.last_timestamp,
                    entry.coordinator_epoch,
                    entry.current_txn_first_offset,
                )

    # --- checking an append ----------------------------------------------------------------------------------

    def check(
        self, header: BatchHeader, origin: AppendOrigin, verification: VerificationGuard | None = None
    ) -> BatchMetadata | ErrorCode:
        """The original of a duplicate; else the error that refuses the batch, or ``ErrorCode.none``.

        ``header`` is a data batch's with a producer id. With a guard, the first batch of a transaction is refused
        unless the guard is still that of ``begin_verification``.
        """
        if origin is REPLICATION:
            return _NONE
        entry = self._entries.get(header.producer_id)
        epoch = header.producer_epoch
        is_transactional = header.attributes & TRANSACTIONAL != 0
        is_next = False
        if origin is CLIENT and entry is not None and entry.producer_epoch == epoch:
            batches = entry.batches
            # Nearly always it is the next; then the window need not be searched.
            is_next = len(batches) > 0 and header.base_sequence == batches[-1].last_sequence + 1
            if not is_next:
                # Sequences that restart at 0 under an unchanged epoch look like this, too, and would be acknowledged
                # without being written. A producer that restarts them needs a new epoch.
                original = entry.find(header)
                if original is not None:
                    return original
        pending = self._verifications.get(header.producer_id) if self._verifications else None
        if entry is not None and epoch < entry.producer_epoch:
            return ErrorCode.invalid_producer_epoch
        if verification is not None and is_transactional:
            # An open transaction of an earlier epoch does not count. Its marker is on its way, and would end a batch of
            # the next transaction that was appended to it: the records of that batch were lost.
            is_open = entry is not None and entry.current_txn_first_offset >= 0 and entry.producer_epoch == epoch
            if not is_open and (pending is None or pending.guard != verification):
                return ErrorCode.invalid_txn_state
        is_free = origin is not CLIENT or (is_next and pending is None)
        if not is_free and not self._is_in_sequence(entry, header, pending):
            return ErrorCode.out_of_order_sequence_number
        if not is_transactional and entry is not None and entry.current_txn_first_offset >= 0:
            return ErrorCode.invalid_txn_state
        return _NONE

    @staticmethod
    def _is_in_sequence(entry: ProducerEntry | None, header: BatchHeader, pending: _Verification | None) -> bool:
        first = header.base_sequence
        if pending is not None:
            if first > pending.lowest_sequence:
                return False
            if pending.starts_at_zero and first != 0 and (entry is None or not entry.batches):
                return False
        if entry is None:
            # Its state was deleted or has expired: any sequence may be the next (KIP-360).
            return True
        if entry.producer_epoch != header.producer_epoch:
            return first == 0
        last = entry.batches[-1].last_sequence if entry.batches else NO_SEQUENCE
        return first == last + 1 or (first == 0 and last == SEQUENCE_MAX)

    def check_marker(
        self, producer: ProducerIdAndEpoch, coordinator_epoch: int, transaction_version: TransactionVersion
    ) -> ErrorCode:
        """Whether a coordinator may end this producer's transaction here.

        A TV2 coordinator moves the epoch before it writes the marker, so a marker of the current epoch belongs to a
        transaction that is over (KIP-1228): written again when it repeats the last marker, refused when the epoch is
        already used by a new transaction.
        """
        entry = self._entries.get(producer.producer_id)
        if entry is None:
            return ErrorCode.none
        epoch = producer.producer_epoch
        if epoch < entry.producer_epoch:
            return ErrorCode.invalid_producer_epoch
        is_repeat = epoch == entry.producer_epoch and entry.current_txn_first_offset < 0
        if transaction_version >= TransactionVersion.TV_2 and epoch == entry.producer_epoch and not is_repeat:
            return ErrorCode.invalid_producer_epoch
        if coordinator_epoch < entry.coordinator_epoch:
            return ErrorCode.transaction_coordinator_fenced
        return ErrorCode.none

    # --- verification (KIP-890) ------------------------------------------------------------------------------

    def begin_verification(
        self, producer: ProducerIdAndEpoch, base_sequence: Sequence, transaction_version: TransactionVersion
    ) -> VerificationGuard | None:
        """A guard to append the first batch of a transaction with, once the coordinator has confirmed it.

        None: the transaction is open here already, or the producer is fenced here, as the append will find: append
        with ``CONTINUES``. A marker of the producer makes the guard void, so a batch that was verified before the
        transaction ended cannot be written after it; not where that marker begins the very epoch that is asked for, as
        under version 2: then it has ended the transaction before. Until an append succeeds, the lowest sequence asked
        for is remembered: a later batch cannot slip in first.
        """
        entry = self._entries.get(producer.producer_id)
        is_fenced = entry is not None and producer.producer_epoch < entry.producer_epoch
        if is_fenced or self.has_open_transaction(producer):
            return None
        pending = self._verifications.get(producer.producer_id)
        epoch = producer.producer_epoch
        if pending is None:
            self._last_guard += 1
            guard = VerificationGuard(self._last_guard)
            pending = _Verification(guard, epoch, base_sequence, self._now.monotonic_ms)
            self._verifications[producer.producer_id] = pending
        elif epoch > pending.epoch:
            pending.epoch, pending.lowest_sequence = epoch, base_sequence
        elif epoch == pending.epoch and base_sequence < pending.lowest_sequence:
            pending.lowest_sequence = base_sequence
        pending.starts_at_zero |= transaction_version >= TransactionVersion.TV_2
        return pending.guard

    # --- replay: the only mutators ---------------------------------------------------------------------------

    def replay_batch(
        self, header: BatchHeader, first_offset: Offset, last_offset: Offset, timestamp: int, now: Instant
    ) -> None:
        """A data batch with a producer id is in the log.

        Offsets and the largest timestamp come separately from the header, which may still have those of its producer.
        """
        self._now = now
        producer_id = header.producer_id
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = ProducerEntry()
        if entry.producer_epoch != header.producer_epoch:
            entry.move_to(header.producer_epoch)
        batches = entry.batches
        assert not batches or batches[-1].last_offset < first_offset, "the window is in the log's order"
        batches.append(BatchMetadata(header.base_sequence, header.last_sequence, first_offset, last_offset, timestamp))
        if len(batches) > WINDOW:
            del batches[0]
        entry.last_timestamp = timestamp
        entry.last_seen_ms = now.monotonic_ms
        if header.attributes & TRANSACTIONAL:
            if self._verifications:
                self._verifications.pop(producer_id, None)
            if entry.current_txn_first_offset < 0:
                entry.current_txn_first_offset = first_offset
                entry.current_txn_began_ms = now.monotonic_ms
                is_last = not self._open or next(reversed(self._open)) < first_offset
                assert is_last, "the first of the open transactions is the oldest: the last stable offset depends on it"
                self._open[first_offset] = producer_id
        if entry.is_packed:
            self._note(producer_id, entry)

    def replay_marker(
        self,
        producer: ProducerIdAndEpoch,
        *,
        committed: bool,
        coordinator_epoch: int,
        offset: Offset,
        timestamp: int,
        now: Instant,
    ) -> CompletedTransaction | None:
        """A marker is in the log at ``offset``. None: the producer had no data here."""
        self._now = now
        producer_id = producer.producer_id
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = ProducerEntry()
        entry.move_to(producer.producer_epoch)
        entry.coordinator_epoch = LeaderEpoch(coordinator_epoch)
        entry.last_timestamp = timestamp
        entry.last_seen_ms = now.monotonic_ms
        pending = self._verifications.get(producer_id)
        if pending is not None and not (pending.starts_at_zero and pending.epoch == producer.producer_epoch):
            del self._verifications[producer_id]
        first_offset = entry.current_txn_first_offset
        if first_offset >= 0:
            entry.current_txn_first_offset = NO_OFFSET
            owner = self._open.pop(first_offset)
            assert owner == producer_id, "a batch, and so a transaction's first offset, has one producer"
        if entry.is_packed:
            self._note(producer_id, entry)
        if first_offset < 0:
            return None
        assert first_offset < offset, "a marker is behind the data that it decides"
        self._unreplicated[first_offset] = offset
        last_stable_offset = next(iter(self._open), Offset(offset + 1))
        return CompletedTransaction(producer_id, first_offset, offset, committed, last_stable_offset)

    def advance_high_watermark(self, high_watermark: Offset) -> None:
        """Transactions whose marker is below it are stable."""
        if self._unreplicated:
            self._unreplicated = {
                first: marker for first, marker in self._unreplicated.items() if marker >= high_watermark
            }

    def expire(self, now: Instant, expiration_ms: int) -> Iterator[None]:
        """Forget producers that have been idle so long; never one whose transaction is open.

        In steps, between which anything may happen: their number is up to clients.
        """
        self._now = now
        limit = now.monotonic_ms - expiration_ms
        known = list(self._entries)
        for start in range(0, len(known), _STEP):
            for producer_id in known[start : start + _STEP]:
                entry = self._entries.get(producer_id)
                if entry is not None and entry.last_seen_ms <= limit and entry.current_txn_first_offset < 0:
                    self._forget(producer_id, entry)
            yield
        asked = list(self._verifications)
        for start in range(0, len(asked), _STEP):
            for producer_id in asked[start : start + _STEP]:
                pending = self._verifications.get(producer_id)
                if pending is not None and pending.since_ms <= limit:
                    del self._verifications[producer_id]
            yield

    def _forget(self, producer_id: ProducerId, entry: ProducerEntry) -> None:
        del self._entries[producer_id]
        if entry.slot >= 0:
            moved = self._table.remove(entry.slot)
            if moved is not None:
                self._entries[moved].slot = entry.slot

    def refill_window(self, header: BatchHeader) -> None:
        """A batch from before the snapshot that this state came from: a snapshot holds only the last of the window.

        To be called newest first.
        """
        entry = self._entries.get(header.producer_id)
        if entry is None or entry.producer_epoch != header.producer_epoch or header.attributes & CONTROL:
            return
        batches = entry.batches
        if batches and len(batches) < WINDOW and header.last_offset < batches[0].first_offset:
            first, last = header.base_sequence, header.last_sequence
            metadata = BatchMetadata(first, last, header.base_offset, header.last_offset, header.max_timestamp)
            batches.insert(0, metadata)

    # --- snapshots -------------------------------------------------------------------------------------------

    def picture(self) -> SnapshotPicture:
        """The state for a snapshot, whose bytes can be made later, in the background. Costs the same for any number."""
        self._pack()
        wall_zero = self._now.wall_ms - self._now.monotonic_ms
        shift_ms = wall_zero - self._wall_zero
        return self._table.picture(shift_ms if abs(shift_ms) >= _SHIFT_MIN_MS else 0)

    def _note(self, producer_id: ProducerId, entry: ProducerEntry) -> None:
        """An entry has changed, in all that it is going to change by now."""
        entry.is_packed = False
        self._unpacked.append(producer_id)
        if len(self._unpacked) >= _UNPACKED_MAX:
            self._pack()

    def _pack(self) -> None:
        """Bring the table up to date."""
        if not len(self._table):
            self._wall_zero = self._now.wall_ms - self._now.monotonic_ms
        for producer_id in self._unpacked:
            entry = self._entries.get(producer_id)
            if entry is not None and not entry.is_packed:
                entry.is_packed = True
                packed = self._snapshot_entry(producer_id, entry)
                if entry.slot < 0:
                    entry.slot = self._table.add(packed)
                else:
                    self._table.replace(entry.slot, packed)
        self._unpacked.clear()

    def _snapshot_entry(self, producer_id: ProducerId, entry: ProducerEntry) -> SnapshotEntry:
        last = entry.batches[-1] if entry.batches else None
        first = entry.current_txn_first_offset
        assert first < 0 or self._open.get(first) == producer_id, "an open transaction is loaded from here alone"
        return SnapshotEntry(
            producer_id,
            entry.producer_epoch,
            last.last_sequence if last else NO_SEQUENCE,
            last.last_offset if last else NO_OFFSET,
            last.last_offset - last.first_offset if last else 0,
            max(0, self._wall_zero + entry.last_seen_ms),
            entry.coordinator_epoch,
            first,
        )

    @classmethod
    def decode_snapshot(cls, data: bytes, now: Instant, expiration_ms: int) -> ProducerStates:
        """The state that a ``.snapshot`` file holds. Raises ValueError when it is not whole."""
        states = cls()
        states._now = now
        for entry in decode_entries(data):
            states._load(entry, now, expiration_ms)
        states._open = dict(sorted(states._open.items()))
        return states

    def _load(self, loaded: SnapshotEntry, now: Instant, expiration_ms: int) -> None:
        producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp, coordinator_epoch, first = loaded
        idle_ms = max(0, now.wall_ms - timestamp)
        if first < 0 and idle_ms >= expiration_ms:
            return
        entry = ProducerEntry()
        entry.producer_epoch = ProducerEpoch(epoch)
        entry.coordinator_epoch = LeaderEpoch(coordinator_epoch)
        entry.last_timestamp = timestamp
        entry.last_seen_ms = now.monotonic_ms - idle_ms
        if last_offset >= 0:
            has_sequence = last_sequence != NO_SEQUENCE
            first_sequence = (last_sequence - offset_delta) & SEQUENCE_MAX if has_sequence else NO_SEQUENCE
            entry.batches.append(
                BatchMetadata(
                    Sequence(first_sequence),
                    Sequence(last_sequence),
                    Offset(last_offset - offset_delta),
                    Offset(last_offset),
                    timestamp,
                )
            )
        self._entries[ProducerId(producer_id)] = entry
        if first >= 0:
            entry.current_txn_first_offset = Offset(first)
            entry.current_txn_began_ms = now.monotonic_ms
            self._open[Offset(first)] = ProducerId(producer_id)
        self._note(ProducerId(producer_id), entry)
