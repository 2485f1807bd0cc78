"""The inputs of a quorum member (events) and their consequences (effects), as values.

Members are node ids. Epochs are leader epochs of ``__cluster_metadata-0``. Offsets and times (ms) are plain ints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from einmal.quorum.election_state import ElectionState
from einmal.types import ErrorCode, Offset


class OffsetAndEpoch(NamedTuple):
    """The end of a log, or of a snapshot, and the epoch of the record before it."""

    offset: int
    epoch: int


class RaftLog(Protocol):
    """The machine's view of its log, which it changes by effects only."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def flushed_offset(self) -> int:
        """Records before it survive a power cut: only these count towards a majority."""

    @property
    def high_watermark(self) -> Offset: ...

    @property
    def last_epoch(self) -> int:
        """Epoch of the last batch, or of the snapshot that the log begins with; 0 without either."""

    @property
    def snapshot_id(self) -> OffsetAndEpoch | None:
        """The latest snapshot, if there is one, from the log's start to its end."""

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch | None:
        """The largest epoch here that is not above ``epoch``, and its end; None: all epochs here are later."""


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
class ResignRequested:
    """This node is about to stop, or cannot read its log: a leader resigns."""


@dataclass(frozen=True, slots=True)
class LeaderLost:
    """The connection to ``leader_id`` was lost and cannot be reopened: it is probably dead."""

    leader_id: int


@dataclass(frozen=True, slots=True)
class VoteRequested:
    candidate_id: int
    epoch: int
    """The candidate's; with ``pre_vote`` it has not begun this epoch."""
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
    """``epoch`` -1: the replica did not send it. Everything before ``log_end`` is flushed there."""

    replica_id: int
    epoch: int
    log_end: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class FetchAnswered:
    """``log_end``: the fetch offset. ``records``: whole batches from there on."""

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
    """A part of a snapshot has arrived, or an error."""

    asked_id: int
    epoch: int
    reply: Reply


Event: TypeAlias = (
    Tick
    | ResignRequested
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
    """Write the state down, durably, before any other effect or reply of the same step."""

    state: ElectionState


@dataclass(frozen=True, slots=True)
class Lead:
    """This node leads: append a LeaderChange record first."""

    epoch: int
    granting: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StopLeading:
    epoch: int


@dataclass(frozen=True, slots=True)
class Follow:
    """``leader_id`` None: no known leader."""

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
    """Advance of a leader's high watermark."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class AppendFetched:
    """Append the leader's records, if any, and flush them before the next fetch."""

    records: bytes
    high_watermark: int


@dataclass(frozen=True, slots=True)
class TruncateTo:
    offset: Offset


@dataclass(frozen=True, slots=True)
class FetchSnapshot:
    """The leader no longer has the next records: get this snapshot of it, and continue from its end."""

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
