"""Disabled defences of a cluster, from outside: brokers that had forgotten one of them.

As ``mutants``, of what several nodes have together: replication, the controller and its quorum, coordinators that move.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from einmal.broker.control.quorum_storage import QuorumStorage
from einmal.broker.coordinators.marker_writer import MarkerWriter
from einmal.broker.coordinators.remote_markers import RemoteMarkers
from einmal.broker.coordinators.shard_runtime import ShardRuntime
from einmal.broker.front.context import Body, RequestContext
from einmal.broker.front.fetch.consumer_fetch import ConsumerFetch
from einmal.broker.front.handlers.fetch import FetchHandler
from einmal.broker.replicas import replica_sessions
from einmal.broker.replicas.partition import Partition
from einmal.broker.replicas.partitions import Partitions
from einmal.broker.replicas.replica_sessions import ReplicaSessions
from einmal.client.aio.network.cluster import Cluster
from einmal.client.cores.consumer_core import ConsumerCore
from einmal.groups.classic.group import ClassicGroup
from einmal.groups.offsets import Offsets
from einmal.log.producer_state import ProducerStates
from einmal.metadata import brokers as broker_decisions
from einmal.metadata import partition_change
from einmal.metadata.brokers import BrokerDecisions
from einmal.metadata.image import ClusterImage, PartitionImage
from einmal.metadata.partitions import PartitionDecisions
from einmal.metadata.plan import Plan
from einmal.metadata.records import ProducerIdsRecord
from einmal.quorum import roles
from einmal.quorum.election_state import ElectionState
from einmal.quorum.raft import Raft
from einmal.replication.leader import Leader
from einmal.transactions.coordinator import TransactionCoordinator
from einmal.transactions.transaction import Transaction
from einmal.types import ErrorCode, TransactionVersion

# --- replication -----------------------------------------------------------------------------------------------------


def _counting(patch: pytest.MonkeyPatch, counts: Callable[[Leader, Any], bool]) -> None:
    """The high watermark is the smallest end of those followers only, and of the leader."""

    def advance(self: Leader) -> Any:
        if self._may_commit:
            ends = [follower.fetch_offset for follower in self._counted if counts(self, follower)]
            self.high_watermark = max(self.high_watermark, min([self._end, *ends]))
        return self.high_watermark

    patch.setattr(Leader, "_advance", advance)


def without_waiting_for_the_isr(patch: pytest.MonkeyPatch) -> None:
    """The high watermark is the leader's own log end: acks=all means acks=1."""
    _counting(patch, lambda leader, follower: False)


def without_waiting_for_those_who_join(patch: pytest.MonkeyPatch) -> None:
    """The high watermark waits for the recorded ISR, not for replicas that the controller may have added by now."""
    _counting(patch, lambda leader, follower: follower.broker_id in leader.isr)


def without_having_caught_up(patch: pytest.MonkeyPatch) -> None:
    """Every fetching replica joins the ISR, however little it has; and the high watermark does not wait for it."""
    without_waiting_for_those_who_join(patch)
    patch.setattr(Leader, "_may_join", lambda self, follower: follower.fetch_offset >= 0)
    join = Leader._join

    def at_once(self: Leader, follower: Any, now_ms: int) -> None:
        follower.is_near = True
        join(self, follower, now_ms)

    patch.setattr(Leader, "_join", at_once)


def without_asking_for_a_smaller_isr(patch: pytest.MonkeyPatch) -> None:
    """A leader removes laggards from the ISR by itself and continues without them; the controller does not know."""

    def look(self: Leader, log_end: Any, now_ms: int) -> Any:
        self.isr = tuple(broker_id for broker_id in self.isr if self._stays(broker_id, now_ms))
        self._count()
        return self._advance()

    patch.setattr(Leader, "look", look)
    patch.setattr(Leader, "propose", lambda self, now_ms: None)


def without_min_insync_replicas(patch: pytest.MonkeyPatch) -> None:
    """A leader that is alone in the ISR accepts writes, whatever the minimum."""
    count = Leader._count

    def enough(self: Leader) -> None:
        count(self)
        self.has_enough_replicas = self._may_commit = True

    patch.setattr(Leader, "_count", enough)


def without_leader_epochs_in_truncation(patch: pytest.MonkeyPatch) -> None:
    """A follower truncates to its high watermark and assumes the rest to be its leader's, as before KIP-101."""
    follow = Partition.follow

    def cut(self: Partition, leader: Any, leader_epoch: Any) -> None:
        follow(self, leader, leader_epoch)
        if self._log.high_watermark < self._log.log_end_offset:
            self._log.truncate_to(self._log.high_watermark)

    patch.setattr(Partition, "follow", cut)
    without_truncation(patch)


def without_truncation(patch: pytest.MonkeyPatch) -> None:
    """A follower keeps records that only its last leader wrote, and appends after them."""
    patch.setattr(replica_sessions, "divergence", lambda leader_log, asked: None)


def without_failing_who_waits(patch: pytest.MonkeyPatch) -> None:
    """A deposed leader answers waiting requests with success."""
    lead_no_longer = Partition._lead_no_longer

    def well(self: Partition) -> None:
        self._committing.fail(ErrorCode.none)
        lead_no_longer(self)

    patch.setattr(Partition, "_lead_no_longer", well)


def without_flushing_before_fetching_on(patch: pytest.MonkeyPatch) -> None:
    """A follower acknowledges records that it has not flushed."""
    patch.setattr(Partition, "is_flushed", property(lambda self: True))


def without_producer_state_of_followers(patch: pytest.MonkeyPatch) -> None:
    """A new leader has the records, but no producer state."""
    lead = Partition.lead

    def forget(self: Partition, commitment: Any, leader_epoch: Any) -> None:
        self._log.producers = ProducerStates()
        lead(self, commitment, leader_epoch)

    patch.setattr(Partition, "lead", forget)


def without_new_leader_epochs(patch: pytest.MonkeyPatch) -> None:
    """A new leader leads under the same epoch."""
    changed = PartitionImage.changed

    def same(self: PartitionImage, record: Any) -> PartitionImage:
        return replace(changed(self, record), leader_epoch=self.leader_epoch)

    assign = Partitions._assign

    def follow_anyway(self: Partitions, partition: Partition, image: PartitionImage) -> None:
        if image.leader != partition.leader:
            partition.leader_epoch = type(partition.leader_epoch)(image.leader_epoch - 1)
        assign(self, partition, image)

    patch.setattr(PartitionImage, "changed", same)
    patch.setattr(Partitions, "_assign", follow_anyway)


def without_flushing_before_promising(patch: pytest.MonkeyPatch) -> None:
    """The stored high watermark covers records that only the other voters have flushed."""
    patch.setattr(Partition, "durable_high_watermark", property(lambda self: self.high_watermark))


# --- the controller --------------------------------------------------------------------------------------------------


def without_unclean_restarts(patch: pytest.MonkeyPatch) -> None:
    """Every restarted broker is assumed to have all records that it had."""
    withdraw = BrokerDecisions._withdraw

    def clean(self: BrokerDecisions, plan: Plan, broker_id: Any, **how: Any) -> None:
        withdraw(self, plan, broker_id)

    patch.setattr(BrokerDecisions, "_withdraw", clean)


def without_asking_for_unclean_elections(patch: pytest.MonkeyPatch) -> None:
    """Without an in-sync replica any replica leads, and nothing reports it."""
    patch.setattr(Plan, "allows_unclean", lambda self, topic: True)


def without_keeping_the_fenced_out(patch: pytest.MonkeyPatch) -> None:
    """A fenced broker stays in the ISR, and may join it."""
    patch.setattr(PartitionDecisions, "_may_be_in_sync", lambda self, broker_id, broker_epoch: True)
    patch.setattr(Leader, "_is_eligible", lambda self, follower: True)
    change = partition_change.change

    def keep(before: Any, wanted: Any, circumstances: Any) -> Any:
        left = [broker for broker in before.isr if broker not in wanted.isr and not circumstances.may_lead(broker)]
        return change(before, replace(wanted, isr=(*wanted.isr, *left)), circumstances)

    patch.setattr("einmal.metadata.plan.change", keep)


def without_directory_ids(patch: pytest.MonkeyPatch) -> None:
    """A wiped broker is taken for the one that it was, and its empty logs for its old ones."""
    patch.setattr(broker_decisions, "_is_wiped", lambda before, now: False)
    withdraw = BrokerDecisions._withdraw

    def keep_wiped(self: BrokerDecisions, plan: Plan, broker_id: Any, **how: Any) -> None:
        withdraw(self, plan, broker_id)

    patch.setattr(BrokerDecisions, "_withdraw", keep_wiped)


def without_recording_producer_ids(patch: pytest.MonkeyPatch) -> None:
    """A block of producer ids is assigned twice."""
    replay = ClusterImage.replay

    def forget(self: ClusterImage, record: Any) -> None:
        if not isinstance(record, ProducerIdsRecord):
            replay(self, record)

    patch.setattr(ClusterImage, "replay", forget)


# --- the metadata quorum ---------------------------------------------------------------------------------------------


def without_a_written_vote(patch: pytest.MonkeyPatch) -> None:
    """A voter that restarts has forgotten its vote and the epoch of it."""
    patch.setattr(QuorumStorage, "write_state", lambda self, state: None)
    patch.setattr(QuorumStorage, "read_state", lambda self: None)


def without_comparing_logs_before_voting(patch: pytest.MonkeyPatch) -> None:
    """Any candidate is elected, however short its log is."""
    vote_requested = Raft._vote_requested

    def anybody(self: Raft, event: Any) -> Any:
        return vote_requested(self, replace(event, log_end=max(event.log_end, self.log_end)))

    patch.setattr(Raft, "_vote_requested", anybody)


def without_a_majority(patch: pytest.MonkeyPatch) -> None:
    """The quorum's leader commits records that only it has."""
    patch.setattr(roles.Leader, "committed_offset", lambda self, own_end: own_end)


def without_one_vote_per_epoch(patch: pytest.MonkeyPatch) -> None:
    """A voter votes for every candidate that asks."""
    vote_requested = Raft._vote_requested

    def anybody(self: Raft, event: Any) -> Any:
        if not event.pre_vote and event.epoch == self.epoch:
            self.election = ElectionState(self.epoch, None)
        return vote_requested(self, event)

    patch.setattr(Raft, "_vote_requested", anybody)


# --- coordinators that move ------------------------------------------------------------------------------------------


def without_markers_elsewhere(patch: pytest.MonkeyPatch) -> None:
    """Only the coordinator's own broker receives transaction markers."""

    async def as_if(self: RemoteMarkers, asked: Any) -> Any:
        return [dict.fromkeys(markers.partitions, ErrorCode.none) for markers in asked]

    patch.setattr(RemoteMarkers, "write_markers", as_if)


def without_waiting_for_replicas_of_decisions(patch: pytest.MonkeyPatch) -> None:
    """Coordinators respond and act before their decision is replicated."""

    def release(self: ShardRuntime[Any, Any, Any]) -> None:
        while self._parked:
            _, settle, actions = self._parked.popleft()
            if settle is not None:
                settle(ErrorCode.none)
            for action in actions:
                self._perform(action)

    patch.setattr(ShardRuntime, "_release", release)


def without_loading(patch: pytest.MonkeyPatch) -> None:
    """A new coordinator starts with empty state."""
    patch.setattr(ShardRuntime, "start", lambda self: self._serve(self._new_shard()))


def without_waiting_for_the_load(patch: pytest.MonkeyPatch) -> None:
    """A new coordinator responds while it still reads its log."""
    load = ShardRuntime._load

    async def serve_first(self: ShardRuntime[Any, Any, Any], shard: Any, offset: Any) -> None:
        self._shard = shard
        await load(self, shard, offset)

    patch.setattr(ShardRuntime, "_load", serve_first)


def without_late_markers_being_known(patch: pytest.MonkeyPatch) -> None:
    """A copy of a marker that its sender has abandoned ends whatever transaction is open."""
    patch.setattr(MarkerWriter, "is_late", lambda self, sender, connection: False)


def without_new_epochs(patch: pytest.MonkeyPatch) -> None:
    """Transactions share one epoch, as before version 2, so that it does not reveal late requests."""
    preparing = Transaction.preparing

    def same(self: Transaction, *, committed: bool, version: Any, next_producer_id: Any, now: Any) -> Transaction:
        prepared = preparing(self, committed=committed, version=version, next_producer_id=next_producer_id, now=now)
        return replace(prepared, producer_epoch=self.producer_epoch)

    patch.setattr(Transaction, "preparing", same)
    check = ProducerStates.check_marker

    def as_before(self: ProducerStates, producer: Any, coordinator_epoch: int, version: Any) -> ErrorCode:
        return check(self, producer, coordinator_epoch, TransactionVersion.TV_0)

    patch.setattr(ProducerStates, "check_marker", as_before)


def without_a_new_epoch_after_a_timeout(patch: pytest.MonkeyPatch) -> None:
    """A transaction that timed out is aborted, and its owner may continue."""
    fencing = Transaction.fencing

    def same(self: Transaction, **how: Any) -> Transaction:
        return replace(fencing(self, **how), producer_epoch=self.producer_epoch)

    patch.setattr(Transaction, "fencing", same)


def without_fencing_the_predecessor(patch: pytest.MonkeyPatch) -> None:
    """An instance that acquires a transactional id gets its predecessor's epoch."""
    init = TransactionCoordinator._init_at_rest

    def same(self: TransactionCoordinator, transaction: Transaction, last_epoch: Any, *more: Any) -> Any:
        decision = init(self, transaction, last_epoch, *more)
        records = tuple(
            replace(record, transaction=replace(record.transaction, producer_epoch=transaction.producer_epoch))
            for record in decision.records
            if record.transaction is not None
        )
        answer = replace(decision.response, producer_epoch=transaction.producer_epoch)
        return replace(decision, records=records, response=answer)

    patch.setattr(TransactionCoordinator, "_init_at_rest", same)
    patch.setattr(
        Transaction,
        "fencing",
        lambda self, **how: Transaction._preparing(self, False, how["now"], client_version=TransactionVersion.TV_0),
    )


def without_verification(patch: pytest.MonkeyPatch) -> None:
    """A first batch is accepted without verification at the coordinator, as before KIP-890."""
    check = ProducerStates.check

    def unverified(self: ProducerStates, header: Any, origin: Any, verification: Any = None) -> Any:
        return check(self, header, origin, None)

    patch.setattr(ProducerStates, "begin_verification", lambda self, producer, base_sequence, version: None)
    patch.setattr(ProducerStates, "check", unverified)


# --- groups ----------------------------------------------------------------------------------------------------------


def without_confirmed_leadership(patch: pytest.MonkeyPatch) -> None:
    """A group coordinator returns committed offsets without confirming that it has not been replaced."""

    def confirm_leadership(self: ReplicaSessions, partition: Partition) -> asyncio.Future[bool]:
        confirmed = asyncio.get_running_loop().create_future()
        confirmed.set_result(True)
        return confirmed

    patch.setattr(ReplicaSessions, "confirm_leadership", confirm_leadership)


def without_dropping_aborted_offsets(patch: pytest.MonkeyPatch) -> None:
    """Offsets of a transaction count however it ends."""
    settle = Offsets.replay_marker
    patch.setattr(Offsets, "replay_marker", lambda self, producer_id, committed: settle(self, producer_id, True))


def without_pending_offsets(patch: pytest.MonkeyPatch) -> None:
    """Offsets of a transaction count at once."""
    replay = Offsets.replay
    patch.setattr(Offsets, "replay", lambda self, record: replay(self, replace(record, producer_id=None)))


def without_confirmed_ends(patch: pytest.MonkeyPatch) -> None:
    """A deposed leader reports that its log ends before a position, and consumers that believe it reset."""

    async def believe(self: Cluster, node_id: int) -> None:
        return

    async def tell_at_once(self: FetchHandler, context: RequestContext, each: ConsumerFetch) -> Body:
        return self._encode(context, each)

    patch.setattr(FetchHandler, "_confirm", tell_at_once)
    patch.setattr(Cluster, "doubt", believe)
    patch.setattr(ConsumerCore, "is_ahead_of", lambda self, topic_partition, leader_epoch: False)


def without_generations(patch: pytest.MonkeyPatch) -> None:
    """A member that the group has replaced may commit its offsets."""
    patch.setattr(ClassicGroup, "commit_refusal", lambda self, request, *, is_transactional: ErrorCode.none)
