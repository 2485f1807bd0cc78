"""The seam between a mirror's machine and its records: who reads headers and copies batches.

The machine, its transactions and everything else stay in the mirror's process. ``LocalCopier`` reads and writes there,
too; ``spark_copier`` lets the tasks of a Spark application do it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Protocol

from einmal.mirror.effects import CopyRecords, HeadersScanned, RecordsCopied, ScanHeaders
from einmal.mirroring.copied_stream import encoded, runs_of, streams_of
from einmal.mirroring.reading import committed, scanned
from einmal.sinks.kafka.commit_point import KafkaCommitPoint


class Copier(Protocol):
    """Calls raise SourceUnreadable, KafkaError, WireError; ``copy`` SinkError, too."""

    def scan(self, effect: ScanHeaders) -> HeadersScanned: ...

    def copy(self, effect: CopyRecords, target: KafkaCommitPoint) -> RecordsCopied: ...

    def close(self) -> None: ...


class LocalCopier:
    """See ``Copier``."""

    def __init__(self, source: Mapping[str, str]) -> None:
        """``source``: client settings under Kafka's names."""
        self._source = source

    def scan(self, effect: ScanHeaders) -> HeadersScanned:
        return scanned(self._source, effect)

    def copy(self, effect: CopyRecords, target: KafkaCommitPoint) -> RecordsCopied:
        streams = streams_of(effect)
        # What fails leaves the reader of the source half read.
        with (
            contextlib.closing(committed(self._source, effect)) as fetched,
            contextlib.closing(encoded(effect, fetched, streams)) as batches,
        ):
            written = target.append(effect.identity, batches)
        runs = {}
        for place, stream in streams.items():
            found = written[stream.target] if stream.count else None
            runs[place] = () if found is None else runs_of(stream.target, stream.sources, *found[:2])
        return RecordsCopied(runs)

    def close(self) -> None:
        """Nothing is kept."""
