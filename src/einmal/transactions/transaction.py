"""The state of one transactional id: a value, and the moves from one to the next.

Knows nothing of requests. Each move returns a new value and asserts that ``states.VALID_PREVIOUS`` has it. Epochs move
as in KIP-360 (InitProducerId) and KIP-890 (every transaction of version 2 ends under an epoch of its own); 32,767 is
never assigned to a client.

A *kept* transaction (KIP-939) has two pairs of producer id and epoch. It is still the one that its first owner opened,
so its markers are written under that owner's pair; the instance that keeps it has a later pair, ``client``, and only
that one may end it. As in Apache Kafka's records, ``producer_id`` and ``producer_epoch`` stay the transaction's, so
that a coordinator that does not know the second pair still writes the right markers.
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
NO_TIMEOUT_MS: Final = 2**31 - 1
"""The timeout of a transaction that takes part in a two-phase commit: only its client or an operator ends it."""
NO_NEXT_TIMEOUT: Final = -1
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
    """While prepared, if the epochs are exhausted or the transaction was kept: the client's next producer id. While
    open and kept: the client's."""
    next_producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    """The epoch that belongs to ``next_producer_id``, if the transaction is kept or was kept until its end."""
    next_timeout_ms: int = NO_NEXT_TIMEOUT
    """The timeout of the transactions after a kept one: its client's. Apache Kafka's records do not have it."""
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
    def is_kept(self) -> bool:
        """Whether InitProducerId has kept the transaction for a later instance (KIP-939)."""
        return self.next_producer_epoch != NO_PRODUCER_EPOCH

    @property
    def client(self) -> ProducerIdAndEpoch:
        """The pair under which requests are accepted."""
        return ProducerIdAndEpoch(self.next_producer_id, self.next_producer_epoch) if self.is_kept else self.producer

    @property
    def is_two_phase(self) -> bool:
        """Whether its transactions take part in two-phase commits: they never time out (KIP-939)."""
        return self.timeout_ms == NO_TIMEOUT_MS

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether the client's next epoch needs another producer id."""
        return self.client.producer_epoch >= EPOCH_MAX

    @property
    def is_committed(self) -> bool:
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

    def _move(self, state: TransactionState, now: Instant, **changes: Any) -> Transaction:
        assert self.state in VALID_PREVIOUS[state], f"{self.transactional_id}: {self.state.name} to {state.name}"
        unless_changed = {"previous_producer_id": self.client.producer_id}
        return replace(
            self,
            state=state,
            last_update_ms=now.wall_ms,
            updated_at=now.monotonic_ms,
            **{**unless_changed, **changes},
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

    def keeping(
        self, next_producer_id: ProducerId, *, timeout_ms: int, next_timeout_ms: int, now: Instant
    ) -> Transaction:
        """Still open, for an instance whose pair follows every earlier one (KIP-939).

        ``next_producer_id``: as for ``preparing``. ``timeout_ms``: of the kept transaction.
        """
        assert self.state is TransactionState.ONGOING
        producer_id, epoch = self._client_after(next_producer_id)
        return self._move(
            TransactionState.ONGOING,
            now,
            timeout_ms=timeout_ms,
            next_timeout_ms=next_timeout_ms,
            next_producer_id=producer_id,
            next_producer_epoch=epoch,
            last_producer_epoch=NO_PRODUCER_EPOCH,
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
        if self.is_kept:
            return self._preparing_kept(committed, version, next_producer_id, now)
        return self._preparing(
            committed,
            now,
            client_version=version,
            next_producer_id=next_producer_id,
            producer_epoch=self._epoch_after() if moves_epoch else self.producer_epoch,
            last_producer_epoch=self.producer_epoch if moves_epoch else self.last_producer_epoch,
        )

    def _preparing_kept(
        self, committed: bool, version: TransactionVersion, next_producer_id: ProducerId, now: Instant
    ) -> Transaction:
        """Markers follow the transaction's own epoch, and its client moves past the epoch that kept it.

        That epoch may be the markers' own. A delayed EndTxn under it would end the next transaction, if the client
        continued with it.
        """
        assert version >= TransactionVersion.TV_2, "before version 2 no EndTxn brings the next epoch"
        producer_id, epoch = self._client_after(next_producer_id)
        return self._preparing(
            committed,
            now,
            client_version=version,
            producer_epoch=self._epoch_after(),
            last_producer_epoch=self.client.producer_epoch,
            next_producer_id=producer_id,
            next_producer_epoch=epoch,
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

    def _client_after(self, next_producer_id: ProducerId) -> ProducerIdAndEpoch:
        assert (next_producer_id != NO_PRODUCER_ID) == self.is_epoch_exhausted
        if next_producer_id != NO_PRODUCER_ID:
            return ProducerIdAndEpoch(next_producer_id, ProducerEpoch(0))
        producer_id, epoch = self.client
        return ProducerIdAndEpoch(producer_id, ProducerEpoch(epoch + 1))

    def completing(self, now: Instant) -> Transaction:
        """Every partition has its marker."""
        identity: dict[str, Any] = {}
        if self.is_kept:
            # The client that ended it may repeat its EndTxn: that one's id is the previous one, not the markers'.
            producer_id, epoch = self.client
            identity = {
                "producer_id": producer_id,
                "producer_epoch": epoch,
                "previous_producer_id": self.previous_producer_id,
                "timeout_ms": self.timeout_ms if self.next_timeout_ms == NO_NEXT_TIMEOUT else self.next_timeout_ms,
            }
        elif self.next_producer_id != NO_PRODUCER_ID:
            # The markers went out under epoch 32,767 of the old id. The client sees 32,766, then 0 of the new one.
            identity = {"producer_id": self.next_producer_id, "producer_epoch": ProducerEpoch(0)}
        return self._move(
            TransactionState.COMPLETE_COMMIT if self.is_committed else TransactionState.COMPLETE_ABORT,
            now,
            next_producer_id=NO_PRODUCER_ID,
            next_producer_epoch=NO_PRODUCER_EPOCH,
            next_timeout_ms=NO_NEXT_TIMEOUT,
            partitions=(),
            started_at=None,
            **identity,
        )
