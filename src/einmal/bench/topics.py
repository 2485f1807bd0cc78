"""The topics of a measurement: named as no topic of the cluster is, and deleted afterwards.

Otherwise a cluster that was measured before would be measured with that run's records and commit records, and its disk
would fill: what is written in seconds is gigabytes.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Final

from einmal.bench.load import BenchRefused

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_TIMEOUT_S: Final = 30.0


class BenchTopics:
    """``prefix`` is unique to this measurement: for transactional ids, too."""

    def __init__(self, bootstrap: str, security: Mapping[str, str] | None = None) -> None:
        # Only here: the extra may be missing.
        from confluent_kafka.admin import AdminClient

        self.prefix = f"einmal-bench-{uuid.uuid4().hex[:12]}-"
        self._admin: AdminClient = AdminClient({"bootstrap.servers": bootstrap, **(security or {})})
        self._existing: set[str] = set()

    def __enter__(self) -> BenchTopics:
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        """Close, and raise the first of two failures: it is the cause where the cluster is gone."""
        with nullcontext() if kind is None else suppress(BenchRefused):
            self.close()

    def close(self) -> None:
        """Delete what there is of them. Raises BenchRefused."""
        if self._existing:
            self.delete(list(self._existing))

    def delete(self, names: list[str]) -> None:
        """Whole names. Raises BenchRefused."""
        _wait(self._admin.delete_topics(names, operation_timeout=_TIMEOUT_S), "DeleteTopics")
        self._existing.difference_update(names)

    def create(self, name: str, partitions: int = 1) -> str:
        """The topic's whole name. Raises BenchRefused."""
        (whole,) = self.create_all([name], partitions)
        return whole

    def create_all(self, names: Iterable[str], partitions: int) -> list[str]:
        """The topics' whole names; every partition has a leader. Raises BenchRefused."""
        from confluent_kafka.admin import NewTopic

        wanted = [self.prefix + name for name in names]
        new = [NewTopic(name, num_partitions=partitions) for name in wanted]
        self._existing.update(wanted)
        _wait(self._admin.create_topics(new, operation_timeout=_TIMEOUT_S), "CreateTopics")
        self._wait_for_leaders(wanted, partitions)
        return wanted

    def brokers(self) -> list[tuple[str, int]]:
        """Host and port of each broker."""
        brokers = self._admin.list_topics(timeout=_TIMEOUT_S).brokers
        return [(str(broker.host), broker.port) for _node_id, broker in sorted(brokers.items())]

    def leader(self, name: str) -> str:
        """The address of the leader of the first partition of a topic, by its whole name."""
        metadata = self._admin.list_topics(name, timeout=_TIMEOUT_S)
        broker = metadata.brokers[metadata.topics[name].partitions[0].leader]
        return f"{broker.host}:{broker.port}"

    def _wait_for_leaders(self, names: list[str], partitions: int) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline:
            topics = self._admin.list_topics(timeout=_TIMEOUT_S).topics
            led = [
                sum(partition.leader >= 0 for partition in topics[name].partitions.values())
                for name in names
                if name in topics
            ]
            if led == [partitions] * len(names):
                return
            time.sleep(0.05)
        listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        raise BenchRefused(f"{listed}: without leaders after {_TIMEOUT_S:.0f} s")


def _wait(answers: Mapping[str, Future[None]], call: str) -> None:
    from confluent_kafka import KafkaException

    for name, answer in answers.items():
        try:
            answer.result(2 * _TIMEOUT_S)
        except KafkaException as error:
            raise BenchRefused(f"{call} {name}: {error.args[0].name()}: {error.args[0].str()}") from error
