"""The states of a group of the classic protocol, and the moves between them, as data.

Names are those that DescribeGroups and ListGroups show.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class GroupState(Enum):
    EMPTY = "Empty"
    """No members; perhaps committed offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Waiting for the members to (re)join."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """A new generation: waiting for the leader's assignment."""
    STABLE = "Stable"
    """Every member of the generation can have its assignment."""
    DEAD = "Dead"
    """Forgotten; nothing leads out of here."""


VALID_MOVES: Final[Mapping[GroupState, frozenset[GroupState]]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.COMPLETING_REBALANCE, GroupState.EMPTY, GroupState.DEAD}),
    GroupState.COMPLETING_REBALANCE: frozenset(
        {GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.DEAD},
    ),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}
