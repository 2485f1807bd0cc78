"""What goes into the campaign's topics, and what must have come out of them in the end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from einmal.chaos.waiting import holds_within
from einmal.client import Admin, Producer
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.spark.operate.ownership import KafkaOwnership
from tests.spark.campaign import verdict
from tests.spark.campaign.pipelines import NAMES, SOURCES, Place, closing_number, expected, is_in, key_of, output_topic
from tests.spark.topics import records

_TOPICS: Final = tuple(topic for topics in SOURCES.values() for topic in topics)
_CHUNK: Final = 10
_CHUNK_S: Final = 0.5
PROGRESS_S: Final = 120.0
"""A pipeline that commits nothing for so long after a kill stands still."""


class Report(Protocol):
    records: dict[str, int]
    wrong: list[str]


class Feeder:
    """Writes numbers into source topics, the same to each: a chunk when the one before it is acknowledged."""

    def __init__(self, bootstrap: str, topics: Sequence[str] = _TOPICS) -> None:
        self._topics = topics
        self._producer = Producer({"bootstrap.servers": bootstrap})
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self.count = 0
        self._thread = threading.Thread(target=self._feed, daemon=True)
        self._thread.start()

    def finish(self) -> int:
        """How many numbers there are. Writes the one that closes every window."""
        self.close()
        if self._failure is not None:
            raise self._failure
        with self._producer as producer:
            self._send(producer, closing_number(self.count))
        return self.count

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _feed(self) -> None:
        try:
            while not self._over.wait(_CHUNK_S):
                for number in range(self.count, self.count + _CHUNK):
                    self._send(self._producer, number)
                self._producer.flush()
                self.count += _CHUNK
        except BaseException as error:  # noqa: BLE001 - reported by ``finish``
            self._failure = error

    def _send(self, producer: Producer, number: int) -> None:
        for topic in self._topics:
            if is_in(topic, number):
                producer.send(topic, str(number), key_of(number))


class Outcome:
    """Of the four pipelines, whoever runs them. ``report``: gets what is wrong, and how many records there are."""

    def __init__(self, place: Place, report: Report) -> None:
        self._place = place
        self._report = report
        self._feeder: Feeder | None = None
        self._count = 0
        self._ends: verdict.Offsets = {}

    def start(self) -> None:
        """Write numbers from now on."""
        self._feeder = Feeder(self._place.bootstrap)

    def close(self) -> None:
        if self._feeder is not None:
            self._feeder.close()

    def await_end(self) -> None:
        """Write no more, and wait until everything is through."""
        assert self._feeder is not None
        self._count = self._feeder.finish()
        print(f"{time.strftime('%H:%M:%S')} {self._count} numbers in each topic; waiting for the end", flush=True)
        self._ends = input_ends(self._place.bootstrap, _TOPICS)
        holds_within(PROGRESS_S, self._is_through, pause_s=0.5)

    def check(self, state: Mapping[str, list[Any]]) -> None:
        """``state``: see ``wrong_with_state``."""
        count, wrong = self._count, self._report.wrong
        for topic in _TOPICS:
            numbers = [int(value) for _, value in read_outputs(self._place.bootstrap, topic)]
            self._report.records[topic] = len(numbers)
            wrong += verdict.wrong_with_input(topic, numbers, count)
        for name in NAMES:
            outputs = self._outputs(name)
            self._report.records[output_topic(name)] = len(outputs)
            wrong += verdict.wrong_with_output(name, outputs, count)
        if self._has_records:
            wrong += verdict.wrong_with_positions(positions(self._place, NAMES), self._ends)
        wrong += verdict.wrong_with_state(state, self._outputs("state"))

    @property
    def _has_records(self) -> bool:
        """Commit records, which only transactions have."""
        return self._place.guarantee == "exactly_once_v2"

    def _is_through(self) -> bool:
        records = {name: each.get("commit record") for name, each in positions(self._place, NAMES).items()}
        if self._has_records and any(
            record != {topic: self._ends[topic] for topic in SOURCES[name]} for name, record in records.items()
        ):
            return False
        counted = ("windows", "join") if self._has_records else ("copy", "windows", "join")
        return all(len(self._outputs(name)) >= expected(name, self._count).total() for name in counted)

    def _outputs(self, name: str) -> list[tuple[str, str]]:
        return read_outputs(self._place.bootstrap, output_topic(name))


def input_ends(bootstrap: str, topics: Sequence[str]) -> verdict.Offsets:
    cluster = KafkaCluster({"bootstrap.servers": bootstrap})
    try:
        found = cluster.latest(cluster.partitions(topics), committed=True)
    finally:
        cluster.close()
    return {topic: {each.partition: found[each] for each in found if each.topic == topic} for topic in topics}


def positions(place: Place, names: Iterable[str]) -> dict[str, dict[str, verdict.Offsets]]:
    """By pipeline, and by who keeps them."""
    client = {"bootstrap.servers": place.bootstrap}
    with KafkaOwnership(client) as owned, Admin(client) as admin:
        committed = owned.committed()
        return {
            name: {
                "commit record": _of_record(committed[name].record) if name in committed else {},
                "group": _of_group(admin.list_group_offsets(name)),
                "checkpoint": _of_checkpoint(place.checkpoint(name)),
            }
            for name in names
        }


def read_outputs(bootstrap: str, topic: str) -> list[tuple[str, str]]:
    """(key, value) of what a read_committed reader sees, in order per partition."""
    return [((each.key or b"").decode(), (each.value or b"").decode()) for _, each in records(bootstrap, topic)]


def _of_record(record: Any) -> verdict.Offsets:
    return verdict.offsets_in(record.end)


def _of_checkpoint(checkpoint: Path) -> verdict.Offsets:
    """Of the last batch that Spark believes done."""
    names = [path.name for path in (checkpoint / "commits").iterdir() if path.name.isdecimal()]
    lines = (checkpoint / "offsets" / max(names, key=int)).read_text().split("\n")
    return verdict.offsets_in(json.loads(line) for line in lines[2:])


def _of_group(positions: Any) -> verdict.Offsets:
    found: verdict.Offsets = {}
    for place, position in positions.items():
        found.setdefault(place.topic, {})[place.partition] = position.offset
    return found
