"""The requests of a transaction, each retried until the coordinator has decided.

InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn and EndTxn go to the transaction's coordinator, TxnOffsetCommit to
the group's. Holds no state of the transaction: identity and version are arguments, so the same code serves the
producer and a driver whose records are written by other processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from einmal.client.aio.network.cluster import Cluster, by_topic
from einmal.client.aio.network.coordinators import GROUP, TRANSACTION, CoordinatorAnswer, CoordinatorRequest
from einmal.client.aio.network.results import error_code
from einmal.client.aio.network.retry import PERHAPS_DONE, Retry
from einmal.client.cores.transaction_core import coordinator_error, end_txn_error, no_two_phase_commit, version_for
from einmal.client.errors import CommitFailed, Disconnected, RequestRefused
from einmal.client.prepared_txn_state import PreparedTxnState
from einmal.client.records import GroupMetadata, OffsetAndMetadata
from einmal.types import (
    ErrorCode,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)
from einmal.wire.api.add_offsets_to_txn import API as ADD_OFFSETS_TO_TXN
from einmal.wire.api.add_offsets_to_txn import AddOffsetsToTxnRequest
from einmal.wire.api.add_partitions_to_txn import API as ADD_PARTITIONS_TO_TXN
from einmal.wire.api.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from einmal.wire.api.end_txn import API as END_TXN
from einmal.wire.api.end_txn import EndTxnRequest, EndTxnResponse
from einmal.wire.api.init_producer_id import API as INIT_PRODUCER_ID
from einmal.wire.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from einmal.wire.api.offset_commit import OffsetCommitResponse
from einmal.wire.api.txn_offset_commit import API as TXN_OFFSET_COMMIT
from einmal.wire.api.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from einmal.wire.messages import Q, R

_STILL_ENDING: Final = frozenset({ErrorCode.concurrent_transactions})
_EARLY: Final = frozenset({ErrorCode.concurrent_transactions, ErrorCode.unknown_topic_or_partition})
"""A topic that was just created may not be known to the coordinator yet."""

_PERHAPS_ENDED: Final = PERHAPS_DONE | {ErrorCode.not_coordinator}
"""Also the answer of a coordinator that wrote its decision, and lost its leadership before this was replicated."""

END_TXN_TV_2: Final = 5
TXN_OFFSET_COMMIT_TV_2: Final = 5
INIT_PRODUCER_ID_WITH_PREVIOUS: Final = 3
INIT_PRODUCER_ID_TWO_PHASE_COMMIT: Final = 6
TXN_OFFSET_COMMIT_WITH_MEMBER: Final = 3


class KeptTransaction(NamedTuple):
    """Transaction that InitProducerId has kept: ``prepared``, empty if nothing was open. ``identity`` is the caller's
    own."""

    identity: ProducerIdAndEpoch
    prepared: PreparedTxnState


class TransactionRequests:
    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        *,
        timeout_ms: int,
        max_block_ms: int,
        has_two_phase_commit: bool = False,
    ) -> None:
        self._cluster = cluster
        self._has_two_phase_commit = has_two_phase_commit
        self._transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._max_block_ms = max_block_ms

    async def version(self) -> TransactionVersion:
        """The version of a transaction that begins now on this cluster. See ``TransactionCore.begin``."""
        if self._has_two_phase_commit:
            return TransactionVersion.TV_2
        retry = Retry(self._cluster, "asking for the brokers' versions", self._cluster.deadline(self._max_block_ms))
        while True:
            try:
                await self._cluster.any_connection()
                break
            except Disconnected as error:
                await retry.after_disconnect(error)
        return version_for(self._cluster.transaction_version)

    async def init_producer_id(self, previous: ProducerIdAndEpoch | None = None) -> ProducerIdAndEpoch:
        """A new identity; the former owner of the transactional id is fenced, and its open transaction aborted first.

        ``previous``: keep the producer id and bump its epoch (KIP-360); ProducerFenced if another producer has it by
        now. A late request of this kind aborts the transaction that its own sender has opened since, so it is never
        left in flight on an abandoned connection.
        """
        return _identity(await self._init_producer_id(previous, keeps_prepared=False))

    async def keep_prepared_txn(self) -> KeptTransaction:
        """A new identity; the former owner is fenced, its open transaction stays open for the new one (KIP-939)."""
        response = await self._init_producer_id(None, keeps_prepared=True)
        ongoing = ProducerIdAndEpoch(
            ProducerId(response.ongoing_txn_producer_id), ProducerEpoch(response.ongoing_txn_producer_epoch)
        )
        return KeptTransaction(_identity(response), PreparedTxnState(ongoing))

    async def _init_producer_id(
        self, previous: ProducerIdAndEpoch | None, *, keeps_prepared: bool
    ) -> InitProducerIdResponse:
        asked = InitProducerIdRequest(
            transactional_id=self._transactional_id,
            transaction_timeout=self._timeout_ms,
            producer_id=-1 if previous is None else previous.producer_id,
            producer_epoch=-1 if previous is None else previous.producer_epoch,
        )
        at_least, at_most = 0, INIT_PRODUCER_ID_TWO_PHASE_COMMIT - 1
        detail = f"InitProducerId of {self._transactional_id!r}"
        is_two_phase = self._has_two_phase_commit or keeps_prepared
        if is_two_phase:
            asked = asked._replace(enable2_pc=self._has_two_phase_commit, keep_prepared_txn=keeps_prepared)
            at_least = at_most = INIT_PRODUCER_ID_TWO_PHASE_COMMIT
            detail += ", for two-phase commit"
        elif previous is not None:
            at_least = INIT_PRODUCER_ID_WITH_PREVIOUS
        request = CoordinatorRequest(
            kind=TRANSACTION,
            key=self._transactional_id,
            api=INIT_PRODUCER_ID,
            request=asked,
            error_of=error_code,
            also_retry=_STILL_ENDING,
            at_least=at_least,
            at_most=at_most,
        )
        try:
            response = (await self._call(request)).response
        except RequestRefused as error:
            if is_two_phase and error.code is ErrorCode.unsupported_version:
                raise no_two_phase_commit(error.detail) from error
            raise
        if is_two_phase and response.error_code is ErrorCode.unsupported_version:
            raise no_two_phase_commit(f"{detail}: the cluster's transaction.version is below 2")
        if response.error_code is not ErrorCode.none:
            raise coordinator_error(response.error_code, detail)
        return response

    async def add_partitions(self, identity: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]) -> None:
        """AddPartitionsToTxn, needed before the first record of a partition below TV_2."""
        topics = tuple(
            AddPartitionsToTxnTopic(topic, tuple(indexes)) for topic, indexes in by_topic(partitions).items()
        )
        request = CoordinatorRequest(
            kind=TRANSACTION,
            key=self._transactional_id,
            api=ADD_PARTITIONS_TO_TXN,
            request=AddPartitionsToTxnRequest((), self._transactional_id, *identity, topics),
            error_of=_add_partitions_error,
            also_retry=_EARLY,
        )
        answer = await self._call(request)
        code = _add_partitions_error(answer.response)
        if code is not ErrorCode.none:
            raise coordinator_error(code, f"AddPartitionsToTxn of {self._transactional_id!r}")

    async def add_offsets(self, identity: ProducerIdAndEpoch, group_id: str) -> None:
        """AddOffsetsToTxn, needed before the first TxnOffsetCommit of a group below TV_2."""
        request = CoordinatorRequest(
            kind=TRANSACTION,
            key=self._transactional_id,
            api=ADD_OFFSETS_TO_TXN,
            request=AddOffsetsToTxnRequest(self._transactional_id, *identity, group_id),
            error_of=error_code,
            also_retry=_STILL_ENDING,
        )
        response = (await self._call(request)).response
        if response.error_code is not ErrorCode.none:
            raise coordinator_error(response.error_code, f"AddOffsetsToTxn of group {group_id!r}")

    async def commit_offsets(
        self,
        identity: ProducerIdAndEpoch,
        version: TransactionVersion,
        group: GroupMetadata,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> None:
        """TxnOffsetCommit. Raises CommitFailed when the group has rebalanced without this member (KIP-447)."""
        topics = tuple(
            TxnOffsetCommitRequestTopic(name, tuple(map(TxnOffsetCommitRequestPartition._make, committed)))
            for name, committed in offsets_by_topic(offsets).items()
        )
        asked = TxnOffsetCommitRequest(
            transactional_id=self._transactional_id,
            group_id=group.group_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            generation_id=group.generation_id,
            member_id=group.member_id,
            group_instance_id=group.group_instance_id,
            topics=topics,
        )
        is_tv_2 = version >= TransactionVersion.TV_2
        request = CoordinatorRequest(
            kind=GROUP,
            key=group.group_id,
            api=TXN_OFFSET_COMMIT,
            request=asked,
            error_of=offset_commit_error,
            also_retry=_STILL_ENDING,
            at_least=TXN_OFFSET_COMMIT_TV_2 if is_tv_2 else TXN_OFFSET_COMMIT_WITH_MEMBER if group.member_id else 0,
            at_most=32_767 if is_tv_2 else TXN_OFFSET_COMMIT_TV_2 - 1,
        )
        answer = await self._call(request)
        code = offset_commit_error(answer.response)
        if code is ErrorCode.none:
            return
        detail = f"TxnOffsetCommit of group {group.group_id!r}"
        if code is ErrorCode.fenced_instance_id:
            raise CommitFailed(code, detail, meaning="another consumer with the same group.instance.id has joined")
        raise coordinator_error(code, detail)

    async def end_txn(
        self, identity: ProducerIdAndEpoch, version: TransactionVersion, *, committed: bool
    ) -> ProducerIdAndEpoch | None:
        """Commit or abort. Under TV_2 returns the identity of the next transaction, else None.

        Raises UnknownOutcome when the commit may have happened: no answer until the deadline, or an answer was lost
        (or left it open) and the retry was refused.
        """
        is_tv_2 = version >= TransactionVersion.TV_2
        request = CoordinatorRequest(
            kind=TRANSACTION,
            key=self._transactional_id,
            api=END_TXN,
            request=EndTxnRequest(self._transactional_id, *identity, committed),
            error_of=error_code,
            also_retry=_STILL_ENDING,
            perhaps_done=_PERHAPS_ENDED,
            at_least=END_TXN_TV_2 if is_tv_2 else 0,
            at_most=32_767 if is_tv_2 else END_TXN_TV_2 - 1,
        )
        answer = await self._call(request)
        code = answer.response.error_code
        if code is not ErrorCode.none:
            raise end_txn_error(code, committed, answer.was_repeated, self._transactional_id)
        return _identity(answer.response) if is_tv_2 else None

    async def _call(self, request: CoordinatorRequest[Q, R]) -> CoordinatorAnswer[R]:
        return await self._cluster.coordinators.call(request, deadline=self._cluster.deadline(self._max_block_ms))


def offsets_by_topic(
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> dict[str, list[tuple[int, int, int, str]]]:
    """The fields of each partition in OffsetCommit and TxnOffsetCommit."""
    topics: dict[str, list[tuple[int, int, int, str]]] = {}
    for (topic, partition), offset in offsets.items():
        if offset.offset < 0:
            raise RequestRefused(meaning=f"offset {offset.offset} of {topic}-{partition} is negative")
        topics.setdefault(topic, []).append((partition, offset.offset, offset.leader_epoch, offset.metadata))
    return topics


def offset_commit_error(response: OffsetCommitResponse | TxnOffsetCommitResponse) -> ErrorCode:
    return _decisive(partition.error_code for topic in response.topics for partition in topic.partitions)


def _add_partitions_error(response: AddPartitionsToTxnResponse) -> ErrorCode:
    codes = (
        partition.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
    )
    return _decisive(code for code in codes if code is not ErrorCode.operation_not_attempted)


def _decisive(codes: Iterable[ErrorCode]) -> ErrorCode:
    """The code to act upon: a permanent one, else a retriable one, else none."""
    errors = [code for code in codes if code is not ErrorCode.none]
    return next((code for code in errors if not code.retriable), errors[0] if errors else ErrorCode.none)


def _identity(response: InitProducerIdResponse | EndTxnResponse) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(response.producer_id), ProducerEpoch(response.producer_epoch))
