"""A cluster of a run's own, with faults that a seed draws: kill -9, SIGSTOP, clean restarts, partitions of brokers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Self

from einmal.chaos.cluster_faults import ClusterFaults
from einmal.local.clocks import Clocks
from einmal.local.disks import Disks, DisksMissing
from einmal.local.layout import data_folder
from einmal.local.namespaces import Namespaces
from einmal.local.processes import NodeProcess, ProcessCluster

_PAUSE_S: Final = (0.3, 12.0)
"""Shorter and longer than a broker's session."""
_PARTITION_S: Final = (0.3, 20.0)
"""Longer, too, than a follower may be behind before it leaves the ISR."""
_CALM_S: Final = (1.5, 4.0)
_DOWN_S: Final = (0.0, 2.0)
_PARTITION: Final = "partition"
_CLOCK: Final = "clock step"
_STEPS_S: Final = (1.0, 30.0, 600.0, 3_600.0)
"""Up to longer than any transaction may take."""
_WRONG_S: Final = (1.0, 15.0)
"""How long a clock is wrong, or a disk full or slow."""
_FULL_DISK: Final = "full disk"
_SLOW_DISK: Final = "slow disk"
_DELAY_S: Final = (0.05, 2.0)
"""Added to a flush."""
_WEIGHTS: Final[Mapping[str, Mapping[str, int]]] = {
    "brokers": {"kill -9": 3, "SIGSTOP": 2, "clean restart": 2},
    "kills": {"kill -9": 1},
    "partitions": {_PARTITION: 3},
    "clocks": {_CLOCK: 2},
    "disks": {_FULL_DISK: 1, _SLOW_DISK: 1},
}


class FaultMix(NamedTuple):
    """``weights``: of the faults, by which they are drawn. ``calm_s``, ``down_s``: bounds of the calm before a fault,
    and of the time in which a broker is down."""

    weights: Mapping[str, int]
    calm_s: tuple[float, float]
    down_s: tuple[float, float]

    @property
    def partitions(self) -> bool:
        """Whether the brokers need a network of their own."""
        return _PARTITION in self.weights

    @property
    def disks(self) -> bool:
        """Whether the brokers need disks of their own."""
        return _FULL_DISK in self.weights

    @property
    def clock_steps(self) -> bool:
        """Whether the brokers need clocks of their own."""
        return _CLOCK in self.weights


def mix_of(kinds: Collection[str]) -> FaultMix:
    """The faults of the kinds ``brokers``, ``kills``, ``partitions``, ``clocks`` and ``disks``.

    Kills alone follow one another at once.
    """
    weights = {fault: weight for kind in sorted(kinds) for fault, weight in _WEIGHTS[kind].items()}
    return FaultMix(weights, (0.0, 1.0), (0.0, 1.0)) if [*kinds] == ["kills"] else FaultMix(weights, _CALM_S, _DOWN_S)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Namespaces, clocks and disks that faults need around the brokers, before these start."""

    namespaces: Namespaces | None = None
    clocks: Clocks | None = None
    disks: Disks | None = None

    @classmethod
    def of(cls, mix: FaultMix, folder: Path, nodes: int) -> Self:
        """Raises NamespacesMissing, ClocksMissing, DisksMissing."""
        clocks = Clocks(folder, nodes) if mix.clock_steps else None
        namespaces = Namespaces(nodes) if mix.partitions else None
        try:
            disks = (
                Disks({number: data_folder(folder, number) for number in range(1, nodes + 1)}) if mix.disks else None
            )
        except DisksMissing:
            cls(namespaces).close()
            raise
        return cls(namespaces, clocks, disks)

    @property
    def hosts(self) -> list[str]:
        """A host for each broker; none: all are on the loopback interface."""
        return [] if self.namespaces is None else list(map(self.namespaces.host, self.namespaces.node_ids))

    def command(self, node_id: int) -> list[str]:
        """Return what comes before the command of a broker."""
        around = [] if self.namespaces is None else self.namespaces.command(node_id)
        return around if self.clocks is None else [*around, *self.clocks.command(node_id)]

    def close(self) -> None:
        """After the brokers have ended."""
        if self.namespaces is not None:
            self.namespaces.close()
        if self.disks is not None:
            self.disks.close()


class OwnCluster:
    """A cluster of the run's own. ``software``: in words. Calls of brokers block, so they run in threads.

    ``surroundings``: of its brokers; they end with it.
    """

    def __init__(
        self,
        cluster: ProcessCluster[NodeProcess],
        software: str,
        mix: FaultMix,
        surroundings: Surroundings,
    ) -> None:
        self.software = software
        self.calm_s = mix.calm_s
        self.failures = 0
        """How often a broker was killed, paused or restarted."""
        self.partitions = 0
        """How often brokers were cut off from one another."""
        self.clock_steps = 0
        self._mix = mix
        self._cluster = cluster
        self._surroundings = surroundings
        self._namespaces = surroundings.namespaces
        self._clocks = surroundings.clocks
        self._disks = surroundings.disks
        self._cut: dict[tuple[int, int], None] = {}
        self._faults = ClusterFaults(cluster)
        self._call: asyncio.Future[None] | None = None

    @property
    def bootstrap_servers(self) -> str:
        return self._cluster.bootstrap_servers

    def start(self) -> None:
        """Raises BrokerFailed."""
        self._cluster.start()

    def close(self) -> None:
        self._faults.close()
        self._cluster.kill()
        self._surroundings.close()

    async def inject(self, chance: random.Random, note: Callable[[str], None]) -> None:
        """One fault of one broker, to its end. Raises BrokerFailed."""
        (fault,) = chance.choices(list(self._mix.weights), list(self._mix.weights.values()))
        node_id = chance.choice(list(self._cluster.brokers))
        if fault == _PARTITION and self._namespaces is not None:
            await self._partition(self._namespaces, node_id, chance, note)
            return
        if fault == _CLOCK and self._clocks is not None:
            await self._step_clock(self._clocks, node_id, chance, note)
            return
        if fault in (_FULL_DISK, _SLOW_DISK) and self._disks is not None:
            await self._disturb_disk(self._disks, fault, node_id, chance, note)
            return
        self.failures += 1
        note(f"{fault} of broker {node_id}")
        if fault == "SIGSTOP":
            self._faults.pause(node_id)
            try:
                await asyncio.sleep(chance.uniform(*_PAUSE_S))
            finally:
                self._faults.resume(node_id)
        else:
            seconds = chance.uniform(*self._mix.down_s)
            end = self._faults.stop if fault == "clean restart" else self._faults.kill
            await self._in_thread(partial(end, node_id))
            await asyncio.sleep(seconds)
            await self._in_thread(partial(self._faults.start, node_id))
        note(f"broker {node_id} serves again")

    async def _partition(
        self, namespaces: Namespaces, node_id: int, chance: random.Random, note: Callable[[str], None]
    ) -> None:
        """Cut a broker off from the others, or from one of them, in both directions or one. Clients reach them all."""
        others = [other for other in namespaces.node_ids if other != node_id]
        if chance.random() < 0.5:
            others = [chance.choice(others)]
        sends, receives = chance.choice([(False, False), (False, True), (True, False)])
        cut = [(node_id, other) for other in others if not sends]
        cut += [(other, node_id) for other in others if not receives]
        what = "sends to" if receives else "receives from" if sends else "reaches"
        note(f"partition: broker {node_id} no longer {what} {' and '.join(f'broker {other}' for other in others)}")
        self.partitions += 1
        self._cut = dict.fromkeys(cut)
        await self._in_thread(partial(_for_each, namespaces.cut, cut))
        await asyncio.sleep(chance.uniform(*_PARTITION_S))
        await self._heal(namespaces)
        note("the partition is healed")

    async def _heal(self, namespaces: Namespaces) -> None:
        await self._in_thread(partial(_for_each, namespaces.restore, list(self._cut)))
        self._cut.clear()

    async def _step_clock(
        self, clocks: Clocks, node_id: int, chance: random.Random, note: Callable[[str], None]
    ) -> None:
        """Let the clock of a broker jump, and jump back."""
        seconds = round(chance.choice(_STEPS_S) * chance.uniform(0.5, 1.0), 1)
        is_ahead = chance.random() < 0.5
        note(f"clock step: that of broker {node_id} is {seconds:g} s {'ahead' if is_ahead else 'behind'}")
        self.clock_steps += 1
        try:
            clocks.set(node_id, seconds if is_ahead else -seconds)
            await asyncio.sleep(chance.uniform(*_WRONG_S))
        finally:
            clocks.set(node_id, 0.0)
        note(f"the clock of broker {node_id} is right again")

    async def _disturb_disk(
        self, disks: Disks, fault: str, node_id: int, chance: random.Random, note: Callable[[str], None]
    ) -> None:
        """Take the space of a broker's disk, or slow its flushes down. Raises BrokerFailed, DisksMissing."""
        delay_s = round(chance.uniform(*_DELAY_S), 2)
        note(f"{fault} of broker {node_id}{'' if fault == _FULL_DISK else f': a flush takes {delay_s:g} s more'}")
        try:
            if fault == _FULL_DISK:
                await self._in_thread(partial(disks.fill, node_id))
            else:
                disks.slow_down(node_id, self._cluster.brokers[node_id].pid, delay_s)
            await asyncio.sleep(chance.uniform(*_WRONG_S))
        finally:
            disks.speed_up(node_id)
            # A thread that still fills it has its descriptor, whose number would be another file's: then calm frees it.
            if self._call is None or self._call.done():
                disks.free(node_id)
        if not self._cluster.brokers[node_id].is_running:
            # A broker may end where it cannot write.
            await self._in_thread(partial(self._faults.start, node_id))
        note(f"the disk of broker {node_id} is as before")

    async def calm(self) -> None:
        """Heal the network, and bring back every broker. Raises BrokerFailed."""
        if self._call is not None:
            # A broker that is still on its way down would not come back otherwise, and a late cut would stay.
            await self._call
        if self._disks is not None:
            for node_id in self._cluster.brokers:
                self._disks.free(node_id)
        if self._namespaces is not None:
            await self._heal(self._namespaces)
        for node_id, broker in self._cluster.brokers.items():
            self._faults.resume(node_id)
            if not broker.is_running:
                await self._in_thread(partial(self._faults.start, node_id))

    async def _in_thread(self, call: Callable[[], None]) -> None:
        """Raises BrokerFailed. A call that has begun ends, also where nobody waits for it any more."""
        self._call = asyncio.ensure_future(asyncio.to_thread(call))
        await asyncio.shield(self._call)


def _for_each(change: Callable[[int, int], None], links: Iterable[tuple[int, int]]) -> None:
    for sender, receiver in links:
        change(sender, receiver)
