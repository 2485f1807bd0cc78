"""What a member of the quorum hears (events) and what is to be done then (effects), as values.

Members are node ids. Epochs are leader epochs of ``__cluster_metadata-0``. Offsets and times (ms) are plain ints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from einmal.quorum.election_state import ElectionState
from einmal.types import ErrorCode, Offset


class OffsetAndEpoch(NamedTuple):
    """Where a log, or a snapshot, ends, and the epoch of what is before it."""

    offset: int
    epoch: int


class RaftLog(Protocol):
    """What the machine reads of its log; it changes it by effects only."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def flushed_offset(self) -> int:
        """What is before it survives a power cut: only that counts towards a majority."""

    @property
    def high_watermark(self) -> Offset: ...

    @property
    def last_epoch(self) -> int:
        """Of the last batch, or of the snapshot that the log begins with; 0 when there is neither."""

    @property
    def snapshot_id(self) -> OffsetAndEpoch | None:
        """The latest snapshot, if there is one, from the log's start to its end."""

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch | None:
        """The largest epoch here that is not above ``epoch``, and where it ends; None: all that is here is later."""


class Reply(NamedTuple):
    """The answer to any of the quorum's requests; the last three are of Vote and Fetch."""

    error: ErrorCode
    leader_id: int | None
    leader_epoch: int
    vote_granted: bool = False
    diverging: OffsetAndEpoch | None = None
    snapshot_id: OffsetAndEpoch | None = None


# --- events ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tick:
    """A deadline may have passed."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """This node is about to stop: a leader gives up its office."""


@dataclass(frozen=True, slots=True)
class LeaderLost:
    """The connection to ``leader_id`` was lost and cannot be made again: it is probably dead."""

    leader_id: int


@dataclass(frozen=True, slots=True)
class VoteRequested:
    candidate_id: int
    epoch: int
    """The candidate's; with ``pre_vote`` it has not begun this epoch for the sake of the election."""
    log_end: OffsetAndEpoch
    pre_vote: bool


@dataclass(frozen=True, slots=True)
class VoteAnswered:
    """``reply`` None: the voter could not be reached."""

    voter_id: int
    epoch: int
    pre_vote: bool
    reply: Reply | None


@dataclass(frozen=True, slots=True)
class BeginQuorumEpochRequested:
    leader_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class EndQuorumEpochRequested:
    leader_id: int
    epoch: int
    successors: tuple[int, ...]
    """The most caught up first."""


@dataclass(frozen=True, slots=True)
class EpochAnswered:
    """To BeginQuorumEpoch or EndQuorumEpoch."""

    reply: Reply


@dataclass(frozen=True, slots=True)
class FetchRequested:
    """``epoch`` -1: the replica does not say. Everything before ``log_end`` is flushed there."""

    replica_id: int
    epoch: int
    log_end: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class FetchAnswered:
    """``log_end``: what was asked from. ``records``: whole batches from there on."""

    asked_id: int
    epoch: int
    log_end: OffsetAndEpoch
    reply: Reply
    high_watermark: int = -1
    records: bytes = b""


@dataclass(frozen=True, slots=True)
class SnapshotRequested:
    replica_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class SnapshotAnswered:
    """A part of a snapshot has come, or an error in its place."""

    asked_id: int
    epoch: int
    reply: Reply


Event: TypeAlias = (
    Tick
    | Stopping
    | LeaderLost
    | VoteRequested
    | VoteAnswered
    | BeginQuorumEpochRequested
    | EndQuorumEpochRequested
    | EpochAnswered
    | FetchRequested
    | FetchAnswered
    | SnapshotRequested
    | SnapshotAnswered
)


# --- effects -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Persist:
    """Write the state down, durably, before anything else of the same step is done or answered."""

    state: ElectionState


@dataclass(frozen=True, slots=True)
class Lead:
    """This node leads: append a LeaderChange record first of all."""

    epoch: int
    granting: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StopLeading:
    epoch: int


@dataclass(frozen=True, slots=True)
class Follow:
    """``leader_id`` None: nobody is known to lead."""

    leader_id: int | None
    epoch: int


@dataclass(frozen=True, slots=True)
class SendVote:
    to: int
    epoch: int
    log_end: OffsetAndEpoch
    pre_vote: bool


@dataclass(frozen=True, slots=True)
class SendBeginQuorumEpoch:
    to: int
    epoch: int


@dataclass(frozen=True, slots=True)
class SendEndQuorumEpoch:
    to: int
    epoch: int
    successors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """Of a leader."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class AppendFetched:
    """Append what the leader has sent, which may be nothing, and flush it before the next fetch."""

    records: bytes
    high_watermark: int


@dataclass(frozen=True, slots=True)
class TruncateTo:
    offset: Offset


@dataclass(frozen=True, slots=True)
class FetchSnapshot:
    """The leader no longer has what comes next: get this snapshot of it, and go on from its end."""

    leader_id: int
    snapshot_id: OffsetAndEpoch


Effect: TypeAlias = (
    Persist
    | Lead
    | StopLeading
    | Follow
    | SendVote
    | SendBeginQuorumEpoch
    | SendEndQuorumEpoch
    | AdvanceHighWatermark
    | AppendFetched
    | TruncateTo
    | FetchSnapshot
)


class Step(NamedTuple):
    """``effects`` in their order, then ``reply``, if the event was a request."""

    effects: tuple[Effect, ...]
    reply: Reply | None
