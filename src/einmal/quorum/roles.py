"""The roles of a quorum member, their state, and the valid transitions.

Every member is in one role of one epoch. An observer (a broker without a vote) is Unattached or a Follower only.
Only ``raft`` changes a role, within the transitions of the table below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from einmal.types import Offset


@dataclass(slots=True)
class Unattached:
    """Knows no leader; has perhaps voted (Kafka's older Voted). A voter seeks election at the deadline."""

    deadline: int | None


@dataclass(slots=True)
class Follower:
    """``has_fetched``: the leader has answered in this epoch, so it is alive, and no pre-vote is granted against it."""

    leader_id: int
    deadline: int
    has_fetched: bool = False
    is_leader_lost: bool = False
    candidacy_at: int | None = None
    """When to seek election before the deadline: the leader seems dead."""


@dataclass(slots=True)
class Seeking:
    """Votes of one election. ``refused`` counts voters that cannot be reached, too."""

    deadline: int
    granted: dict[int, None] = field(default_factory=dict)
    refused: dict[int, None] = field(default_factory=dict)


@dataclass(slots=True)
class Prospective(Seeking):
    """Asks whether it would be elected, without a new epoch (KIP-996), so that a lost election disturbs no leader."""


@dataclass(slots=True)
class Candidate(Seeking):
    """Has begun an epoch, voted for itself and asks for votes."""


@dataclass(slots=True)
class ReplicaState:
    """The leader's view of another member, voter or observer. -1: unknown."""

    end_offset: int = -1
    fetched_at: int = -1
    caught_up_at: int = -1
    leader_end_when_fetched: int = -1
    has_fetched: bool = False
    """In this epoch: it knows the leader."""

    def fetched(self, end_offset: int, leader_end: int, now: int) -> None:
        if end_offset >= leader_end:
            self.caught_up_at = max(self.caught_up_at, now)
        elif end_offset >= self.leader_end_when_fetched >= 0:
            self.caught_up_at = max(self.caught_up_at, self.fetched_at)
        self.end_offset = end_offset
        self.leader_end_when_fetched = leader_end
        self.fetched_at = now
        self.has_fetched = True


@dataclass(slots=True)
class Leader:
    epoch_start: int
    """The offset of its LeaderChange record: nothing counts as committed before that is."""
    granting: tuple[int, ...]
    voters: dict[int, ReplicaState]
    """The others, not the leader itself."""
    begin_epoch_at: int
    """When to send BeginQuorumEpoch again."""
    observers: dict[int, ReplicaState] = field(default_factory=dict)

    def committed_offset(self, own_end: int) -> Offset:
        """The offset that a majority of all voters has."""
        return Offset(self._of_majority(own_end, [voter.end_offset for voter in self.voters.values()]))

    def heard_at(self, now: int) -> int:
        """The time since which no majority, including the leader, has fetched."""
        return self._of_majority(now, [voter.fetched_at for voter in self.voters.values()])

    def _of_majority(self, own: int, others: list[int]) -> int:
        return sorted([own, *others], reverse=True)[majority_of(len(others) + 1) - 1]

    def successors(self) -> tuple[int, ...]:
        """The other voters, the most caught up first."""
        return tuple(sorted(self.voters, key=lambda voter: (-self.voters[voter].end_offset, voter)))


@dataclass(slots=True)
class Resigned:
    """Led this epoch and has resigned; waits for a successor, or seeks election at the deadline."""

    deadline: int


Role: TypeAlias = Unattached | Follower | Prospective | Candidate | Leader | Resigned

TRANSITIONS: Final[Mapping[type[Role], tuple[type[Role], ...]]] = {
    Unattached: (Unattached, Follower, Prospective),
    Follower: (Unattached, Follower, Prospective),
    Prospective: (Unattached, Follower, Candidate),
    Candidate: (Unattached, Follower, Leader),
    Leader: (Unattached, Follower, Resigned),
    Resigned: (Unattached, Follower, Prospective),
}
"""A Follower or Unattached of a later epoch is another role."""


def majority_of(voters: int) -> int:
    return voters // 2 + 1
