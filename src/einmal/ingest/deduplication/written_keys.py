"""The keys of a recorded window, from the batches of its topics. Pure.

Batches count by their own producer's next marker, as commit records do: open transactions of others, which would hold
the last stable offset back, do not matter, and what others write into the topics is nobody's duplicate.
"""

from __future__ import annotations

from einmal.client.cores.fetched import RawBatch
from einmal.ingest.deduplication.key_window import Keys, KeyWindow, check_size, merge, record_key, remember
from einmal.ingest.deduplication.recorded import RecordedWindow
from einmal.types import TopicPartition
from einmal.wire.control_batch import COMMIT, control_type


class WrittenKeys:
    """Takes every batch and marker of the recorded ranges, in order of a partition's offsets."""

    def __init__(self, window: KeyWindow, recorded: RecordedWindow) -> None:
        self._window = window
        self._recorded = recorded
        self._start = recorded.start()
        self._producers = {producer for span in recorded.spans for producer in span.producers}
        self._keys: dict[int, Keys] = {span.number: {} for span in recorded.spans}
        self._open: dict[tuple[TopicPartition, int], dict[int, Keys]] = {}
        """Keys of transactions without a marker so far, by partition and producer id."""

    def take(self, batch: RawBatch) -> None:
        """The next batch of its partition. Raises SourceRefused if there are too many keys, CorruptData."""
        header, partition = batch.header, batch.topic_partition
        if header.producer_id not in self._producers or not header.is_transactional:
            return
        if header.is_control:
            ended = self._open.pop((partition, header.producer_id), {})
            if any(control_type(record) == COMMIT for record in batch.records()):
                self._commit(ended)
            return
        keys = self._open.setdefault((partition, header.producer_id), {})
        for record in batch.records():
            if self._start[partition] <= record.offset < self._recorded.reached[partition]:
                key = record_key(self._window, partition.topic, record)
                if key is not None:
                    remember(keys.setdefault(self._recorded.span_of(partition, record.offset), {}), *key)

    def keys(self) -> dict[int, Keys]:
        """By number of the span, once every batch was taken.

        A range ends with a record of the last committed transaction in its partition, whose marker is behind it: what
        is open there is committed.
        """
        for ended in self._open.values():
            self._commit(ended)
        self._open.clear()
        return self._keys

    def _commit(self, ended: dict[int, Keys]) -> None:
        for number, keys in ended.items():
            merge(self._keys[number], keys)
        check_size(self._window.declared, sum(map(len, self._keys.values())))
