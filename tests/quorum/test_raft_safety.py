"""Thousands of short runs of a model quorum under faults: what Raft promises holds, and calm brings a leader."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.quorum.model import Faults, World

RUNS = 1_000
STORM = Faults(loss=0.1, duplication=0.1, delay_max=60, slow=0.05, slow_flush=0.1)
LATE_MS = 2_000
"""The storm's last messages come so late at most."""


def trouble(world: World) -> None:  # noqa: C901 - one case for each kind
    """One random misfortune, or a client's write."""
    source = world.source
    node_id = source.choice(list(world.members))
    member = world.members[node_id]
    match source.randrange(12):
        case 0:
            if member.raft is not None:
                world.crash(node_id)
        case 1:
            for each in world.members.values():
                if each.raft is not None and source.random() < 0.7:
                    world.crash(each.node_id)
                    if source.random() < 0.8:
                        world.start(each.node_id)
        case 2 | 3 | 4:
            if member.raft is None:
                world.start(node_id)
        case 5:
            other = source.choice(list(world.members))
            world.cut[node_id, other] = None
            if source.random() < 0.5:
                world.cut[other, node_id] = None
        case 6:
            world.cut.clear()
        case 7:
            if member.raft is not None and member.raft.is_leader:
                world.stop(node_id)
        case 8:
            member.log.take_snapshot()
            if source.random() < 0.5:
                member.log.forget_prefix()
        case _:
            for each in world.members.values():
                if each.raft is not None and each.raft.is_leader:
                    world.append(each, f"value {world.count}")


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, 4))])
def test_what_raft_promises_holds_in_every_storm_and_calm_brings_a_leader(part: int) -> None:
    commits = elections = 0
    for seed in range(part * RUNS // 4, (part + 1) * RUNS // 4):
        world = World(seed, voters=(3, 3, 5, 2)[seed % 4], observers=seed % 3 // 2, faults=STORM)
        if seed % 5 == 0:
            world.faults = replace(STORM, loss=0.3)
        for _ in range(30):
            world.run(world.source.randrange(300))
            trouble(world)
            world.check_logs_match()
        world.heal()
        world.run(LATE_MS)
        assert world.run_until(world.has_leader, 10_000), f"seed {seed}: no leader"
        leader = world.leader
        assert leader is not None
        world.append(leader, "at last")
        end = leader.log.end_offset
        caught_up = world.run_until(lambda: all(m.log.high_watermark >= end for m in world.members.values()), 10_000)  # noqa: B023
        assert caught_up, f"seed {seed}: not committed everywhere"
        world.check_logs_match()
        commits += len(world.committed)
        elections += world.elections
    assert elections > RUNS // 4
    assert commits > RUNS
