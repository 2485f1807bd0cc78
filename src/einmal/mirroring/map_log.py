"""The maps of all mirrors to a cluster, in its compacted topic ``__einmal_offset_maps``.

A record has one run, or what was translated last of one group; the key names the map by its flow,
source partition and topic ids. Records are written in the transaction of the records that they describe. All maps of a
flow are in one partition, between those of other flows, whose open transactions must not hold a start back: each record
counts by its own producer's next marker, as in the topic of commit records.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from einmal.client.cores.fetched import RawBatch
from einmal.commit_protocol.commit_record import OFFSET_MAP_TOPIC
from einmal.mirror_protocol.effects import GroupPosition, MapChange, MapKey, SavedMap
from einmal.mirror_protocol.offset_map import OffsetRun
from einmal.types import TopicPartition
from einmal.wire.control_batch import COMMIT, control_type
from einmal.wire.murmur2 import partition_for_key
from einmal.wire.record_batch import NewRecord, Record

PARTITIONS: Final = 16
_FORMAT_VERSION: Final = 1
_RUN: Final = "run"
_GROUP: Final = "group"
_FIELDS: Final = 7


class UnreadableMap(Exception):
    """A record in the topic of maps is not one that this version can read."""


def partition_of(flow: str, partitions: int) -> TopicPartition:
    """Where the maps of a flow are; ``partitions``: of the topic, which must not change."""
    return TopicPartition(OFFSET_MAP_TOPIC, partition_for_key(flow.encode(), partitions))


def encode(flow: str, changes: Mapping[MapKey, MapChange], timestamp: int) -> Iterator[NewRecord]:
    """The records of one transaction, tombstones first. ``timestamp`` in ms."""
    for key, change in changes.items():
        for run in change.dropped:
            yield NewRecord(_key(flow, key, _RUN, run.source), None, timestamp)
        for run in change.added:
            yield NewRecord(_key(flow, key, _RUN, run.source), _value([run.target, run.records]), timestamp)
        for group, position in change.groups.items():
            yield NewRecord(_key(flow, key, _GROUP, group), _value(list(position)), timestamp)


def _key(flow: str, key: MapKey, kind: str, name: int | str) -> bytes:
    partition = key.partition
    fields = [flow, partition.topic, partition.partition, key.source_id, key.target_id, kind, name]
    return json.dumps(fields, separators=(",", ":")).encode()


def _value(value: list[int]) -> bytes:
    return json.dumps({"version": _FORMAT_VERSION, "value": value}, separators=(",", ":"), sort_keys=True).encode()


@dataclass(slots=True)
class MapReader:
    """The maps of one flow, from the batches of its partition in order."""

    flow: str
    _runs: dict[MapKey, dict[int, OffsetRun]] = field(default_factory=dict)
    _groups: dict[MapKey, dict[str, GroupPosition]] = field(default_factory=dict)
    _open: dict[int, list[Record]] = field(default_factory=dict)
    """Undecided records, by producer id."""

    def take(self, batch: RawBatch) -> None:
        """Raises UnreadableMap."""
        header = batch.header
        if header.is_control:
            undecided = self._open.pop(header.producer_id, [])
            if any(control_type(record) == COMMIT for record in batch.records()):
                self._apply(undecided)
        elif header.is_transactional:
            self._open.setdefault(header.producer_id, []).extend(batch.records())

    def maps(self) -> dict[MapKey, SavedMap]:
        return {
            key: SavedMap(tuple(runs[offset] for offset in sorted(runs)), self._groups.get(key, {}))
            for key, runs in self._runs.items()
            if runs
        }

    def _apply(self, records: Iterable[Record]) -> None:
        for record in records:
            fields = _fields(record.key)
            if fields is None or fields[0] != self.flow:
                continue
            try:
                self._apply_one(fields, record.value)
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise UnreadableMap(
                    f"the record {record.key!r:.200} of {OFFSET_MAP_TOPIC} cannot be read: {error}"
                ) from error

    def _apply_one(self, fields: list[Any], value: bytes | None) -> None:
        _, topic, partition, source_id, target_id, kind, name = fields
        key = MapKey(TopicPartition(topic, int(partition)), source_id, target_id)
        content = None if value is None else json.loads(value)
        if content is not None and content["version"] != _FORMAT_VERSION:
            raise ValueError(f"format {content['version']!r:.40}, this version reads {_FORMAT_VERSION}")
        if kind == _RUN:
            self._take_run(key, int(name), None if content is None else content["value"])
        elif kind == _GROUP and content is not None:
            source, target = content["value"]
            self._groups.setdefault(key, {})[name] = GroupPosition(int(source), int(target))

    def _take_run(self, key: MapKey, source: int, value: list[int] | None) -> None:
        runs = self._runs.setdefault(key, {})
        runs.pop(source, None)
        if value is not None:
            target, records = value
            runs[source] = OffsetRun(source, int(target), int(records))


def _fields(key: bytes | None) -> list[Any] | None:
    """None for a key that no mirror writes."""
    try:
        fields = json.loads(key or b"null")
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, list) and len(fields) == _FIELDS else None
