"""State of a partition after a change of its ISR, its replicas or its brokers: who leads, and who may lead later.

Pure arithmetic on one ``PartitionImage``; knows no broker but through ``may_lead``. The order of election is: a member
of the ISR in replica order, a member of the ELR where the ISR is empty, the last leader where both are, and only where
it is asked for any replica at all (unclean). The leader stays where it can, and its epoch moves only when it changes.
So a reassignment that removes replicas moves only the partition epoch. The restart of a single broker moves the leader
epoch twice: when its session ends, and when it leads again.

A replica that leaves an ISR of fewer than min.insync.replicas becomes eligible (ELR): the leader does not move the high
watermark any more, so the replica has all that is committed, as long as it has not lost its end in a crash (KIP-966).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from einmal.metadata.image import PartitionImage
from einmal.metadata.records import NO_LEADER, RECOVERING, PartitionChangeRecord
from einmal.types import BrokerId, LeaderEpoch

Brokers = tuple[BrokerId, ...]


class Election(Enum):
    """Who is asked first, and how far it may go."""

    ONLINE = 0
    PREFERRED = 1
    UNCLEAN = 2


class Outcome(Enum):
    """By what right the leader leads; the last two may have lost committed records."""

    CLEAN = 0
    LAST_KNOWN = 1
    UNCLEAN = 2


class Change(NamedTuple):
    partition: PartitionImage
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """``unclean``: brokers that may have lost what they had not flushed; ``wiped``: those that have lost everything."""

    may_lead: Callable[[BrokerId], bool]
    min_insync_replicas: int
    election: Election = Election.ONLINE
    unclean: Collection[BrokerId] = ()
    wiped: Collection[BrokerId] = ()


def change(before: PartitionImage, wanted: PartitionImage, circumstances: Circumstances) -> Change:
    """``before`` with the ISR, replicas, reassignment and recovery state of ``wanted``, and what follows from them."""
    wanted = _without_finished_reassignment(wanted)
    min_isr = min(circumstances.min_insync_replicas, len(wanted.replicas))
    wanted = replace(wanted, elr=_eligible(before, wanted, circumstances.unclean))
    leader, outcome = _elect(before, wanted, circumstances)
    isr, elr, recovery = wanted.isr, wanted.elr, wanted.leader_recovery_state
    if outcome is not Outcome.CLEAN:
        isr, elr, recovery = (leader,), (), RECOVERING
    elif leader in elr:
        isr, elr = (leader,), tuple(broker for broker in elr if broker != leader)
    after = replace(
        wanted,
        leader=leader,
        leader_epoch=LeaderEpoch(before.leader_epoch + (leader != before.leader)),
        isr=isr,
        elr=elr if len(isr) < min_isr else (),
        last_known_elr=_last_known(before, isr, circumstances.wiped),
        leader_recovery_state=recovery,
        partition_epoch=before.partition_epoch,
    )
    if after != before:
        after = replace(after, partition_epoch=before.partition_epoch + 1)
    return Change(after, outcome)


def _without_finished_reassignment(wanted: PartitionImage) -> PartitionImage:
    """A reassignment is finished once all replicas that shall stay are in sync (KIP-455)."""
    if not wanted.is_reassigning:
        return wanted
    replicas = tuple(broker for broker in wanted.replicas if broker not in wanted.removing)
    if not all(broker in wanted.isr for broker in replicas):
        return wanted
    isr = tuple(broker for broker in wanted.isr if broker in replicas)
    return replace(wanted, replicas=replicas, isr=isr, removing=(), adding=())


def _eligible(before: PartitionImage, wanted: PartitionImage, unclean: Collection[BrokerId]) -> Brokers:
    return tuple(
        broker
        for broker in wanted.replicas
        if (broker in before.isr or broker in before.elr) and broker not in wanted.isr and broker not in unclean
    )


def _elect(before: PartitionImage, wanted: PartitionImage, circumstances: Circumstances) -> tuple[BrokerId, Outcome]:
    may_lead = circumstances.may_lead
    eligible = [broker for broker in wanted.replicas if broker in (wanted.isr or wanted.elr) and may_lead(broker)]
    if circumstances.election is Election.PREFERRED and wanted.replicas[0] in eligible:
        return wanted.replicas[0], Outcome.CLEAN
    if before.leader in eligible:
        return before.leader, Outcome.CLEAN
    if eligible:
        return eligible[0], Outcome.CLEAN
    if not wanted.isr and not wanted.elr and len(before.last_known_elr) == 1:
        last = before.last_known_elr[0]
        if last in wanted.replicas and last not in circumstances.wiped and may_lead(last):
            return last, Outcome.LAST_KNOWN
    if circumstances.election is Election.UNCLEAN:
        for broker in wanted.replicas:
            if may_lead(broker):
                return broker, Outcome.UNCLEAN
    return NO_LEADER, Outcome.CLEAN


def _last_known(before: PartitionImage, isr: Brokers, wiped: Collection[BrokerId]) -> Brokers:
    if isr:
        return ()
    last = before.last_known_elr if before.leader == NO_LEADER else (before.leader,)
    return tuple(broker for broker in last if broker not in wiped)


def record_of(
    topic_id: UUID, partition_id: int, before: PartitionImage, after: PartitionImage
) -> PartitionChangeRecord:
    """The record that makes ``after`` out of ``before``."""
    return PartitionChangeRecord(
        partition_id,
        topic_id,
        None if after.isr == before.isr else after.isr,
        None if after.leader == before.leader else after.leader,
        None if after.replicas == before.replicas else after.replicas,
        None if after.removing == before.removing else after.removing,
        None if after.adding == before.adding else after.adding,
        None if after.leader_recovery_state == before.leader_recovery_state else after.leader_recovery_state,
        None if after.elr == before.elr else after.elr,
        None if after.last_known_elr == before.last_known_elr else after.last_known_elr,
    )
