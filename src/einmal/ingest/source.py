"""Sources to ingest: records in order, and positions after which a source can be read again.

The contract that makes ingesting exactly once: ``read`` from a position returns what follows it, whole and in order,
and nothing that lies before it, as often as it is asked and whatever has happened to the process since. The ingester
keeps the position in the transaction of the records. It reads again from the recorded position after every failure, and
what it then reads may be cut into other batches than before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from einmal.types import Header

Position = Mapping[str, Any]
"""JSON, with text as keys; small, because every transaction records one."""


class SourceFailed(Exception):
    """The source does not answer now: the ingester tries again, after growing pauses."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


class SourceRefused(Exception):
    """The source cannot be read on without loss or duplicates: the ingester stops, and a human decides."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


class IngestRecord(NamedTuple):
    """A record to be written. ``partition``: None for that of the key, as producers choose it (murmur2); records
    without a key either go to one partition per batch. ``timestamp`` in ms; None for the time of writing.
    ``skipped_as``: what is reported where the record has no key and its topic, a compacted one, takes none without;
    empty: the ingester stops there."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    timestamp: int | None = None
    skipped_as: str = ""


class RecordPart(Protocol):
    """A piece of a batch that any process can read: it is pickled, and may be read by several, and again after a
    failure. Each of its records has a key or a partition."""

    def records(self) -> Iterable[IngestRecord]: ...


@dataclass(frozen=True, slots=True)
class IngestBatch:
    """Records that become one Kafka transaction. A source transaction is never split over two batches.

    ``records`` is iterated once, and may stream; without any the position alone is committed. ``end``: the position
    behind them. ``parts``: all records of the batch instead, in order, from a source that was asked to ``split``.
    """

    records: Iterable[IngestRecord]
    end: Position
    parts: tuple[RecordPart, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceNotice:
    """Something that a human should know, and that does not stop the ingester. ``kind``: a few words, the same for all
    of its kind; ``subject``: a file, a table."""

    kind: str
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class SourceBusy:
    """The source is still looking for what is new. It is asked again at once, unless the ingester is stopped."""


class RecordSource(ABC):
    """A source of records. Called by one thread; every method may raise SourceFailed and SourceRefused, ``records`` of
    a batch included. Other exceptions are bugs of the source, and end the ingester after the transaction is aborted."""

    @abstractmethod
    def origin(self) -> str:
        """Identity of what is read, whatever its address: a system identifier and a slot, a directory on a file system.

        It is recorded with the position. A position of another origin is refused.
        """

    def former_origins(self) -> Sequence[str]:
        """Return what ``origin`` may have returned for the same source: positions of these are read on, too."""
        return ()

    @abstractmethod
    def read(self, position: Position | None) -> Iterator[IngestBatch | SourceNotice | SourceBusy | None]:
        """Yield what follows the position; None: the source's own beginning.

        Returns None where nothing is new now, within a second or so; it is asked again after a pause. SourceBusy if it
        takes longer to find out. The iterator ends
        where nothing can ever follow. It is closed before ``read`` is called again, and a batch is not asked for before
        the records of the batch before it were iterated. Raises SourceFailed if this is not the source any more whose
        ``origin`` was asked for.
        """

    def split(self, parts: int) -> None:
        """From now on, return batches of up to so many parts, for the tasks of a Spark application to read. Called
        before ``read``. Raises SourceRefused where one process must read the source."""
        raise SourceRefused("this source can only be read by one process", "ingest it without --spark")

    def confirm(self, position: Position) -> None:
        """This position is committed for certain: the source may release what lies before it. Called after EndTxn was
        answered, and after each start for the recorded position: repeatedly, and after a later one was confirmed if an
        older process is slow."""
        return

    def set_aside(self) -> Sequence[SourceNotice]:
        """Return what is not ingested until a human has done something, while everything else is: asked for when
        ``read`` has returned None. Each was reported."""
        return ()

    def unfinished(self) -> Iterable[SourceNotice]:
        """Return what exists and is not ingested because its end is missing, and was not reported: asked for where the
        ingester ends now, instead of waiting for it."""
        return ()

    def interrupt(self) -> None:
        """End what the source waits for, as the ingester is stopped: called by another thread, repeatedly until
        ``read`` or another method has raised SourceFailed or returned. Raises nothing."""
        return

    def close(self) -> None:
        """Release connections and files."""
        return
