"""The leader's view of its followers: high watermark, in-sync replicas, and proposals of the ISR.

Pure; knows no log, no controller and no clock. The high watermark is the smallest end among the *maximal* ISR: its
members, those that may be members by now because they were proposed to the controller, and those about to be proposed.
It does not move while fewer than min.insync.replicas are in sync (KIP-966), and it never falls.

The ISR is the controller's. A proposal has the partition epoch that it is based on, so at most one of all proposals
under an epoch is carried out. Until a newer epoch is seen, all of them count: a copy of a refused one may still be in
flight. A proposal of the present ISR results in a newer epoch, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from einmal.types import NO_OFFSET, BrokerId, ErrorCode, LeaderEpoch, Offset

_RETRY_MS: Final = 500
"""After a refusal the next proposal waits for so long."""
NOT_CARRIED_OUT: Final = (ErrorCode.ineligible_replica, ErrorCode.operation_not_attempted)
"""Errors after which it would be useless to send a proposal again."""


class Membership(NamedTuple):
    """A partition's replicas as the controller has recorded them."""

    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class IsrProposal:
    """The ISR as it should be: broker ids with their broker epochs (KIP-903); the leader's own is -1."""

    leader_epoch: LeaderEpoch
    partition_epoch: int
    isr: tuple[tuple[BrokerId, int], ...]


@dataclass(slots=True)
class _Follower:
    broker_id: BrokerId
    caught_up_ms: int
    """When it last had the leader's whole log."""
    fetch_offset: Offset = NO_OFFSET
    """Its fetch offset, below which it has everything; -1: it has not fetched in this leader epoch."""
    log_start: Offset = NO_OFFSET
    broker_epoch: int = -1
    fetched_ms: int = -1
    end_when_fetched: Offset = NO_OFFSET
    """The leader's log end at its last fetch."""
    is_near: bool = False
    """Whether it had, at its last fetch, all records up to the leader's end at the one before."""
    is_joining: bool = False
    """Not in the ISR, but so close that the high watermark waits for it."""
    heard_in: int = 0
    """The last round in which it fetched: see ``heard``."""


class Leader:
    """``epoch_start``: the leader's log end when the epoch began."""

    def __init__(
        self,
        broker_id: BrokerId,
        leader_epoch: LeaderEpoch,
        membership: Membership,
        *,
        epoch_start: Offset,
        high_watermark: Offset,
        min_insync_replicas: int,
        lag_max_ms: int,
        now_ms: int,
        eligible: Mapping[BrokerId, int],
    ) -> None:
        assert high_watermark <= epoch_start, "what is committed was in the leader's log when it was elected"
        self.leader_epoch = leader_epoch
        self.epoch_start = epoch_start
        self.high_watermark = high_watermark
        self.isr = membership.isr
        self.replicas = membership.replicas
        self.partition_epoch = membership.partition_epoch
        self.has_enough_replicas = True
        """Whether a write with acks=all may begin."""
        self._broker_id = broker_id
        self._end = high_watermark
        self._lag_max_ms = lag_max_ms
        self._min_insync_replicas = min_insync_replicas
        self._eligible = eligible
        self._followers: dict[BrokerId, _Follower] = {}
        self._counted: list[_Follower] = []
        """The replicas whose ends count for the high watermark."""
        self._may_commit = True
        self._proposed: IsrProposal | None = None
        self._possible: dict[BrokerId, None] = {}
        """The possible ISR members by proposals of this partition epoch."""
        self._was_refused = False
        self._resigns = False
        self._joins_from_ms = now_ms
        self._update_followers(now_ms)

    # --- what moves the high watermark -------------------------------------------------------------------------------

    def local_end_moved(self, end: Offset) -> Offset:
        """The leader's own end, as far as it counts (the flushed end where each write is flushed): high watermark."""
        self._end = end
        if self._counted or not self._may_commit:
            return self._advance()
        if end > self.high_watermark:
            self.high_watermark = end
        return self.high_watermark

    def fetched(
        self,
        broker_id: BrokerId,
        broker_epoch: int,
        fetch_offset: Offset,
        log_end: Offset,
        now_ms: int,
        log_start: Offset = NO_OFFSET,
    ) -> ErrorCode:
        """A follower fetches from ``fetch_offset``, so it has all records before it. Check ``high_watermark`` then.

        ``log_end`` is the leader's, flushed or not; ``log_start`` the follower's.
        """
        follower = self._followers.get(broker_id)
        if follower is None:
            return ErrorCode.not_leader_or_follower
        if broker_epoch < follower.broker_epoch:
            return ErrorCode.stale_broker_epoch
        if broker_epoch > follower.broker_epoch:
            # Restarted, perhaps with fewer records.
            follower.broker_epoch = broker_epoch
            follower.end_when_fetched = NO_OFFSET
            follower.is_joining = False
            self._count()
        if fetch_offset >= log_end:
            follower.caught_up_ms = now_ms
        elif fetch_offset >= follower.end_when_fetched >= 0:
            follower.caught_up_ms = max(follower.caught_up_ms, follower.fetched_ms)
        follower.is_near = fetch_offset >= follower.end_when_fetched >= 0 or fetch_offset >= log_end
        follower.fetched_ms = now_ms
        follower.end_when_fetched = log_end
        follower.fetch_offset = fetch_offset
        follower.log_start = log_start
        self._join(follower, now_ms)
        self._advance()
        return ErrorCode.none

    def _join(self, follower: _Follower, now_ms: int) -> None:
        is_new = follower.is_near and not follower.is_joining and follower.broker_id not in self.isr
        if is_new and self._is_eligible(follower) and now_ms >= self._joins_from_ms:
            follower.is_joining = True
            self._count()

    def _advance(self) -> Offset:
        if self._may_commit:
            low = self._end
            for follower in self._counted:
                if follower.fetch_offset < low:
                    low = follower.fetch_offset
            if low > self.high_watermark:
                self.high_watermark = low
        return self.high_watermark

    def low_watermark(self, log_start: Offset) -> Offset:
        """The offset below which no eligible replica has records; ``log_start`` is the leader's."""
        starts = [follower.log_start for follower in self._followers.values() if self._is_eligible(follower)]
        return min([log_start, *starts])

    # --- whether anybody else leads ----------------------------------------------------------------------------------

    def heard(self, broker_id: BrokerId, round_: int) -> None:
        """A follower has fetched in this leader epoch, by a request that it sent after the round had begun.

        Rounds only grow. A leader of a newer epoch does not fetch any more, so this one did not lead then.
        """
        follower = self._followers.get(broker_id)
        if follower is not None and round_ > follower.heard_in:
            follower.heard_in = round_

    def awaits(self, broker_id: BrokerId, round_: int) -> bool:
        follower = self._followers.get(broker_id)
        return follower is not None and follower.heard_in < round_ and self._may_succeed(follower)

    def is_confirmed(self, round_: int) -> bool:
        """Whether nobody else can have led before the round began (Raft's read index).

        A successor is one of the maximal ISR; while that is too small, it may be an earlier member, too (KIP-966).
        """
        return not any(self.awaits(broker_id, round_) for broker_id in self._followers)

    def _may_succeed(self, follower: _Follower) -> bool:
        return not self._may_commit or follower.broker_id in self.isr or follower.broker_id in self._possible

    # --- what others decide ------------------------------------------------------------------------------------------

    def membership_changed(self, membership: Membership, now_ms: int) -> Offset:
        """The controller has recorded other replicas; an older or equal epoch changes nothing."""
        if membership.partition_epoch <= self.partition_epoch:
            return self.high_watermark
        self.replicas, self.isr, self.partition_epoch = membership
        self._proposed = None
        self._possible = {}
        self._was_refused = False
        self._update_followers(now_ms)
        return self._advance()

    def settings_changed(self, min_insync_replicas: int) -> Offset:
        self._min_insync_replicas = min_insync_replicas
        self._count()
        return self._advance()

    def brokers_changed(self, eligible: Mapping[BrokerId, int]) -> Offset:
        """``eligible``: the brokers that may be in an ISR, neither fenced nor shutting down, with their epochs."""
        self._eligible = eligible
        for follower in self._followers.values():
            if follower.is_joining and not self._is_eligible(follower):
                follower.is_joining = False
        self._count()
        return self._advance()

    def _update_followers(self, now_ms: int) -> None:
        assert set(self.isr) <= set(self.replicas), "a broker without a replica is in sync with nothing"
        before = self._followers
        self._followers = {
            broker_id: before.get(broker_id) or _Follower(broker_id, caught_up_ms=now_ms)
            for broker_id in self.replicas
            if broker_id != self._broker_id
        }
        for follower in self._followers.values():
            follower.is_joining = follower.is_joining and follower.broker_id not in self.isr
        self._count()

    def _count(self) -> None:
        """The replicas whose ends count, and whether there are enough of them."""
        self._counted = [
            follower
            for follower in self._followers.values()
            if follower.broker_id in self.isr or follower.broker_id in self._possible or follower.is_joining
        ]
        # A topic of fewer replicas than the minimum needs all of them, as on Apache Kafka.
        self.has_enough_replicas = len(self.isr) >= min(self._min_insync_replicas, len(self.replicas))
        self._may_commit = self.has_enough_replicas

    def _is_eligible(self, follower: _Follower) -> bool:
        return self._eligible.get(follower.broker_id, -1) == follower.broker_epoch

    # --- the ISR -----------------------------------------------------------------------------------------------------

    def resign(self) -> None:
        """The log here has damage, which others may not have: propose an ISR without this leader, if others are in it.

        It follows then, and joins the ISR again: what it appends is as good as before.
        """
        self._resigns = True

    @property
    def wants_change(self) -> bool:
        """Whether a follower waits to join the ISR and nothing has been proposed yet."""
        return self._proposed is None and any(
            follower.is_joining and self._may_join(follower) for follower in self._counted
        )

    def _may_join(self, follower: _Follower) -> bool:
        return follower.fetch_offset >= max(self.high_watermark, self.epoch_start) and self._is_eligible(follower)

    def _is_lagging(self, follower: _Follower, now_ms: int) -> bool:
        return now_ms - follower.caught_up_ms > self._lag_max_ms

    def look(self, log_end: Offset, now_ms: int) -> Offset:
        """Periodically, and when brokers have changed: find lagging and joining replicas. Returns the high watermark.

        A follower that has everything may not fetch for hours.
        """
        for follower in self._followers.values():
            if follower.fetch_offset >= log_end:
                follower.caught_up_ms = now_ms
                self._join(follower, now_ms)
            elif follower.is_joining and self._is_lagging(follower, now_ms):
                follower.is_joining = follower.is_near = False
                self._count()
        return self._advance()

    def propose(self, now_ms: int) -> IsrProposal | None:
        """The ISR to propose to the controller; None: no change is needed.

        Until ``membership_changed`` brings a newer partition epoch, or ``refused`` is called, it stays the same one, to
        be retried.
        """
        if self._proposed is not None:
            return self._proposed
        stay = [broker_id for broker_id in self.isr if self._stays(broker_id, now_ms)]
        if self._resigns and len(stay) > 1:
            stay.remove(self._broker_id)
        join = [follower.broker_id for follower in self._counted if follower.is_joining and self._may_join(follower)]
        if self._was_refused or join or len(stay) < len(self.isr):
            self._proposed = IsrProposal(
                self.leader_epoch,
                self.partition_epoch,
                tuple((broker_id, self._broker_epoch(broker_id)) for broker_id in (*stay, *join)),
            )
            assert self._proposed.isr, "an ISR without members would leave nobody who has the committed records"
            self._possible.update(dict.fromkeys(join))
            self._count()
        return self._proposed

    def _stays(self, broker_id: BrokerId, now_ms: int) -> bool:
        follower = self._followers.get(broker_id)
        return follower is None or not self._is_lagging(follower, now_ms)

    def _broker_epoch(self, broker_id: BrokerId) -> int:
        follower = self._followers.get(broker_id)
        return -1 if follower is None else follower.broker_epoch

    def refused(self, proposal: IsrProposal, now_ms: int) -> None:
        """The controller has answered with one of ``NOT_CARRIED_OUT``.

        The next proposal has no new members, so that the high watermark soon need not wait for the refused ones.
        """
        if proposal is self._proposed:
            self._proposed = None
            self._was_refused = True
            self._resigns = False
            self._joins_from_ms = now_ms + _RETRY_MS
            for follower in self._followers.values():
                follower.is_joining = False
            self._count()
