"""The window of keys of a running ingester: restored from its topics, kept beside its transactions, and reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from einmal.client import OffsetRange, RangeReader
from einmal.client.errors import NotAuthorized
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.commit_protocol.claims import Output
from einmal.ingest.deduplication.business_key import Deduplicate
from einmal.ingest.deduplication.key_window import DeduplicatedBatch, Keys, KeyWindow, StagedWindow
from einmal.ingest.deduplication.recorded import SPANS_WINDOWS, RecordedWindow, decode_window
from einmal.ingest.deduplication.written_keys import WrittenKeys
from einmal.ingest.source import IngestBatch, SourceFailed, SourceNotice, SourceRefused
from einmal.types import Offset, TopicPartition

_KEPT_WINDOWS: Final = SPANS_WINDOWS + 1
"""Windows of records that a topic must keep: those of the oldest span too."""
_KIND: Final = "deduplication"


class Deduplicator:
    """Deduplicator of one ingester, over all its runs in this process."""

    def __init__(
        self, declared: Deduplicate, name: str, cluster: KafkaCluster, notify: Callable[[SourceNotice], None]
    ) -> None:
        self._window = KeyWindow(declared)
        self._cluster = cluster
        self._name = name
        self._notify = notify
        self._batch: DeduplicatedBatch | None = None
        self._checked: set[str] = set()
        """Topics whose settings were looked at."""

    # --- a batch ------------------------------------------------------------------------------------------------

    def without_duplicates(self, batch: IngestBatch, now_ms: int) -> IngestBatch:
        """The batch as it is written, in one attempt."""
        self._batch = self._window.batch(now_ms)
        return replace(batch, records=self._batch.written(batch.records))

    def stage(self, outputs: Sequence[Output], producer_id: int) -> dict[str, Any]:
        """Return what the commit record keeps of the window, once the batch is written. Raises SourceRefused for a
        topic that does not keep its records, SourceFailed, KafkaError."""
        assert self._batch is not None, "a batch is staged once"
        if any(min(output.first_offset, output.last_offset) < 0 for output in outputs):
            # The broker has recognised a repeated request, but does not remember the offsets.
            raise SourceFailed("the offsets of written records are not known")
        for topic in dict.fromkeys(output.topic for output in outputs):
            self._check_topic(topic)
        return self._window.stage(self._batch, outputs, producer_id).recorded.encode()

    def committed(self) -> None:
        """The batch that was staged is committed for certain."""
        self._report(self._window.committed())

    def _report(self, staged: StagedWindow) -> None:
        counts = staged.recorded.batch
        for name, text in (
            ("duplicates", f"removed {counts.duplicates} duplicates"),
            (
                "different",
                f"{counts.different} of the duplicates have another value than the first record, which stays",
            ),
            ("without_key", f"{counts.without_key} records have no business key: written without a check"),
            ("late", f"{counts.late} records are more than a window behind the newest: a duplicate may be written"),
        ):
            if getattr(counts, name):
                example = f", such as {staged.examples[name]!r}" if name in staged.examples else ""
                self._note(name, text + example)

    # --- a start ------------------------------------------------------------------------------------------------

    def restore(self, value: Any, *, is_first: bool) -> None:
        """The window of the last commit record, which is read for certain; None: it has none. ``is_first``: there is no
        commit record. Raises SourceRefused, KafkaError."""
        if value is None and not is_first:
            self._note("window", "the window begins now: duplicates of what was written before are not recognised")
        try:
            recorded = RecordedWindow(self._window.declared.window_ms) if value is None else decode_window(value)
        except ValueError as error:
            raise SourceRefused(
                f"the commit record of ingester {self._name!r}: {error}", "run the einmal that wrote it, or a newer one"
            ) from error
        try:
            staged = self._window.restore(recorded, self._read)
        except NotAuthorized as error:
            raise SourceRefused(
                f"the keys of written records cannot be read: {error}", "permit READ on the topics in the ACLs"
            ) from error
        if staged is not None:
            self._report(staged)

    def _read(self, recorded: RecordedWindow) -> dict[int, Keys]:
        """The keys of a window: of records below ``reached``, committed if a marker reports it. The transactional.id is
        acquired, so that no transaction of the ingester is open."""
        declared = self._window.declared
        if recorded.reached and recorded.window_ms < declared.window_ms:
            self._note(
                "window",
                f"the window was {recorded.window_ms} ms, and is {declared.window_ms} ms now: duplicates of what was "
                "written before the former are not recognised",
            )

        keys = WrittenKeys(self._window, recorded)
        ranges = self._ranges(recorded)
        if not ranges:
            return keys.keys()
        with RangeReader({**self._cluster.common, "isolation.level": "read_uncommitted"}) as reader:
            for batch in reader.read(ranges, with_markers=True):
                keys.take(batch)
        return keys.keys()

    def _ranges(self, recorded: RecordedWindow) -> dict[TopicPartition, OffsetRange]:
        """The existing part of a recorded window; what is missing is reported."""
        start, reached = recorded.start(), recorded.reached
        seen = self._cluster.look(sorted({partition.topic for partition in start}))
        existing = [
            partition
            for partition in start
            if partition.topic in seen.topics and partition in seen.topics[partition.topic].partitions
        ]
        for topic in dict.fromkeys(partition.topic for partition in existing):
            self._check_topic(topic)
        earliest = self._cluster.earliest(existing)
        ends = self._cluster.latest(
            existing, committed=False, reached={partition: Offset(reached[partition]) for partition in existing}
        )
        ranges: dict[TopicPartition, OffsetRange] = {}
        for partition, first in start.items():
            bounds = OffsetRange(
                max(first, earliest.get(partition, first)), min(reached[partition], ends.get(partition, 0))
            )
            if (bounds.start, bounds.end) != (first, reached[partition]):
                self._note(
                    "deleted",
                    f"{partition} does not have all records of the window any more (offsets {first} to "
                    f"{reached[partition] - 1}): duplicates of deleted records are written. Keep records for "
                    f"{_KEPT_WINDOWS} windows",
                )
            if bounds.start < bounds.end:
                ranges[partition] = bounds
        return ranges

    def _check_topic(self, topic: str) -> None:
        """A topic must keep the records, and their timestamps. Raises SourceRefused, KafkaError."""
        if topic in self._checked:
            return
        needed = _KEPT_WINDOWS * self._window.declared.window_ms
        try:
            policy = self._cluster.topic_setting(topic, "cleanup.policy") or ""
            lag = int(self._cluster.topic_setting(topic, "min.compaction.lag.ms") or 0)
            kind = self._cluster.topic_setting(topic, "message.timestamp.type")
        except NotAuthorized as error:
            self._note("unchecked", f"the settings of {topic} cannot be read, which must keep its records: {error}")
        else:
            if kind == "LogAppendTime":
                raise SourceRefused(
                    f"{topic} has message.timestamp.type LogAppendTime: a start would find other timestamps in it than "
                    "the source's",
                    f"set message.timestamp.type=CreateTime for {topic}",
                )
            if "compact" in policy and lag < needed:
                raise SourceRefused(
                    f"{topic} is compacted: a start would not find the keys of records that compaction has deleted",
                    f"set min.compaction.lag.ms={needed} ({_KEPT_WINDOWS} windows), or cleanup.policy=delete",
                )
        self._checked.add(topic)

    def _note(self, subject: str, text: str) -> None:
        self._notify(SourceNotice(_KIND, subject, f"{self._name}: {text}"))
