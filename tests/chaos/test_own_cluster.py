"""Claims about the faults of a cluster of a run's own: which are drawn, and that a partition is healed."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any, cast

import pytest

from einmal.chaos.own_cluster import OwnCluster, Surroundings, mix_of
from einmal.local.clocks import Clocks
from einmal.local.layout import plan_hosts
from einmal.local.namespaces import Namespaces
from einmal.local.processes import LocalCluster
from tests.virtual_time import virtual_time


class Links:
    """Which packets are lost, in place of namespaces."""

    node_ids = (1, 2, 3)

    def __init__(self) -> None:
        self.lost: set[tuple[int, int]] = set()
        self.patterns: set[frozenset[tuple[int, int]]] = set()

    def command(self, node_id: int) -> list[str]:
        return []

    def cut(self, sender: int, receiver: int) -> None:
        self.lost.add((sender, receiver))
        self.patterns.add(frozenset(self.lost))

    def restore(self, sender: int, receiver: int) -> None:
        self.lost.discard((sender, receiver))


def own_cluster(links: Links, folder: Path) -> OwnCluster:
    cluster = LocalCluster(plan_hosts(folder, ["198.18.0.1", "198.18.0.2", "198.18.0.3"]))
    own = OwnCluster(cluster, "einmal", mix_of(["partitions"]), Surroundings(cast(Namespaces, links)))

    async def at_once(call: Any) -> None:
        call()

    # Virtual time does not wait for threads.
    own._in_thread = at_once  # type: ignore[method-assign]
    return own


@virtual_time
async def test_partitions_are_of_one_link_or_all_of_a_broker_one_way_or_both_and_end(tmp_path: Path) -> None:
    links, chance = Links(), random.Random(1)
    own = own_cluster(links, tmp_path)
    noted: list[str] = []
    for _ in range(60):
        await own.inject(chance, noted.append)
        assert not links.lost
    assert own.partitions == 60
    assert {len(pattern) for pattern in links.patterns} == {1, 2, 3, 4}
    words = ("no longer reaches", "no longer sends to", "no longer receives from")
    assert all(any(word in text for text in noted) for word in words)
    assert noted[1::2] == ["the partition is healed"] * 60


@virtual_time
async def test_a_run_that_ends_in_a_partition_heals_it(tmp_path: Path) -> None:
    links = Links()
    own = own_cluster(links, tmp_path)
    began = asyncio.Event()
    fault = asyncio.create_task(own.inject(random.Random(1), lambda _text: began.set()))
    await began.wait()
    await asyncio.sleep(0.1)
    assert links.lost
    fault.cancel()
    await asyncio.wait([fault])
    # None of them runs, and calm would start it.
    own._cluster.brokers = {}
    await own.calm()
    assert not links.lost


@pytest.mark.parametrize(
    ("kinds", "faults"),
    [
        (["brokers"], {"kill -9", "SIGSTOP", "clean restart"}),
        (["kills"], {"kill -9"}),
        (["kills", "partitions"], {"kill -9", "partition"}),
        (["brokers", "partitions"], {"kill -9", "SIGSTOP", "clean restart", "partition"}),
        (["clocks"], {"clock step"}),
        (["disks"], {"full disk", "slow disk"}),
    ],
)
def test_the_faults_are_of_the_kinds_that_were_asked_for(kinds: list[str], faults: set[str]) -> None:
    mix = mix_of(kinds)
    assert set(mix.weights) == faults
    assert mix.partitions == ("partition" in faults) and mix.clock_steps == ("clock step" in faults)


@virtual_time
async def test_a_clock_is_right_again_after_a_step_and_after_a_run_that_ends_in_one(tmp_path: Path) -> None:
    class Ahead:
        def __init__(self) -> None:
            self.seconds: list[float] = []

        def set(self, node_id: int, ahead_s: float) -> None:
            self.seconds.append(ahead_s)

    clocks, chance = Ahead(), random.Random(3)
    cluster = LocalCluster(plan_hosts(tmp_path, ["198.18.0.1"]))
    own = OwnCluster(cluster, "einmal", mix_of(["clocks"]), Surroundings(clocks=cast(Clocks, clocks)))
    for _ in range(40):
        await own.inject(chance, lambda _text: None)
    steps, after = clocks.seconds[::2], clocks.seconds[1::2]
    assert after == [0.0] * 40 and own.clock_steps == 40
    assert min(steps) < -1_800 and max(steps) > 1_800 and min(map(abs, steps)) < 1.0
    fault = asyncio.create_task(own.inject(chance, lambda _text: None))
    await asyncio.sleep(0.1)
    fault.cancel()
    await asyncio.wait([fault])
    assert clocks.seconds[-2] and not clocks.seconds[-1]
