"""The state of one transactional id: a value, and the moves from one to the next.

Knows nothing of requests. Each move returns a new value and asserts that ``states.VALID_PREVIOUS`` has it. Epochs move
as in KIP-360 (InitProducerId) and KIP-890 (every transaction of version 2 ends under an epoch of its own); 32,767 is
never assigned to a client.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

from einmal.transactions.states import VALID_PREVIOUS, TransactionState
from einmal.types import (
    EPOCH_MAX,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Instant,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)

NO_TIMESTAMP: Final = -1
_FENCING_EPOCH: Final = ProducerEpoch(EPOCH_MAX + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """The state of a transactional id in ``__transaction_state``.

    ``partitions`` is sorted. The fields that do not take part in ``==`` are not in the log either: a load resets both
    ages (wall clocks of two brokers do not agree).
    """

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    previous_producer_id: ProducerId = NO_PRODUCER_ID
    """The producer id before the latest move."""
    next_producer_id: ProducerId = NO_PRODUCER_ID
    """Only while prepared, and only if the epochs are exhausted: the client's next producer id."""
    timeout_ms: int
    state: TransactionState
    partitions: tuple[TopicPartition, ...] = ()
    last_update_ms: int
    start_ms: int = NO_TIMESTAMP
    client_version: TransactionVersion = TransactionVersion.TV_0
    last_producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    """The epoch before the current one, if its holder may continue with the current one (a lost answer).

    Apache Kafka forgets it with the coordinator, and then treats the retry as a fenced producer's.
    """
    started_at: int | None = field(default=None, compare=False)
    """``monotonic_ms`` of the first partition of an open transaction; None: not known since a load."""
    updated_at: int | None = field(default=None, compare=False)
    """``monotonic_ms`` of the latest move; None: not known since a load."""

    @property
    def producer(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)

    @property
    def is_epoch_exhausted(self) -> bool:
        return self.producer_epoch >= EPOCH_MAX

    @property
    def is_committed(self) -> bool:
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

    def _move(self, state: TransactionState, now: Instant, **changes: Any) -> Transaction:
        assert self.state in VALID_PREVIOUS[state], f"{self.transactional_id}: {self.state.name} to {state.name}"
        return replace(
            self,
            state=state,
            previous_producer_id=self.producer_id,
            last_update_ms=now.wall_ms,
            updated_at=now.monotonic_ms,
            **changes,
        )

    # --- InitProducerId ----------------------------------------------------------------------------------------

    def with_epoch(self, epoch: ProducerEpoch, last_epoch: ProducerEpoch, timeout_ms: int, now: Instant) -> Transaction:
        """At rest under ``epoch``, which is the current one or the next."""
        assert epoch - self.producer_epoch in (0, 1), "an epoch is bumped by one"
        assert epoch <= EPOCH_MAX, "clients never hold the last epoch"
        return self._at_rest(timeout_ms, now, producer_epoch=epoch, last_producer_epoch=last_epoch)

    def with_producer_id(
        self, producer_id: ProducerId, last_epoch: ProducerEpoch, timeout_ms: int, now: Instant
    ) -> Transaction:
        """At rest under epoch 0 of another producer id."""
        assert producer_id != self.producer_id, "a producer id is handed out once"
        return self._at_rest(
            timeout_ms, now, producer_id=producer_id, producer_epoch=ProducerEpoch(0), last_producer_epoch=last_epoch
        )

    def _at_rest(self, timeout_ms: int, now: Instant, **identity: Any) -> Transaction:
        return self._move(
            TransactionState.EMPTY,
            now,
            timeout_ms=timeout_ms,
            partitions=(),
            start_ms=NO_TIMESTAMP,
            started_at=None,
            **identity,
        )

    # --- partitions ----------------------------------------------------------------------------------------------

    def has(self, partitions: frozenset[TopicPartition]) -> bool:
        return partitions.issubset(self.partitions)

    def adding(self, partitions: frozenset[TopicPartition], version: TransactionVersion, now: Instant) -> Transaction:
        """Open, with these partitions added."""
        is_new = self.state is not TransactionState.ONGOING
        return self._move(
            TransactionState.ONGOING,
            now,
            partitions=tuple(sorted(partitions.union(self.partitions))),
            start_ms=now.wall_ms if is_new else self.start_ms,
            started_at=now.monotonic_ms if is_new else self.started_at,
            client_version=version,
        )

    # --- the end -------------------------------------------------------------------------------------------------

    def preparing(
        self, *, committed: bool, version: TransactionVersion, next_producer_id: ProducerId, now: Instant
    ) -> Transaction:
        """The outcome that its client requests. Version 2 moves to the epoch after the client's."""
        moves_epoch = version >= TransactionVersion.TV_2
        assert (next_producer_id != NO_PRODUCER_ID) == (moves_epoch and self.is_epoch_exhausted)
        return self._preparing(
            committed,
            now,
            client_version=version,
            next_producer_id=next_producer_id,
            producer_epoch=self._epoch_after() if moves_epoch else self.producer_epoch,
            last_producer_epoch=self.producer_epoch if moves_epoch else self.last_producer_epoch,
        )

    def fencing(self, *, version: TransactionVersion, next_producer_id: ProducerId, now: Instant) -> Transaction:
        """The coordinator's own abort: the epoch is bumped once (KAFKA-19367), whatever the client's version.

        ``version`` is the cluster's. Under version 2 the fenced producer may ask for the epoch that follows its own
        (KIP-360); before that it may not return.
        """
        assert self.state is TransactionState.ONGOING
        if version >= TransactionVersion.TV_2:
            return self.preparing(committed=False, version=version, next_producer_id=next_producer_id, now=now)
        return self._preparing(
            False,
            now,
            client_version=TransactionVersion.TV_0,
            producer_epoch=self._epoch_after(),
            last_producer_epoch=NO_PRODUCER_EPOCH,
        )

    def _preparing(self, committed: bool, now: Instant, **changes: Any) -> Transaction:
        # The abort of a transaction that never began has no start time; the log needs one.
        start_ms = self.start_ms if self.state is TransactionState.ONGOING else now.wall_ms
        state = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
        return self._move(state, now, start_ms=start_ms, **changes)

    def _epoch_after(self) -> ProducerEpoch:
        return ProducerEpoch(min(self.producer_epoch + 1, _FENCING_EPOCH))

    def completing(self, now: Instant) -> Transaction:
        """Every partition has its marker."""
        identity: dict[str, Any] = {}
        if self.next_producer_id != NO_PRODUCER_ID:
            # The markers went out under epoch 32,767 of the old id. The client sees 32,766, then 0 of the new one.
            identity = {"producer_id": self.next_producer_id, "producer_epoch": ProducerEpoch(0)}
        return self._move(
            TransactionState.COMPLETE_COMMIT if self.is_committed else TransactionState.COMPLETE_ABORT,
            now,
            next_producer_id=NO_PRODUCER_ID,
            partitions=(),
            started_at=None,
            **identity,
        )
