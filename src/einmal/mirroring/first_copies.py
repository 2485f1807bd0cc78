"""Copies to which a flow has not written yet: whose they are, and whether they have records before its first."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from einmal.client import OffsetRange, RangeReader
from einmal.client.aio.consuming.offsets import EARLIEST, LATEST
from einmal.client.cores.fetched import CorruptData
from einmal.client.errors import NotAuthorized
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.commit_protocol.commit_record import WriterKind
from einmal.mirror_protocol.flow import Flow, MirrorNotice, NoticeKind
from einmal.mirror_protocol.progress import MirroredTopic, MirrorProgress, RecordedPosition
from einmal.mirroring.ends import offsets_each
from einmal.sinks.kafka.committed import committed
from einmal.types import IsolationLevel, TopicPartition

_ISOLATION: Final = "read_committed"


class FirstCopies:
    """``cluster``: the target. ``notify`` gets a notice of each copy that is not empty. Each copy is looked at once,
    unless it is another mirror's."""

    def __init__(self, flow: Flow, cluster: KafkaCluster, notify: Callable[[MirrorNotice], None]) -> None:
        self._id = flow.transactional_id
        self._cluster = cluster
        self._notify = notify
        self._seen: set[str] = set()
        """Ids of copies."""

    def owned_by_others(self, progress: MirrorProgress) -> dict[str, str]:
        """Return source topics whose copies another mirror writes, with the reasons why they cannot be copied. Raises
        KafkaError."""
        recorded = progress.recorded.target_ids
        first = [
            topic
            for topic in progress.topics.values()
            if topic.target and recorded.get(topic.target) != topic.target_id and topic.target_id not in self._seen
        ]
        if not first:
            return {}
        owners = self._owners()
        owned = {topic.name: _reason(topic, owners[topic.target_id]) for topic in first if topic.target_id in owners}
        self._note_filled([topic for topic in first if topic.name not in owned])
        return owned

    def _owners(self) -> Mapping[str, str]:
        """Names of other flows, by the ids of the topics that their commit records name."""
        owners: dict[str, str] = {}
        for name, known in committed(self._cluster).items():
            record = known.record
            if name == self._id or record is None or record.kind is not WriterKind.MIRROR:
                continue
            with contextlib.suppress(ValueError):
                owners |= dict.fromkeys(RecordedPosition.of(record).target_ids.values(), record.checkpoint.split()[-1])
        return owners

    def _note_filled(self, topics: Sequence[MirroredTopic]) -> None:
        copies = {topic.target: topic for topic in topics}
        partitions = [
            TopicPartition(copy, index) for copy, topic in copies.items() for index in range(topic.partitions)
        ]
        # One that does not answer now is written to next, which is another's matter.
        ends, _ = offsets_each(self._cluster, partitions, LATEST, IsolationLevel.READ_COMMITTED)
        starts, _ = offsets_each(self._cluster, ends, EARLIEST)
        filled = sorted(partition for partition, start in starts.items() if start < ends[partition])
        with RangeReader({**self._cluster.common, "isolation.level": _ISOLATION}) as reader:
            for copy, of_copy in itertools.groupby(filled, lambda partition: partition.topic):
                ranges = {partition: OffsetRange(starts[partition], ends[partition]) for partition in of_copy}
                if _has_records(reader, ranges):
                    self._note(copy, copies[copy].name)
        self._seen |= {topic.target_id for topic in topics}

    def _note(self, copy: str, source: str) -> None:
        text = (
            f"topic {copy!r} of the target has records that this mirror has not written: {source!r} is copied behind "
            "them from its start. If they are its records (of MirrorMaker, or a mirror that was renamed), stop the "
            "mirror and delete the topic, to have each of them once"
        )
        self._notify(MirrorNotice(NoticeKind.FILLED, copy, text))


def _reason(topic: MirroredTopic, owner: str) -> str:
    return (
        f"its copy {topic.target!r} is one of the mirror {owner}, and would have each record twice: give a cluster of "
        "one of the two flows another alias, or exclude the topic; or end that mirror, and delete the copy, to begin "
        "anew."
    )


def _has_records(reader: RangeReader, ranges: Mapping[TopicPartition, OffsetRange]) -> bool:
    """Aborted ones, which an earlier start of this mirror may have left, do not count. Raises KafkaError."""
    try:
        return next(reader.read(ranges), None) is not None
    except (NotAuthorized, CorruptData):
        # There is something, whatever it is.
        return True
