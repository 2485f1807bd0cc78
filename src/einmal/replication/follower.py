"""A follower's fetch requests, and what it does with the answers.

Pure: decides from the log's offsets and epochs; the caller carries it out. A follower never truncates to its high
watermark, which may be behind what is committed, but to where its epochs and its leader's diverge (KIP-101, KIP-279;
the answer has the leader's side, as in KIP-595). Each truncation removes records, so the two soon agree.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol, TypeAlias

from einmal.types import NO_LEADER_EPOCH, ErrorCode, LeaderEpoch, Offset
from einmal.wire.fetch import EpochEndOffset, FetchedPartition, FetchPartition
from einmal.wire.produce import Records


class ReplicaLog(Protocol):
    """The required interface of a log. In a follower's log an epoch without a batch does not exist."""

    @property
    def log_start_offset(self) -> Offset: ...

    @property
    def log_end_offset(self) -> Offset: ...

    @property
    def latest_epoch(self) -> LeaderEpoch: ...

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """The largest epoch here that is not above ``epoch``, and its end."""


class Append(NamedTuple):
    """Append ``records``, which may be empty, then adopt the leader's high watermark and log start offset.

    ``high_watermark`` may be beyond the own end; -1: unknown.
    """

    records: Records
    high_watermark: Offset
    log_start_offset: Offset


class Truncate(NamedTuple):
    """Truncate to ``offset``, and fetch again."""

    offset: Offset


class Restart(NamedTuple):
    """The whole log is useless: begin with an empty one at ``offset``, and fetch again."""

    offset: Offset


class Later(NamedTuple):
    """Fetch again after a pause; the leader may not know yet that it leads."""

    error: ErrorCode


class Outdated(NamedTuple):
    """There is a newer leader epoch: do not fetch before it is known here."""


Step: TypeAlias = Append | Truncate | Restart | Later | Outdated
_OUTDATED: Final = Outdated()


def question(log: ReplicaLog, partition: int, leader_epoch: LeaderEpoch, max_bytes: int) -> FetchPartition:
    """The request to the leader of ``leader_epoch``."""
    return FetchPartition(
        partition, log.log_end_offset, max_bytes, leader_epoch, log.latest_epoch, log.log_start_offset
    )


def divergence(leader_log: ReplicaLog, asked: FetchPartition) -> EpochEndOffset | None:
    """The leader's side: where the follower's log and the leader's diverge, if they do."""
    if asked.last_fetched_epoch < 0:
        return None
    epoch, end_offset = leader_log.end_offset_for_epoch(LeaderEpoch(asked.last_fetched_epoch))
    if epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset:
        return EpochEndOffset(epoch, end_offset)
    return None


def next_step(log: ReplicaLog, answer: FetchedPartition) -> Step:
    """The step after the answer to ``question``; the log has not changed since."""
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
    """The leader no longer has the next records; to a log that is too long it would have sent a diverging epoch."""
    start = Offset(answer.log_start_offset)
    if start < 0 or start == log.log_end_offset:
        return Later(answer.error_code)
    return Restart(start)


def _truncation(log: ReplicaLog, leader_epoch: LeaderEpoch, leader_end: Offset) -> Step:
    """Where to continue after the answer with the leader's largest epoch up to our last one, and the end of that."""
    if leader_epoch == NO_LEADER_EPOCH:
        return Later(ErrorCode.unknown_leader_epoch)
    # If only the leader has records of that epoch, our previous epoch ends earlier: ask again from there.
    _epoch, end = log.end_offset_for_epoch(leader_epoch)
    offset = min(end, leader_end)
    if not 0 <= offset < log.log_end_offset:
        # With a correct leader every truncation removes records.
        return Later(ErrorCode.unknown_server_error)
    return Truncate(offset) if offset >= log.log_start_offset else Restart(offset)
