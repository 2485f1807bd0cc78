"""Topics and groups of a run: made under a prefix, described, and removed afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from einmal.client import NewTopic
from einmal.client.aio import Admin
from einmal.client.errors import KafkaError, TopicAlreadyExists, UnknownTopic
from einmal.types import ErrorCode

_ATTEMPTS: Final = 12
_PAUSE_S: Final = 1.0
_ABSENT: Final = (ErrorCode.group_id_not_found, ErrorCode.unknown_topic_or_partition)
_INT64_MAX: Final = str(2**63 - 1)
_NEVER: Final = "never (the operating system decides)"
_DURABILITY: Final = ("min.insync.replicas", "flush.messages", "flush.ms", "unclean.leader.election.enable")


class Scratch:
    """``topics``: counts of partitions by name."""

    def __init__(self, config: Mapping[str, Any], topics: Mapping[str, int], groups: Iterable[str]) -> None:
        self._config = dict(config)
        self._topics = dict(topics)
        self._groups = list(groups)
        self._made: list[str] = []

    async def check(self) -> None:
        """Raises KafkaError for a topic that is there: it is not ours to write to, and to remove."""
        async with Admin(self._config) as admin:
            there = sorted({*await admin.list_topics()} & {*self._topics})
        if there:
            raise TopicAlreadyExists(
                meaning=f"{', '.join(there)} is on the cluster",
                what_to_do="name topics that do not exist; the run makes them, and removes them afterwards",
            )

    async def make(self) -> None:
        """Make the topics, with the cluster's default replication. Raises KafkaError."""
        async with Admin(self._config) as admin:
            for name, count in self._topics.items():
                self._made.append(name)
                try:
                    await admin.create_topics([NewTopic(name, num_partitions=count)])
                except TopicAlreadyExists:
                    # Somebody has made it since ``check``: it is not ours to remove.
                    self._made.remove(name)
                    raise

    async def cluster(self) -> dict[str, str]:
        """Facts about the cluster. Raises KafkaError."""
        async with Admin(self._config) as admin:
            description = await admin.describe_cluster()
        return {
            "cluster id": description.cluster_id or "unknown",
            "brokers": str(len(description.brokers)),
            "transaction.version": str(description.transaction_version),
        }

    async def durability(self) -> dict[str, str]:
        """The topics' settings that decide what survives a crash, once the brokers know them. Raises KafkaError."""
        async with Admin(self._config) as admin:
            for attempt in range(_ATTEMPTS):
                try:
                    described = await admin.describe_topics(self._topics)
                    configs = await admin.describe_configs(self._topics)
                    break
                except UnknownTopic:
                    # Brokers learn of a new topic after its creation was acknowledged.
                    if attempt == _ATTEMPTS - 1:
                        raise
                    await asyncio.sleep(_PAUSE_S)
        replicas = {len(partition.replicas) for topic in described.values() for partition in topic.partitions.values()}
        settings = {"acks": "all", "replication factor": ", ".join(map(str, sorted(replicas)))}
        for name in _DURABILITY:
            values = {str(config[name].value) for config in configs.values() if name in config}
            if values:
                settings[name] = ", ".join(_NEVER if value == _INT64_MAX else value for value in sorted(values))
        return settings

    async def remove(self) -> list[str]:
        """Delete everything that was made; return what could not be removed, each with the reason."""
        left = []
        async with Admin(self._config) as admin:
            for group in self._groups:
                left += await _removed(f"group {group}", partial(admin.delete_groups, [group]))
            for topic in self._made:
                left += await _removed(f"topic {topic}", partial(admin.delete_topics, [topic]))
        return left


async def _removed(name: str, remove: Callable[[], Awaitable[None]]) -> list[str]:
    """Empty, or the name and why it is still there."""
    for attempt in range(_ATTEMPTS):
        try:
            await remove()
        except KafkaError as error:
            if error.code in _ABSENT:
                break
            # Members that were cancelled are in their group until their session ends.
            if error.code is not ErrorCode.non_empty_group or attempt == _ATTEMPTS - 1:
                return [f"{name}: {error}"]
            await asyncio.sleep(_PAUSE_S)
        else:
            break
    return []
