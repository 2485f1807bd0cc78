"""Disabled defences of two-phase commit (KIP-939), from outside, as ``cluster_mutants``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from einmal.client.aio.producing.transactions import Transactions
from einmal.client.cores.transaction_core import TransactionCore, TxnPhase
from einmal.client.prepared_txn_state import PreparedTxnState
from einmal.shard.decision import Decision
from einmal.transactions import coordinator
from einmal.transactions.coordinator import InitProducerIdResult, TransactionCoordinator, TransactionDecision
from einmal.transactions.records import TransactionRecord
from einmal.transactions.transaction import Transaction
from einmal.types import ErrorCode, ProducerIdAndEpoch, TransactionVersion
from einmal.workloads.dual_writes import WrittenDatabase


def without_waiting_for_the_decision(patch: pytest.MonkeyPatch) -> None:
    """A transaction of a two-phase commit has a timeout, as any other."""
    patch.setattr(coordinator, "NO_TIMEOUT_MS", 2_000)


def without_keeping_the_prepared(patch: pytest.MonkeyPatch) -> None:
    """An instance that asks to keep its predecessor's transaction aborts it."""

    def abort(self: TransactionCoordinator, transaction: Transaction, two_phase: Any, now: Any) -> Any:
        return self._init_over_open(transaction, None, now)

    patch.setattr(TransactionCoordinator, "_keep", abort)


def without_a_second_pair(patch: pytest.MonkeyPatch) -> None:
    """Who keeps a transaction gets its pair, which its predecessor has as well."""

    def same(self: TransactionCoordinator, transaction: Transaction, two_phase: Any, now: Any) -> Any:
        pair = transaction.producer
        return Decision(response=InitProducerIdResult(ErrorCode.none, *pair, *pair))

    patch.setattr(TransactionCoordinator, "_keep", same)


def without_moving_past_the_epoch_that_kept(patch: pytest.MonkeyPatch) -> None:
    """After the end of a kept transaction its client continues under the epoch that ended it."""
    preparing_kept = Transaction._preparing_kept

    def same(self: Transaction, *how: Any) -> Transaction:
        producer_id, epoch = self.client
        return replace(preparing_kept(self, *how), next_producer_id=producer_id, next_producer_epoch=epoch)

    patch.setattr(Transaction, "_preparing_kept", same)


def without_fencing_who_prepared(patch: pytest.MonkeyPatch) -> None:
    """The pair of a kept transaction still ends it."""
    end_txn = TransactionCoordinator.end_txn

    def either(self: TransactionCoordinator, transactional_id: str, producer: ProducerIdAndEpoch, **how: Any) -> Any:
        transaction = self.transactions.get(transactional_id)
        if transaction is not None and transaction.is_kept and producer == transaction.producer:
            producer = transaction.client
        return end_txn(self, transactional_id, producer, **how)

    patch.setattr(TransactionCoordinator, "end_txn", either)


def without_sparing_open_transactions_from_expiry(patch: pytest.MonkeyPatch) -> None:
    """A transactional id expires while its transaction is open. (After a second here.)"""

    def forget(self: TransactionCoordinator, now: Any) -> Iterator[TransactionDecision[None]]:
        old = [
            TransactionRecord(each.transactional_id, None)
            for each in self.transactions.values()
            if each.updated_at is not None and each.updated_at <= now.monotonic_ms - 1_000
        ]
        self._next_expiry_sweep = now.monotonic_ms + 250
        yield Decision(records=tuple(old), response=None)

    loaded = TransactionCoordinator.loaded

    def soon(self: TransactionCoordinator, now: Any) -> Any:
        decisions = loaded(self, now)
        self._next_expiry_sweep = now.monotonic_ms + 250
        return decisions

    patch.setattr(TransactionCoordinator, "_forget_idle", forget)
    patch.setattr(TransactionCoordinator, "loaded", soon)


def without_comparing_the_state(patch: pytest.MonkeyPatch) -> None:
    """A kept transaction is committed, whatever the database has committed."""
    decision = TransactionCore.decision

    def commit(self: TransactionCore, committed: PreparedTxnState) -> bool | None:
        wanted = decision(self, committed)
        return True if self.state is TxnPhase.PREPARED else wanted

    patch.setattr(TransactionCore, "decision", commit)


def without_flushing_before_the_decision(patch: pytest.MonkeyPatch) -> None:
    """A transaction is prepared while some of its records are not at the brokers."""

    async def at_once(self: Transactions) -> PreparedTxnState:
        self.core.begin_prepare()
        return self.core.prepare()

    patch.setattr(Transactions, "prepare", at_once)


def without_a_pair_for_each_transaction(patch: pytest.MonkeyPatch) -> None:
    """A transaction that can be prepared is of version 1: the next one has its pair, and so its state."""
    begin = TransactionCore.begin

    def older(self: TransactionCore, version: TransactionVersion) -> None:
        begin(self, version)
        self.version = TransactionVersion.TV_1

    patch.setattr(TransactionCore, "begin", older)


def without_fencing_in_the_database(patch: pytest.MonkeyPatch) -> None:
    """A writer whose transaction was aborted by its successor may still commit the database's part of it."""
    patch.setattr(WrittenDatabase, "check", lambda self, owner: None)
