"""As much of Kafka as the commit protocol can see, in one value: a coordinator, partitions, epochs, markers.

A model, not our broker: small enough that thousands of schedules of the pipeline's protocol run in a minute, and with
both transaction versions' rules (KIP-98, KIP-890) where they differ. Requests are applied one at a time; the caller
loses answers and delays requests. A partition's leader may be replaced without knowing it: its answers are stale, and
its writes are never acknowledged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

from einmal.types import ErrorCode, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TransactionVersion

OURS: Final = ProducerId(1)
FOREIGN: Final = ProducerId(2)
"""Another pipeline, whose open transactions hold the last stable offset back."""
NOBODY: Final = ProducerId(-1)
"""Writes outside of transactions."""
_NO_TRANSACTION: Final = 0


@dataclass(frozen=True, slots=True)
class ModelRecord:
    producer_id: ProducerId
    transaction: int
    value: Any


@dataclass(slots=True)
class Log:
    """One partition. ``batches``: what the producer appended under its current epoch (base sequence, count, offset)."""

    entries: list[ModelRecord] = field(default_factory=list)
    epoch: int = -1
    batches: list[tuple[int, int, int]] = field(default_factory=list)
    open_transaction: int | None = None

    @property
    def next_sequence(self) -> int:
        return self.batches[-1][0] + self.batches[-1][1] if self.batches else 0


@dataclass(frozen=True, slots=True)
class Deposed:
    """A leader that was replaced, and is partitioned from all but clients: its records of then, with their markers."""

    high_watermark: int
    visible: frozenset[int]


class ModelState(Enum):
    EMPTY = auto()
    ONGOING = auto()
    ENDING = auto()
    """Decided and answered; markers are still in flight."""
    COMPLETE = auto()


class KafkaModel:
    """``verifies``: ``transaction.partition.verification.enable``; under TV2 partitions are always verified."""

    def __init__(self, version: TransactionVersion, *, verifies: bool = True) -> None:
        self.version = version
        self._verifies = verifies
        self.logs: dict[str, Log] = {}
        self.decided: dict[int, bool] = {}
        """Transactions by number: committed or not. Those absent are open."""
        self.visible: dict[tuple[str, int], bool] = {}
        """(partition, transaction): its marker is in the log."""
        self.deposed: dict[str, Deposed] = {}
        self.left_out: list[str] = []
        """Partitions that had records of a transaction when it was committed without them: they get no marker."""
        self._epoch = -1
        self._last_epoch = -1
        """The identity before the owner's own latest request, so that the request may be repeated."""
        self._producer_id = OURS
        """As its owner knows it; its records are ``OURS`` whatever the id."""
        self._first_epoch = 0
        """The epoch of the present producer id. In this model a later producer id has later epochs."""
        self._is_forgotten = False
        self._state = ModelState.EMPTY
        self._partitions: list[str] = []
        self._transaction = 0
        self._transactions = 0
        self._committed = False
        self._pending_markers: list[str] = []

    # --- the coordinator ------------------------------------------------------------------------------------

    def init_producer_id(self, previous: ProducerIdAndEpoch | None) -> ErrorCode | ProducerIdAndEpoch:
        if self._state is ModelState.ENDING:
            return ErrorCode.concurrent_transactions
        if self._is_forgotten:
            self._is_forgotten, self._first_epoch = False, self._epoch + 1
            self._producer_id = ProducerId(self._producer_id + FOREIGN)
            return self._initialize(-1)
        if previous is not None and previous.producer_epoch < self._first_epoch:
            return ErrorCode.producer_fenced
        if self._state is ModelState.ONGOING:
            self._epoch, self._last_epoch = self._epoch + 1, -1
            self._end(committed=False)
            return ErrorCode.concurrent_transactions if previous is None else ErrorCode.producer_fenced
        if previous is None:
            return self._initialize(-1)
        if previous.producer_epoch == self._epoch:
            return self._initialize(self._epoch)
        return self._identity() if previous.producer_epoch == self._last_epoch else ErrorCode.producer_fenced

    def _initialize(self, last_epoch: int) -> ProducerIdAndEpoch:
        self._epoch, self._last_epoch = self._epoch + 1, last_epoch
        self._state = ModelState.EMPTY
        return self._identity()

    def expire(self) -> None:
        """Forget the transactional id, which has been idle; its open transaction would keep it."""
        if self._state in (ModelState.EMPTY, ModelState.COMPLETE) and self._epoch >= 0:
            self._is_forgotten = True

    @property
    def has_expired(self) -> bool:
        """Whether the transactional id was ever forgotten: then the first driver to request it gets it."""
        return self._is_forgotten or self._first_epoch > 0

    def _is_stranger(self, identity: ProducerIdAndEpoch) -> bool:
        return self._is_forgotten or identity.producer_epoch < self._first_epoch

    def add_partition(self, identity: ProducerIdAndEpoch, partition: str) -> ErrorCode:
        if self._is_stranger(identity):
            return ErrorCode.invalid_producer_id_mapping
        if identity.producer_epoch != self._epoch:
            return ErrorCode.producer_fenced
        if self._state is ModelState.ENDING:
            return ErrorCode.concurrent_transactions
        if self._state is not ModelState.ONGOING:
            self._transactions += 1
            self._transaction = self._transactions
            self._partitions = []
            self._state = ModelState.ONGOING
        if partition not in self._partitions:
            self._partitions.append(partition)
        return ErrorCode.none

    def end_txn(self, identity: ProducerIdAndEpoch, committed: bool) -> ErrorCode | ProducerIdAndEpoch:
        if self._is_stranger(identity):
            return ErrorCode.invalid_producer_id_mapping
        tv2 = self.version is TransactionVersion.TV_2
        is_retry = tv2 and identity.producer_epoch == self._epoch - 1
        if self._state is ModelState.ENDING and (is_retry or identity.producer_epoch == self._epoch):
            return ErrorCode.concurrent_transactions
        if is_retry or (not tv2 and identity.producer_epoch == self._epoch and self._state is ModelState.COMPLETE):
            same = self._state is ModelState.COMPLETE and self._committed == committed
            return self._identity() if same else ErrorCode.invalid_txn_state
        if identity.producer_epoch != self._epoch:
            return ErrorCode.producer_fenced
        if self._state is not ModelState.ONGOING:
            if committed or not tv2:
                return ErrorCode.invalid_txn_state
            self._partitions = []
        if committed:
            self.left_out += [
                name
                for name, log in self.logs.items()
                if log.epoch == self._epoch and log.open_transaction is not None and name not in self._partitions
            ]
        if tv2:
            self._epoch, self._last_epoch = self._epoch + 1, self._epoch
        self._end(committed)
        return self._identity()

    def time_out(self) -> None:
        """The coordinator aborts the owner's open transaction."""
        if self._state is ModelState.ONGOING:
            self._epoch, self._last_epoch = self._epoch + 1, -1
            self._end(committed=False)

    def _end(self, committed: bool) -> None:
        self._state = ModelState.ENDING
        self._committed = committed
        if self._partitions:
            self.decided[self._transaction] = committed
        self._pending_markers = list(self._partitions)
        if not self._pending_markers:
            self._state = ModelState.COMPLETE

    def write_one_marker(self, choice: int) -> bool:
        """Let one marker reach its partition. False: none is in flight."""
        if not self._pending_markers:
            return False
        partition = self._pending_markers.pop(choice % len(self._pending_markers))
        log = self.log(partition)
        self.visible[partition, self._transaction] = True
        if self._epoch > log.epoch:
            log.epoch, log.batches = self._epoch, []
        log.open_transaction = None
        if not self._pending_markers:
            self._state = ModelState.COMPLETE
        return True

    def _identity(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self._producer_id, ProducerEpoch(self._epoch))

    # --- partitions -----------------------------------------------------------------------------------------

    def log(self, partition: str) -> Log:
        return self.logs.setdefault(partition, Log())

    def produce(
        self, identity: ProducerIdAndEpoch, partition: str, sequence: int, values: tuple[Any, ...]
    ) -> ErrorCode | tuple[int, int]:
        """One batch; (first, last) offset. A repeat of a batch of this epoch is acknowledged, not written."""
        log = self.log(partition)
        if identity.producer_epoch < log.epoch:
            return ErrorCode.invalid_producer_epoch
        if identity.producer_epoch == log.epoch:
            for base, count, offset in log.batches[-5:]:
                if (base, count) == (sequence, len(values)):
                    return offset, offset + count - 1
            if sequence != log.next_sequence:
                return ErrorCode.out_of_order_sequence_number
        elif sequence != 0:
            return ErrorCode.out_of_order_sequence_number
        is_first = log.open_transaction is None or identity.producer_epoch > log.epoch
        if is_first and (error := self._verify(identity, partition)):
            return error
        if identity.producer_epoch > log.epoch:
            log.epoch, log.batches = identity.producer_epoch, []
        if is_first:
            log.open_transaction = self._joined(partition)
        assert log.open_transaction is not None
        offset = len(log.entries)
        log.entries += [ModelRecord(OURS, log.open_transaction, value) for value in values]
        log.batches.append((sequence, len(values), offset))
        return offset, offset + len(values) - 1

    def _verify(self, identity: ProducerIdAndEpoch, partition: str) -> ErrorCode:
        """The leader asks the coordinator before a transaction's first append (KIP-890)."""
        if self.version is TransactionVersion.TV_2:
            return self.add_partition(identity, partition)
        if not self._verifies:
            return ErrorCode.none
        if self._is_stranger(identity):
            return ErrorCode.invalid_producer_id_mapping
        if identity.producer_epoch != self._epoch:
            return ErrorCode.producer_fenced
        is_added = self._state is ModelState.ONGOING and partition in self._partitions
        return ErrorCode.none if is_added else ErrorCode.invalid_txn_state

    def _joined(self, partition: str) -> int:
        """The transaction of a first append. Unverified it may be none that the coordinator knows the partition of: it
        gets no marker, and hangs."""
        if self._state is ModelState.ONGOING and partition in self._partitions:
            return self._transaction
        self._transactions += 1
        return self._transactions

    def foreign_begin(self, partition: str) -> int:
        """Another producer's transaction begins in ``partition``; its number."""
        self._transactions += 1
        self.log(partition).entries.append(ModelRecord(FOREIGN, self._transactions, None))
        return self._transactions

    def foreign_end(self, partition: str, transaction: int) -> None:
        self.decided[transaction] = True
        self.visible[partition, transaction] = True

    def append_plain(self, partition: str, leader: Deposed | None) -> int | None:
        """A record in no transaction, for all replicas; its offset. None: never acknowledged, ``leader`` is alone."""
        if leader is not None:
            return None
        self.visible[partition, _NO_TRANSACTION] = True
        self.log(partition).entries.append(ModelRecord(NOBODY, _NO_TRANSACTION, None))
        return self.high_watermark(partition) - 1

    def depose(self, partition: str) -> None:
        """Another broker leads from now on, and its predecessor does not know."""
        markers = frozenset(transaction for where, transaction in self.visible if where == partition)
        self.deposed[partition] = Deposed(self.high_watermark(partition), markers)

    # --- what readers see -----------------------------------------------------------------------------------
    # ``leader``: the node that is asked; None: the real leader.

    def high_watermark(self, partition: str, leader: Deposed | None = None) -> int:
        return len(self.log(partition).entries) if leader is None else leader.high_watermark

    def last_stable_offset(self, partition: str, leader: Deposed | None = None) -> int:
        for offset, entry in enumerate(self._readable(partition, leader)):
            if not self._is_visible(partition, entry, leader):
                return offset
        return self.high_watermark(partition, leader)

    def committed(self, partition: str, leader: Deposed | None = None) -> list[Any]:
        """Our values, as a read_committed reader gets them now."""
        entries = self._readable(partition, leader)[: self.last_stable_offset(partition, leader)]
        return [e.value for e in entries if e.producer_id == OURS and self.decided.get(e.transaction)]

    def has_undecided(self, partition: str, leader: Deposed | None = None) -> bool:
        """Whether there is a record of ours without its transaction's marker."""
        entries = self._readable(partition, leader)
        return any(e.producer_id == OURS and not self._is_visible(partition, e, leader) for e in entries)

    def decided_values(self, partition: str, leader: Deposed | None = None) -> list[Any]:
        """Our committed values up to the high watermark, each by its own transaction's marker."""
        return [
            entry.value
            for entry in self._readable(partition, leader)
            if entry.producer_id == OURS
            and self._is_visible(partition, entry, leader)
            and self.decided.get(entry.transaction)
        ]

    def _readable(self, partition: str, leader: Deposed | None) -> list[ModelRecord]:
        return self.log(partition).entries[: self.high_watermark(partition, leader)]

    def _is_visible(self, partition: str, entry: ModelRecord, leader: Deposed | None) -> bool:
        if leader is not None:
            return entry.transaction in leader.visible
        return self.visible.get((partition, entry.transaction), False)
