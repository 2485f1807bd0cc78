"""The window of keys of one ingester: which records of a batch are written, and which are duplicates.

Theory of operation. A record is a duplicate if a record with its business key is written, in the same topic, whose
timestamp is at most one window from its own. The timestamps are those of the records as they are written: the source's
where it has them, else the time of writing. The first record wins.

What is remembered follows the *clock*, the newest timestamp so far, and not the time of day: a backlog of ten hours
that is read in a minute has the duplicates that it would have had if it had been read when it was made. No timestamp
moves the clock beyond the time of day, or a single one from the next century would make everything else late.
Timestamps that go backwards by up to one window change nothing (``RecordedWindow``). Beyond that a record can be a
duplicate of one that is forgotten: it is written, because a duplicate is better than a loss, and counted as late.

Only batches that are committed for certain change the window: one whose transaction is aborted leaves nothing. A run
that finds another window in the commit record than its own reads the keys again; two windows that are recorded alike
have the same keys (``RecordedWindow``). Pure: knows neither topics nor the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from einmal.commit_protocol.claims import Output
from einmal.ingest.deduplication.business_key import Deduplicate, key_digest, key_of, value_digest
from einmal.ingest.deduplication.recorded import DuplicateCounts, RecordedWindow
from einmal.ingest.source import IngestRecord, SourceRefused
from einmal.wire.record_batch import Record

_VALUE_BITS: Final = 64
_EXAMPLE_BYTES: Final = 100

Keys = dict[bytes, int]
"""By digest of the key: timestamp and digest of the value in one number, which takes half of a tuple's memory."""


class RecordKey(NamedTuple):
    """``entry``: as in ``Keys``."""

    digest: bytes
    entry: int


@dataclass(frozen=True, slots=True)
class StagedWindow:
    """The window as one attempt to write a batch makes it."""

    recorded: RecordedWindow
    keys: Keys
    examples: dict[str, str]
    """A business key for each field of ``DuplicateCounts`` that is not 0, as far as there is one."""


class KeyWindow:
    """``recorded``: what the last committed batch left."""

    def __init__(self, declared: Deduplicate) -> None:
        self.declared = declared
        self.recorded = RecordedWindow(declared.window_ms)
        self.key_of = key_of(declared)
        self._keys: dict[int, Keys] = {}
        """By number of the span."""
        self._staged: StagedWindow | None = None
        """Recorded in a transaction whose outcome is not known yet."""

    def batch(self, now_ms: int) -> DeduplicatedBatch:
        """One attempt to write a batch, at this time of day."""
        return DeduplicatedBatch(self, now_ms)

    def stage(self, batch: DeduplicatedBatch, outputs: Sequence[Output], producer_id: int) -> StagedWindow:
        """The batch is written, and is going to be committed with what is recorded of the window."""
        self._staged = batch.staged(outputs, producer_id)
        return self._staged

    def committed(self) -> StagedWindow:
        """The batch that was staged is committed for certain."""
        staged, self._staged = self._staged, None
        assert staged is not None, "a batch is committed once"
        merge(self._keys.setdefault(self.recorded.spans[-1].number, {}), staged.keys)
        self.recorded = staged.recorded
        self._keys = {span.number: self._keys.get(span.number, {}) for span in self.recorded.spans}
        return staged

    def restore(
        self, recorded: RecordedWindow, read: Callable[[RecordedWindow], dict[int, Keys]]
    ) -> StagedWindow | None:
        """As the last commit record, read for certain, has it. ``read``: the keys of a recorded window, by number of
        the span. Returns the staged batch, if that was committed although no answer arrived."""
        if self._staged is not None and recorded == self._staged.recorded:
            return self.committed()
        self._staged = None
        if recorded != self.recorded:
            self._keys = read(recorded)
            # The next batch is recorded with the window that is declared now.
            self.recorded = replace(recorded, window_ms=self.declared.window_ms)
        return None

    def find(self, digest: bytes, timestamp: int) -> int | None:
        """The entry of which a record with this key and timestamp is a duplicate."""
        for keys in self._keys.values():
            entry = keys.get(digest)
            if entry is not None and self.is_near(entry, timestamp):
                return entry
        return None

    def is_near(self, entry: int, timestamp: int) -> bool:
        return abs(_timestamp(entry) - timestamp) <= self.declared.window_ms

    def size(self) -> int:
        """Keys in memory."""
        return sum(map(len, self._keys.values()))


class DeduplicatedBatch:
    """Findings of one attempt; the window remembers nothing of them before they are adopted."""

    def __init__(self, window: KeyWindow, now_ms: int) -> None:
        self._window = window
        self._now_ms = now_ms
        self._clock = min(window.recorded.clock, now_ms)
        self._size = window.size()
        self._keys: Keys = {}
        self._counts = dict.fromkeys(DuplicateCounts.__slots__, 0)
        self._examples: dict[str, str] = {}

    def written(self, records: Iterable[IngestRecord]) -> Iterator[IngestRecord]:
        """Those that are no duplicates, in order. Raises SourceRefused if there are too many keys."""
        return filter(self._is_new, records)

    def staged(self, outputs: Sequence[Output], producer_id: int) -> StagedWindow:
        """To be recorded with the batch, and adopted when that is committed."""
        counts = DuplicateCounts(**self._counts)
        recorded = self._window.recorded.after(self._clock, counts, outputs, producer_id)
        return StagedWindow(recorded, self._keys, self._examples)

    def _is_new(self, record: IngestRecord) -> bool:
        if record.value is None:
            # A tombstone deletes: it must arrive although its key was seen, and its key stays seen.
            return True
        timestamp = self._now_ms if record.timestamp is None else record.timestamp
        self._clock = max(self._clock, min(timestamp, self._now_ms))
        key = self._window.key_of(record.key, record.value, record.headers)
        if key is None:
            self._count("without_key", b"")
            return True
        digest, entry = key_digest(record.topic, key), _entry(timestamp, record.value)
        known = self._keys.get(digest)
        if known is None or not self._window.is_near(known, timestamp):
            known = self._window.find(digest, timestamp)
        if known is not None:
            self._count("duplicates", key)
            if _value(known) != _value(entry):
                self._count("different", key)
            return False
        if timestamp < self._clock - self._window.declared.window_ms:
            self._count("late", key)
        remember(self._keys, digest, entry)
        check_size(self._window.declared, self._size + len(self._keys))
        return True

    def _count(self, name: str, key: bytes) -> None:
        self._counts[name] += 1
        if key:
            self._examples.setdefault(name, key[:_EXAMPLE_BYTES].decode(errors="backslashreplace"))


def record_key(window: KeyWindow, topic: str, record: Record) -> RecordKey | None:
    """Return the key of a record that is written; None: it has none."""
    if record.value is None or (key := window.key_of(record.key, record.value, record.headers)) is None:
        return None
    return RecordKey(key_digest(topic, key), _entry(record.timestamp, record.value))


def remember(keys: Keys, digest: bytes, entry: int) -> None:
    """Remember a record. Of two with one key, which are further apart than a window, the later is the one that the
    records to come are near to."""
    known = keys.get(digest)
    if known is None or _timestamp(known) < _timestamp(entry):
        keys[digest] = entry


def merge(keys: Keys, more: Keys) -> None:
    """Remember more keys."""
    for digest, entry in more.items():
        remember(keys, digest, entry)


def check_size(declared: Deduplicate, count: int) -> None:
    """Raises SourceRefused for more keys than are declared."""
    if count > declared.keys_max:
        raise SourceRefused(
            f"the records of {declared.window_ms / 1000:,.0f} s have more than {declared.keys_max:,} business keys",
            "raise max.keys (a key takes about 200 bytes of memory), or shorten the window",
        )


def _entry(timestamp: int, value: bytes) -> int:
    return timestamp << _VALUE_BITS | value_digest(value)


def _timestamp(entry: int) -> int:
    return entry >> _VALUE_BITS


def _value(entry: int) -> int:
    return entry & ((1 << _VALUE_BITS) - 1)
