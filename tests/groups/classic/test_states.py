"""Claims about the states of a group."""

from __future__ import annotations

import itertools

import pytest

from einmal.groups.classic.group import ClassicGroup
from einmal.groups.classic.states import VALID_MOVES, GroupState


@pytest.mark.parametrize(("origin", "target"), list(itertools.product(GroupState, GroupState)))
def test_only_the_moves_of_the_table_can_be_made(origin: GroupState, target: GroupState) -> None:
    group = ClassicGroup("g", origin)
    if target in VALID_MOVES[origin]:
        group.move_to(target)
        assert group.state is target
    else:
        with pytest.raises(AssertionError):
            group.move_to(target)


def test_every_state_can_be_left_but_the_dead_one() -> None:
    assert [state for state in GroupState if not VALID_MOVES[state]] == [GroupState.DEAD]


def test_a_group_becomes_stable_only_by_completing_a_rebalance() -> None:
    origins = [state for state in GroupState if GroupState.STABLE in VALID_MOVES[state]]
    assert origins == [GroupState.COMPLETING_REBALANCE]
