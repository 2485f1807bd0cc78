"""What a follower asks its leader for, and what it does with the answer.

Pure: decides on what the log says of itself; the caller carries it out. A follower never truncates to its high
watermark, which may be behind what is committed, but to where its epochs and its leader's part (KIP-101, KIP-279, with
the leader's side of it in the answer as in KIP-595). Each truncation cuts something off, so the two soon agree.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol, TypeAlias

from einmal.types import NO_LEADER_EPOCH, ErrorCode, LeaderEpoch, Offset
from einmal.wire.fetch import EpochEndOffset, FetchedPartition, FetchPartition
from einmal.wire.produce import Records


class ReplicaLog(Protocol):
    """A log, as far as it matters here. In a follower's, an epoch without a batch is none."""

    @property
    def log_start_offset(self) -> Offset: ...

    @property
    def log_end_offset(self) -> Offset: ...

    @property
    def latest_epoch(self) -> LeaderEpoch: ...

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """The largest epoch here that is not above ``epoch``, and where it ends."""


class Append(NamedTuple):
    """Append ``records``, which may be empty, then take over how far the leader's log is committed and where it starts.

    ``high_watermark`` may be beyond the own end, and -1: unknown.
    """

    records: Records
    high_watermark: Offset
    log_start_offset: Offset


class Truncate(NamedTuple):
    """Cut off what is at or after ``offset``, and ask again."""

    offset: Offset


class Restart(NamedTuple):
    """Nothing here is of use: begin with an empty log at ``offset``, and ask again."""

    offset: Offset


class Later(NamedTuple):
    """Ask again after a pause; the leader may not know yet that it leads."""

    error: ErrorCode


class Outdated(NamedTuple):
    """There is a newer leader epoch: ask nobody before it is known here."""


Step: TypeAlias = Append | Truncate | Restart | Later | Outdated
_OUTDATED: Final = Outdated()


def question(log: ReplicaLog, partition: int, leader_epoch: LeaderEpoch, max_bytes: int) -> FetchPartition:
    """What to ask the leader of ``leader_epoch`` for."""
    return FetchPartition(
        partition, log.log_end_offset, max_bytes, leader_epoch, log.latest_epoch, log.log_start_offset
    )


def divergence(leader_log: ReplicaLog, asked: FetchPartition) -> EpochEndOffset | None:
    """The leader's side: where the log of whoever asks and the leader's part, if they do."""
    if asked.last_fetched_epoch < 0:
        return None
    epoch, end_offset = leader_log.end_offset_for_epoch(LeaderEpoch(asked.last_fetched_epoch))
    if epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset:
        return EpochEndOffset(epoch, end_offset)
    return None


def next_step(log: ReplicaLog, answer: FetchedPartition) -> Step:
    """What to do with the answer to ``question``; the log is as it was then."""
    error = answer.error_code
    if error is ErrorCode.offset_out_of_range:
        return _out_of_range(log, answer)
    if error is ErrorCode.fenced_leader_epoch:
        return _OUTDATED
    if error is not ErrorCode.none:
        return Later(error)
    if answer.diverging_epoch is not None:
        return _truncation(log, LeaderEpoch(answer.diverging_epoch.epoch), Offset(answer.diverging_epoch.end_offset))
    return Append(answer.records, Offset(answer.high_watermark), Offset(answer.log_start_offset))


def _out_of_range(log: ReplicaLog, answer: FetchedPartition) -> Step:
    """The leader no longer has what comes next; that the log is too long it would have told by its epochs."""
    start = Offset(answer.log_start_offset)
    if start < 0 or start == log.log_end_offset:
        return Later(answer.error_code)
    return Restart(start)


def _truncation(log: ReplicaLog, leader_epoch: LeaderEpoch, leader_end: Offset) -> Step:
    """Where to go on after the leader has said which of its epochs is the largest up to our last, and where it ends."""
    if leader_epoch == NO_LEADER_EPOCH:
        return Later(ErrorCode.unknown_leader_epoch)
    # Where only the leader has written in that epoch, ours before it ends earlier: ask again from there.
    _epoch, end = log.end_offset_for_epoch(leader_epoch)
    offset = min(end, leader_end)
    if not 0 <= offset < log.log_end_offset:
        # A leader that makes sense lets every truncation cut something off.
        return Later(ErrorCode.unknown_server_error)
    return Truncate(offset) if offset >= log.log_start_offset else Restart(offset)
