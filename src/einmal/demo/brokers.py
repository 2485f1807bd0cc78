"""The demo's three brokers: who plays which part in them, killed and started again.

Which broker leads and which one coordinates is never assumed: the cluster is asked, as any client would ask it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from einmal.client import Admin, NewTopic
from einmal.client.cores.metadata_cache import TopicMetadata
from einmal.client.errors import UnknownTopic
from einmal.local.processes import BrokerFailed, LocalCluster

BROKERS: Final = 3
REPLICAS: Final = 3
IN_SYNC: Final = 2
_RECOVERY_SECONDS_MAX: Final = 60.0
_LOOK_SECONDS: Final = 0.01


class Tell(Protocol):
    """Where it goes what happens to a broker. ``kind``: kill, failover, or back."""

    def __call__(self, kind: str, text: str, broker: int) -> None: ...


class Brokers:
    """A fresh cluster in ``folder``."""

    def __init__(self, folder: Path, tell: Tell) -> None:
        folder.mkdir(parents=True)
        self._cluster = LocalCluster.on_loopback(folder, BROKERS)
        self._tell = tell
        self._admin = self.admin()
        self.ids = tuple(self._cluster.brokers)
        self._has_ended = False
        self._partitions: dict[str, int] = {}
        """Partition counts of the topics that this made."""

    @property
    def bootstrap_servers(self) -> str:
        return self._cluster.bootstrap_servers

    def admin(self) -> Admin:
        return Admin({"bootstrap.servers": self.bootstrap_servers})

    def start(self) -> None:
        """Returns once all serve. Raises BrokerFailed."""
        self._cluster.start()

    def end(self) -> None:
        """Their data is not needed any more: by SIGKILL."""
        self._has_ended = True
        self._admin.close()
        self._cluster.kill()

    def create_topics(self, names: tuple[str, ...], partitions: int) -> None:
        configs = {"min.insync.replicas": str(IN_SYNC)}
        self._admin.create_topics([NewTopic(name, partitions, REPLICAS, configs) for name in names])
        self._partitions |= dict.fromkeys(names, partitions)

    # --- kills ------------------------------------------------------------------------------------------------------

    def kill_leader(self, topic: str, when: str) -> None:
        """Kill the broker that leads most of the topic; returns once the cluster is whole again."""
        before = self.leaders(topic)
        victim = max(before, key=lambda broker: (before[broker], -broker))
        led = f"{before[victim]} of the {before.total()} partitions of {topic}"
        self._kill(victim, f"broker {victim}, leader of {led}, killed (SIGKILL) {when}")
        began = time.monotonic()
        after = self.leaders(topic, lambda counts: not counts.keys() & {victim, -1})
        heirs = [broker for broker, count in (after - before).items() if count]
        names = " and ".join(map(str, sorted(heirs)))
        self._tell("failover", f"broker {names} leads them, after {time.monotonic() - began:.2f} s", heirs[0])
        self._start_again(victim)

    def kill_coordinator(self, transactional_id: str, when: str, then: Callable[[], None]) -> None:
        """Kill the name's transaction coordinator, do ``then``; returns once the cluster is whole again."""
        victim = self._coordinator(transactional_id)
        self._kill(victim, f"broker {victim}, transaction coordinator, killed (SIGKILL) {when}")
        began = time.monotonic()
        then()
        heir = self._coordinator(transactional_id)
        self._tell("failover", f"broker {heir} coordinates, after {time.monotonic() - began:.2f} s", heir)
        self._start_again(victim)

    def _kill(self, victim: int, text: str) -> None:
        self._cluster.brokers[victim].kill()
        self._tell("kill", text, victim)

    def _start_again(self, victim: int) -> None:
        broker = self._cluster.brokers[victim]
        broker.start()
        if self._has_ended:
            broker.kill()
            return
        broker.wait_until_ready()
        self._until(self._is_whole)
        self._tell("back", f"broker {victim} is back, and every replica in sync", victim)

    def _until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _RECOVERY_SECONDS_MAX
        while True:
            try:
                if is_so():
                    return
            except UnknownTopic:
                # The broker that was asked is behind: a topic is made when most of the controllers know it.
                pass
            if time.monotonic() > deadline:
                raise BrokerFailed(f"the cluster is not whole after {_RECOVERY_SECONDS_MAX:.0f} s")
            time.sleep(_LOOK_SECONDS)

    # --- who is who -------------------------------------------------------------------------------------------------

    def leaders(self, topic: str, is_so: Callable[[Counter[int]], bool] = bool) -> Counter[int]:
        """As ``leaders`` below, once the topic is known and ``is_so`` holds."""
        counts: Counter[int] = Counter()

        def look() -> bool:
            nonlocal counts
            counts = leaders(self._admin, topic)
            return is_so(counts)

        self._until(look)
        return counts

    def _coordinator(self, transactional_id: str) -> int:
        return coordinator(self._admin, transactional_id)

    def _is_whole(self) -> bool:
        topics = self._admin.describe_topics(self._admin.list_topics(include_internal=True))
        return is_whole(self._partitions, topics)


def is_whole(expected: Mapping[str, int], topics: Mapping[str, TopicMetadata]) -> bool:
    """Whether every replica is in sync. ``expected``: how many partitions the topics have that must be there: a broker
    that has just started may know none, which is no proof."""
    counts = {name: len(topic.partitions) for name, topic in topics.items()}
    partitions = [partition for topic in topics.values() for partition in topic.partitions.values()]
    return (
        bool(expected)
        and all(counts.get(name) == count for name, count in expected.items())
        and all(partition.replicas and sorted(partition.isr) == sorted(partition.replicas) for partition in partitions)
    )


def leaders(admin: Admin, topic: str) -> Counter[int]:
    """How many partitions each broker leads; -1: nobody. Raises UnknownTopic, also where the broker is behind."""
    return Counter(partition.leader for partition in admin.describe_topics([topic])[topic].partitions.values())


def coordinator(admin: Admin, transactional_id: str) -> int:
    """Raises RequestRefused while nobody has used the name."""
    return admin.describe_transactions([transactional_id])[transactional_id].coordinator_id
