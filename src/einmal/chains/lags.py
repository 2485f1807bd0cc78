"""How far each link of a chain is behind: in offsets, and in the age of the first record that is not processed."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from einmal.chains.declared import DeclaredLink
from einmal.chains.graph import Chain, Link, Location
from einmal.client import Consumer
from einmal.client.errors import KafkaError
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.commit_protocol.commit_record import RESERVED_TOPICS
from einmal.commit_protocol.positions import offsets_of
from einmal.commit_protocol.source_offsets import SourcePosition
from einmal.sinks.commit_point import SinkError
from einmal.types import TopicPartition

_PATIENCE_MS: Final = "3000"
_RECORD_MS: Final = 2_000
_UNKNOWN: Final = "lag unknown: "


@dataclass(frozen=True, slots=True)
class LinkLag:
    """``offsets`` up to the last stable offset, markers included; ``age_s``: since the timestamp of the oldest record
    that is not processed, 0 where there is none. None: not known, ``why``. With a ``why`` the offsets are those that
    are known, of more."""

    offsets: int | None = None
    age_s: float | None = None
    why: str = ""

    def __str__(self) -> str:
        if self.offsets is None:
            return self.why
        age = "" if self.age_s is None or not self.offsets else f", oldest record {self.age_s:,.0f} s old"
        return f"lag {self.offsets:,} or more{age}; {self.why}" if self.why else f"lag {self.offsets:,}{age}"


def lag_of(declared: DeclaredLink) -> LinkLag:
    """Asks both ends; a cluster or database that does not answer is a reason."""
    if declared.source is None:
        return LinkLag(why=f"{_UNKNOWN}it reads no topics")
    if declared.record is None:
        return LinkLag(why=f"{_UNKNOWN}without transactions its positions are in its checkpoint alone")
    try:
        with closing(declared.sink()) as sink:
            committed = sink.committed().get(declared.record)
    except (KafkaError, SinkError) as error:
        return LinkLag(why=f"{_UNKNOWN}{str(error).partition(chr(10))[0]}")
    if committed is None or committed.record is None:
        return LinkLag(why="nothing committed yet")
    client = {**declared.source, "default.api.timeout.ms": _PATIENCE_MS}
    try:
        with closing(KafkaCluster(client)) as cluster:
            behind = _behind(committed.record.end, cluster)
        if behind is None:
            return LinkLag(why=f"{_UNKNOWN}its position is not one in topics that exist")
        offsets = sum(end - start for start, end in behind.values())
        return LinkLag(
            offsets, _age_s(client, {topic_partition: start for topic_partition, (start, _) in behind.items()})
        )
    except KafkaError as error:
        return LinkLag(why=f"{_UNKNOWN}{error.name}")


def end_to_end(chain: Chain, location: Location, lags: Mapping[Link, LinkLag]) -> LinkLag:
    """Return the lag of a location: what lies before it, over all links; those whose lag is not known are named.
    Records may get new timestamps at a link, so the ages of records that wait at different links are added: it is at
    most so old."""
    links = [step.link for step in chain.upstream(location)]
    known = [offsets for link in links if (offsets := lags[link].offsets) is not None]
    ages = [age for link in links if (age := lags[link].age_s) is not None]
    unknown = [f"{link.name} ({lags[link].why.removeprefix(_UNKNOWN)})" for link in links if lags[link].offsets is None]
    why = f"{_UNKNOWN}{', '.join(unknown)}" if unknown else ""
    return LinkLag(sum(known), sum(ages), why) if known else LinkLag(why=why or "lag unknown")


def topics_of_clusters(
    clients: Collection[Mapping[str, str]], systems: Mapping[str, str]
) -> tuple[set[Location], dict[str, str]]:
    """The topics that exist, as locations, and systems that do not answer, with the reasons. ``systems``: names by
    bootstrap.servers."""
    locations, unanswered = set(), {}
    for client in clients:
        try:
            with closing(KafkaCluster({**client, "default.api.timeout.ms": _PATIENCE_MS})) as cluster:
                names = cluster.topics(".*")
        except KafkaError as error:
            unanswered[systems[client["bootstrap.servers"]]] = str(error)
            continue
        locations |= {
            Location(systems[client["bootstrap.servers"]], name) for name in names if name not in RESERVED_TOPICS
        }
    return locations, unanswered


def _behind(end: tuple[Any, ...], cluster: KafkaCluster) -> dict[TopicPartition, tuple[int, int]] | None:
    """Position and last stable offset of partitions that are not read to their end."""
    behind: dict[TopicPartition, tuple[int, int]] = {}
    for source_end in end:
        if offsets_of((source_end,)) is None:
            return None
        position = SourcePosition.from_json(source_end)
        wanted = {location for location in position.offsets if location.topic not in RESERVED_TOPICS}
        here = [location for location in cluster.existing(position) if location in wanted]
        if len(here) < len(wanted):
            return None
        ends = cluster.latest(here, committed=True)
        behind |= {
            location: (max(0, position.offsets[location]), ends[location])
            for location in here
            if ends[location] > position.offsets[location]
        }
    return behind


def _age_s(client: Mapping[str, str], positions: Mapping[TopicPartition, int]) -> float | None:
    """None where no record is found: only markers lie behind the positions."""
    if not positions:
        return 0.0
    oldest: int | None = None
    with Consumer({**client, "isolation.level": "read_committed"}) as consumer:
        for location, offset in positions.items():
            consumer.assign([location])
            consumer.seek(location, offset)
            for record in consumer.poll(_RECORD_MS, max_records=1):
                if record.timestamp >= 0:
                    oldest = record.timestamp if oldest is None else min(oldest, record.timestamp)
    return None if oldest is None else max(0.0, time.time() - oldest / 1000)
