"""Why a partition's last stable offset stands still, and the safe way out. No I/O: the findings come from the caller.

A transaction is open in a partition's log and at its coordinator; the coordinator ends it everywhere. It hangs where
the log has it and no coordinator does: nobody will write its marker.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from einmal.inspection.model import NOT_REPORTED, ProducerView, TransactionView
from einmal.types import TopicPartition

QUIET: Final = "No transaction is older than its time-out; every reader can read to the end."
_ENDING: Final = ("PrepareCommit", "PrepareAbort")


class Cause(StrEnum):
    ALIVE = "open"
    OVERDUE = "overdue"
    TWO_PHASE = "two-phase"
    ENDING = "marker missing"
    HANGING = "hanging"
    SETTLING = "settling"
    UNKNOWN = "unknown"


MEANINGS: Final[Mapping[Cause, str]] = {
    Cause.ALIVE: "open and younger than its time-out: its producer may be alive",
    Cause.OVERDUE: "open past its time-out: its coordinator has not aborted it yet",
    Cause.TWO_PHASE: "open without a time-out: a two-phase commit waits for its database's decision",
    Cause.ENDING: "prepared, and the marker of this partition is missing: its coordinator has decided its end",
    Cause.HANGING: "hanging: no coordinator knows it in this partition, so nobody will end it",
    Cause.SETTLING: "no transaction is open: the last marker is not replicated yet",
    Cause.UNKNOWN: "whose transaction holds it, or whether its coordinator will end it, is not known now",
}


@dataclass(frozen=True, slots=True)
class Open:
    """An open transaction in a partition, as its leader and coordinators report it.

    ``producer`` None: the leader reports none that is open, or could not be asked. ``owners``: what coordinators have
    under its producer id. ``unclear``: why they, or the leader, could not all be asked.
    """

    partition: TopicPartition
    producer: ProducerView | None
    owners: Sequence[TransactionView]
    unclear: str | None = None


@dataclass(frozen=True, slots=True)
class WayOut:
    """``wait_ms``: how long its coordinator leaves it open. ``command``: what ends it, None where nothing may."""

    advice: str
    command: str | None = None
    wait_ms: int | None = None


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """``is_at_the_end``: it has read everything that it can."""

    group_id: str
    offset: int
    is_at_the_end: bool


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose transaction it is. ``since``: when it began, or its first record's time."""

    transactional_id: str | None
    producer_id: int
    producer_epoch: int
    start_offset: int
    last_timestamp: int
    since: int | None
    state: str | None
    client_id: str | None
    client_host: str | None
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HeldPartition:
    """An open transaction in a partition; the first one of a partition holds its last stable offset.

    ``records_waiting``: records that readers of committed data may get once it is ended. ``is_upper_bound``: counted by
    offsets, markers included. ``waiting_groups``: those that could be asked; None where none could.
    """

    topic: str
    partition: int
    last_stable_offset: int
    high_watermark: int
    is_first: bool
    cause: Cause
    holder: Holder | None
    records_waiting: int
    is_upper_bound: bool
    waiting_groups: tuple[WaitingGroup, ...] | None
    way_out: WayOut
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """``overdue``: transactional ids whose transactions are past their time-out. ``unseen``: partitions that could not
    be examined, and why."""

    verdict: str
    time: int
    held: tuple[HeldPartition, ...]
    overdue: tuple[str, ...]
    unseen: Mapping[str, str]

    @property
    def is_quiet(self) -> bool:
        return not (self.held or self.overdue or self.unseen)


def owner_of(open_transaction: Open) -> TransactionView | None:
    """The transaction of the coordinators that this is, or the transactional id that it was written under."""
    at = str(open_transaction.partition)
    managed = [owner for owner in open_transaction.owners if owner.is_open]
    having = [owner for owner in managed if owner.partitions is None or at in owner.partitions]
    return next(iter([*having, *managed, *open_transaction.owners]), None)


def cause_of(open_transaction: Open) -> Cause:
    """Why the partition is held back by this."""
    if open_transaction.unclear is not None:
        return Cause.UNKNOWN
    if open_transaction.producer is None:
        return Cause.SETTLING
    owner = owner_of(open_transaction)
    if owner is None or not owner.is_open:
        return Cause.HANGING
    if owner.partitions is None:
        return Cause.UNKNOWN
    if str(open_transaction.partition) not in owner.partitions:
        return Cause.HANGING
    if owner.state in _ENDING:
        return Cause.ENDING
    if owner.is_two_phase:
        return Cause.TWO_PHASE
    return Cause.OVERDUE if owner.is_overdue else Cause.ALIVE


def way_out(open_transaction: Open, cause: Cause) -> WayOut:
    """Advise safely: nothing here tears a transaction that its coordinator still manages."""
    owner, producer = owner_of(open_transaction), open_transaction.producer
    by_id = None if owner is None else f"einmal txn abort {_argument(owner.transactional_id)}"
    if cause is Cause.HANGING and producer is not None:
        if owner is not None and owner.is_open:
            return _elsewhere(owner)
        at = (
            f"--topic {shlex.quote(open_transaction.partition.topic)} "
            f"--partition {open_transaction.partition.partition}"
        )
        command = f"einmal txn abort {at} --start-offset {producer.transaction_start_offset}"
        return WayOut("write the missing abort marker", command)
    if cause is Cause.ALIVE and owner is not None and owner.age_ms is not None and owner.timeout_ms is not None:
        left = max(0, owner.timeout_ms - owner.age_ms)
        advice = f"wait: its coordinator aborts it in {-(-left // 1000)} s; if its producer is dead, abort it now"
        return WayOut(advice, by_id, left)
    if cause is Cause.TWO_PHASE:
        return WayOut("start its program, which completes it: an abort tears what the database may have committed")
    if cause is Cause.ENDING and owner is not None:
        advice = "wait: its coordinator repeats the marker until the partition's leader takes it; look whether it does"
        return WayOut(advice, f"einmal txn describe {_argument(owner.transactional_id)}")
    if cause is Cause.OVERDUE or (cause is Cause.ALIVE and by_id is not None):
        return WayOut("abort it", by_id)
    if cause is Cause.SETTLING:
        return WayOut(
            "wait until its replicas have the marker, or look which of them is missing", _describe(open_transaction)
        )
    why = open_transaction.unclear or NOT_REPORTED
    return WayOut(
        f"ask again once leader and coordinator answer, and with every permission: {why}", "einmal txn doctor"
    )


def _elsewhere(owner: TransactionView) -> WayOut:
    """Its producer has another transaction open, in other partitions: a marker in this one waits for that one's end."""
    if owner.state in _ENDING:
        advice = "wait until its coordinator has ended what its producer has open elsewhere, then ask again"
        return WayOut(advice, f"einmal txn describe {_argument(owner.transactional_id)}")
    if owner.is_two_phase:
        # An abort would tear what the database may have committed.
        return WayOut("start its program, which completes what it has open elsewhere, then ask again")
    advice = "end what its producer has open elsewhere, then ask again"
    return WayOut(advice, f"einmal txn abort {_argument(owner.transactional_id)}")


def _describe(open_transaction: Open) -> str:
    return f"einmal topic describe {_argument(open_transaction.partition.topic)}"


def _argument(name: str) -> str:
    """A name as the last argument of a command: one that begins like an option is none."""
    return f"-- {shlex.quote(name)}" if name.startswith("-") else shlex.quote(name)


def verdict(held: Sequence[HeldPartition], overdue: Sequence[str], unseen: Mapping[str, str]) -> str:
    """The first sentence of the answer."""
    partitions = dict.fromkeys((partition.topic, partition.partition) for partition in held)
    if partitions:
        firsts = [partition.cause for partition in held if partition.is_first]
        causes = ", ".join(f"{firsts.count(cause)} {cause}" for cause in Cause if cause in firsts)
        what = "1 partition is" if len(partitions) == 1 else f"{len(partitions)} partitions are"
        return f"Readers of committed records cannot read to the end: {what} held back ({causes})."
    if overdue:
        return f"Every reader can read to the end, but {len(overdue)} of the transactions are past their time-out."
    if unseen:
        return f"Nothing is held back in the partitions that could be examined; {len(unseen)} could not."
    return QUIET
