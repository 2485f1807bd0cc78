"""The transactions of one run: the requests to their coordinator, and what is known of the open one.

One transaction at a time, under identities that the committer keeps. Knows nothing of Spark.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping

from einmal.client import PreparedTxnState, TransactionDriver
from einmal.client.aio.producing.transaction_requests import KeptTransaction
from einmal.client.errors import FatalError, KafkaError
from einmal.client.records import OffsetAndMetadata
from einmal.options.sink import TRANSACTION_TIMEOUT_MS, TWO_PHASE_COMMIT
from einmal.types import ErrorCode, ProducerIdAndEpoch, TopicPartition, TransactionVersion


class KafkaTransactions:
    """Calls raise what ``TransactionDriver`` raises."""

    def __init__(self, client: Mapping[str, str], transactional_id: str, *, two_phase: bool = False) -> None:
        """``client``: settings under Kafka's names. ``two_phase``: transactions can be prepared."""
        self._is_two_phase = two_phase
        self._client = dict(client) | {"transactional.id": transactional_id}
        self._timeouts = _timeouts(client)
        self._requests = self._connected()
        self._is_empty = True
        """The coordinator knows of no partition in the transaction."""
        self._open: ProducerIdAndEpoch | None = None
        """Whose transaction has begun, and has not been ended."""
        self._began: float | None = None
        """When the first partition was added: from then on the coordinator may count the transaction's time."""
        self.version = TransactionVersion.TV_1

    @property
    def timeout_s(self) -> float:
        """A transaction that can be prepared has none."""
        return math.inf if self._is_two_phase else self._timeouts[0] / 1000

    @property
    def age_s(self) -> float:
        """Age of the transaction that was begun last, ended or not."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    def init_producer_id(self, previous: ProducerIdAndEpoch | None) -> ProducerIdAndEpoch:
        """Acquire the transactional.id, or a fresh epoch of it."""
        try:
            identity = self._requests.init_producer_id(previous)
        except FatalError as error:
            if error.code is not ErrorCode.invalid_transaction_timeout or len(self._timeouts) == 1:
                raise
            # The cluster's transaction.max.timeout.ms is lower; without the right to read it, only trying shows.
            del self._timeouts[0]
            self._requests.close()
            self._requests = self._connected()
            return self.init_producer_id(previous)
        self._acquired()
        return identity

    def keep_prepared_txn(self) -> KeptTransaction:
        """Acquire the transactional.id, and keep the transaction that its former owner has left open."""
        kept = self._requests.keep_prepared_txn()
        self._acquired()
        return kept

    def complete(self, kept: KeptTransaction, committed: PreparedTxnState) -> ProducerIdAndEpoch:
        """Commit what was kept if it is what the database has committed, else abort it; the next identity."""
        return self._requests.complete_transaction(kept, committed)

    def _acquired(self) -> None:
        self.version = self._requests.transaction_version
        self._is_empty = True

    def abort_held(self, identity: ProducerIdAndEpoch) -> ProducerIdAndEpoch | None:
        """Abort what a run before this one may have left open; the next transaction's identity under TV2."""
        return self._requests.end_txn(identity, committed=False)

    def prepared(self, identity: ProducerIdAndEpoch) -> PreparedTxnState:
        """The name of the open transaction. Empty if the coordinator knows of none: its identity is not used up, and
        would name the next transaction, too."""
        return PreparedTxnState() if self._is_empty else PreparedTxnState(identity)

    @property
    def is_open(self) -> bool:
        """Whether a transaction was begun, and has not been ended."""
        return self._open is not None

    def begin(self, identity: ProducerIdAndEpoch) -> None:
        """Nothing is sent: a transaction begins at its coordinator with its first partition."""
        self._began = None
        self._open = identity

    def add(self, identity: ProducerIdAndEpoch, partition: TopicPartition) -> None:
        """To be called before the first record of every partition."""
        self._is_empty = False
        if self._began is None:
            self._began = time.monotonic()
        self._requests.add_partitions(identity, [partition])

    def commit_offsets(
        self, identity: ProducerIdAndEpoch, group_id: str, positions: Mapping[TopicPartition, OffsetAndMetadata | int]
    ) -> None:
        if positions:
            self._is_empty = False
        self._requests.txn_offset_commit(identity, group_id, positions)

    def end(self, identity: ProducerIdAndEpoch, *, committed: bool) -> ProducerIdAndEpoch | None:
        """Commit or abort; the next transaction's identity under TV2, None if it has not changed."""
        self._open = None
        if self._is_empty and (committed or self.version < TransactionVersion.TV_2):
            # The coordinator knows of no transaction, and would answer INVALID_TXN_STATE.
            return None
        following = self._requests.end_txn(identity, committed=committed)
        self._is_empty = True
        return following

    def abandon(self) -> None:
        """Abort an open transaction if possible, so that no reader waits for its timeout."""
        identity, self._open = self._open, None
        if identity is not None and not self._is_empty:
            with contextlib.suppress(KafkaError):
                self._requests.end_txn(identity, committed=False)

    def close(self) -> None:
        self._requests.close()

    def _connected(self) -> TransactionDriver:
        if self._is_two_phase:
            return TransactionDriver(self._client | {TWO_PHASE_COMMIT: "true"})
        return TransactionDriver(self._client | {"transaction.timeout.ms": str(self._timeouts[0])})


def _timeouts(client: Mapping[str, str]) -> list[int]:
    """Transaction timeouts (ms) to ask for, in order: the user's, else Kafka's default maximum and lower ones."""
    chosen = client.get("transaction.timeout.ms")
    return [int(chosen)] if chosen is not None else [TRANSACTION_TIMEOUT_MS, 300_000, 60_000]
