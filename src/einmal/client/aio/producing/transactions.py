"""Drives a ``TransactionCore``: what it needs is asked of the coordinators, and their answers go back into it.

Knows no records: whoever has them (``TransactionRecords``) flushes and drops them when that is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from einmal.client.aio.producing.transaction_requests import TransactionRequests
from einmal.client.cores.transaction_core import TransactionCore, TxnPhase, as_abortable, version_for
from einmal.client.errors import AbortableError, FatalError, InvalidState, KafkaError, LocalError
from einmal.client.prepared_txn_state import PreparedTxnState
from einmal.client.records import GroupMetadata, OffsetAndMetadata
from einmal.types import ProducerIdAndEpoch, TopicPartition


class TransactionRecords(Protocol):
    """The records of a transaction, as far as its beginning and its end concern them."""

    async def flush(self) -> None:
        """Wait until every record has its outcome."""

    async def drop(self) -> None:
        """Settle every record of the transaction. What is in flight is waited for: it must not arrive later."""

    def fail(self, error: KafkaError) -> None:
        """Settle what waits, and send nothing more."""

    def begin_identity(self, identity: ProducerIdAndEpoch, *, forget_error: bool = False) -> None:
        """Send under this producer id and epoch from now on."""

    def wake(self) -> None:
        """Batches may be sent that could not be sent before."""


class Transactions:
    """One producer's transactions, one after the other."""

    def __init__(self, core: TransactionCore, requests: TransactionRequests, records: TransactionRecords) -> None:
        self.core = core
        self._requests = requests
        self._records = records
        self._offset_commits = 0
        """How many are under way. Without their answers nobody knows whether they are in the transaction."""

    async def initialize(self, *, keeps_prepared: bool = False) -> None:
        """InitProducerId: fences the former owner of the transactional.id, and aborts or keeps what it left open."""
        core = self.core
        core.begin_initialization()
        try:
            if keeps_prepared:
                kept = await self._requests.keep_prepared_txn()
                core.initialized(kept.identity, kept.prepared)
            else:
                core.initialized(await self._requests.init_producer_id())
        except KafkaError as error:
            core.failed(error)
            raise
        except asyncio.CancelledError:
            core.cancelled()
            raise
        self._records.begin_identity(core.identity)

    def begin(self, finalized_version: int) -> None:
        """Open a transaction; ``finalized_version``: the cluster's level of ``transaction.version``."""
        self.core.begin(version_for(finalized_version))

    async def send_offsets(self, positions: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata) -> None:
        """Commit a group's positions with the transaction."""
        core = self.core
        core.check_send()
        if not positions:
            return
        self._offset_commits += 1
        try:
            if core.must_add_group(group.group_id):
                await self._requests.add_offsets(core.identity, group.group_id)
                core.group_added(group.group_id)
            await self._requests.commit_offsets(core.identity, core.version, group, positions)
        except LocalError:
            raise
        except KafkaError as error:
            failure = as_abortable(error)
            self._offsets_failed(failure)
            raise failure from _cause(failure, error)
        except asyncio.CancelledError:
            self._offsets_failed(AbortableError(detail="send_offsets_to_transaction() was cancelled"))
            raise
        finally:
            self._offset_commits -= 1

    def _offsets_failed(self, failure: KafkaError) -> None:
        """Once the transaction is being aborted, that changes nothing."""
        if self.core.state is TxnPhase.IN_TRANSACTION or isinstance(failure, FatalError):
            self.core.failed(failure)

    def _require_offsets(self, what: str) -> None:
        if self._offset_commits:
            raise InvalidState(
                meaning=f"{what} is not possible while offsets are being committed: they may not be in the transaction",
                what_to_do="wait until send_offsets_to_transaction() has returned",
            )

    async def prepare(self) -> PreparedTxnState:
        """Flush; the transaction waits for its decision. Raises what the transaction keeps as its error."""
        core = self.core
        self._require_offsets("prepare_transaction()")
        core.begin_prepare()
        with self._failing_by(core.request_failed):
            await self._records.flush()
            core.check_flushed()
        return core.prepare()

    async def complete(self, committed: PreparedTxnState) -> None:
        """Commit the prepared transaction if it is the committed one, else abort it."""
        match self.core.decision(committed):
            case True:
                await self.commit()
            case False:
                await self.abort()

    async def commit(self) -> None:
        """Flush, then EndTxn. Raises what the transaction keeps as its error."""
        core = self.core
        self._require_offsets("commit_transaction()")
        core.begin_commit()
        with self._failing_by(core.commit_failed):
            await self._records.flush()
            core.check_flushed()
            following = None
            if core.has_begun:
                following = await self._requests.end_txn(core.identity, core.version, committed=True)
        core.ended(following)
        self._records.begin_identity(core.identity)

    async def abort(self) -> None:
        """Drop what waits, then EndTxn."""
        core = self.core
        core.begin_abort()
        with self._failing_by(core.request_failed):
            await self._records.drop()
            following = await self._end_by_abort()
        core.ended(following)
        self._records.begin_identity(core.identity, forget_error=True)

    @contextmanager
    def _failing_by(self, failed: Callable[[KafkaError], KafkaError]) -> Iterator[None]:
        """An error of the requests becomes what the transaction keeps as its error (``failed``)."""
        try:
            yield
        except KafkaError as error:
            failure = failed(error)
            raise failure from _cause(failure, error)
        except asyncio.CancelledError:
            self.core.cancelled()
            raise

    async def _end_by_abort(self) -> ProducerIdAndEpoch | None:
        core = self.core
        following = None
        if core.has_begun:
            try:
                following = await self._requests.end_txn(core.identity, core.version, committed=False)
            except AbortableError as error:
                if not core.is_unknown_abort(error):
                    raise
            if core.needs_new_epoch:
                following = await self._requests.init_producer_id(core.identity)
        return following

    async def add_partitions(self) -> None:
        """Add to the transaction, at its coordinator, what ``TransactionCore.may_write`` has refused so far."""
        core = self.core
        while partitions := core.partitions_to_add():
            try:
                await self._requests.add_partitions(core.identity, partitions)
            except KafkaError as error:
                core.failed(as_abortable(error))
                self._records.fail(error)
                return
            core.added(partitions)
        self._records.wake()

    async def initialize_once(self) -> None:
        if self.core.state is not TxnPhase.UNINITIALIZED:
            return
        if self.core.has_two_phase_commit:
            # It would abort what the predecessor has prepared, and what a database may have committed.
            raise InvalidState(
                meaning="with transaction.two.phase.commit.enable a transaction needs init_transactions() before it",
                what_to_do="call init_transactions(keep_prepared_txn=True) and complete_transaction() first",
            )
        await self.initialize()


def _cause(failure: KafkaError, error: KafkaError) -> KafkaError | None:
    return None if failure is error else error
