"""Opening a partition's folder: from files of unknown state to segments, producer state and leader epochs.

Only the log is believed. What the last checkpoint proves to be flushed is taken over; everything after it is read and
validated. The first batch there that is not valid is where the log ends (a torn tail: it was never flushed), and later
segments go. Bytes that had been flushed and are not valid any more are no torn tail but LogCorruption. Without a
checkpoint all segments are read; a segment that has an index file was flushed once, as indexes are written after that.

State derived from batches is replayed from a snapshot, or from the start where no snapshot can be believed.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Final
from uuid import UUID

from einmal.log import checkpoint, leader_epochs, segment_swap
from einmal.log.aborted_index import AbortedEntry
from einmal.log.batches import scan
from einmal.log.config import LogConfig
from einmal.log.disk import Disk
from einmal.log.errors import LogCorruption
from einmal.log.leader_epochs import LeaderEpochs
from einmal.log.offset_index import RELATIVE_OFFSET_MAX
from einmal.log.producer_state import ProducerStates
from einmal.log.segment import (
    ABORTED_INDEX,
    LOG,
    NOTHING_STORED,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    Segment,
    Stored,
    file_name,
)
from einmal.types import Instant, Offset, ProducerIdAndEpoch
from einmal.wire.control_batch import ABORT, COMMIT, control_type, decode_marker
from einmal.wire.errors import WireError
from einmal.wire.record_batch import CONTROL, BatchHeader, decode_records

_NAME: Final = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)")
_DERIVED: Final = (OFFSET_INDEX, TIME_INDEX, ABORTED_INDEX)
_LOOK_BACK_ENTRIES: Final = 512
"""How far before a snapshot the windows are filled up from, in entries of the offset index."""


@dataclass(slots=True)
class Recovered:
    """A log as found on disk. ``flushed_offset``: what is proved to survive a power cut."""

    segments: list[Segment]
    log_start_offset: Offset
    flushed_offset: Offset
    epochs: LeaderEpochs
    producers: ProducerStates
    snapshots: list[Offset]
    matches_checkpoint: bool = False
    """Whether a new checkpoint would say nothing new."""
    stored_epochs: Stored = NOTHING_STORED
    aborted_from: dict[Offset, Offset] = field(default_factory=dict)
    """By a segment's base offset: from which marker on its aborted index has to be filled."""
    cleaned_offset: Offset = Offset(0)
    """Where it is clean up to; a log of which that is not known is taken to be dirty."""


def recover(
    disk: Disk, directory: PurePosixPath, config: LogConfig, now: Instant, topic_id: UUID | None = None
) -> Recovered:
    """Read a partition's folder, cutting a torn tail off. Raises LogCorruption or OSError."""
    summary = checkpoint.load(disk, directory)
    if summary is not None and summary.topic_id != topic_id:
        summary = None
    segment_swap.settle(disk, directory, summary)
    files = _list(disk, directory)
    summary = _believed(summary, disk, directory, files[LOG])
    recovered = _segments(disk, directory, config, summary, files)
    segments = recovered.segments
    for suffix in _DERIVED:
        _remove(disk, directory, suffix, sorted(set(files[suffix]) - {segment.base_offset for segment in segments}))
    has_epochs = _load_epochs(disk, directory, recovered, summary)
    proved = all(recovered.aborted_from.get(segment.base_offset) == segment.end_offset for segment in segments)
    recovered.matches_checkpoint = has_epochs and proved
    load_state(disk, directory, config, recovered, now)
    return recovered


def _list(disk: Disk, directory: PurePosixPath) -> dict[str, list[Offset]]:
    """Offsets in the names of the files of each kind, rising; what was half written is removed."""
    files: dict[str, list[Offset]] = {suffix: [] for suffix in (LOG, *_DERIVED, SNAPSHOT)}
    for name in disk.list_directory(directory):
        match = _NAME.fullmatch(name)
        if match:
            files[match[2]].append(Offset(int(match[1])))
        elif name.endswith(".tmp"):
            disk.remove(directory / name)
    return files


def _believed(
    summary: checkpoint.Summary | None, disk: Disk, directory: PurePosixPath, bases: list[Offset]
) -> checkpoint.Summary | None:
    """The checkpoint, without segments that retention has deleted since; None when the log contradicts it."""
    if summary is None or not bases:
        return None
    segments = tuple(segment for segment in summary.segments if segment.base_offset >= bases[0])
    if bases[: len(segments)] != [segment.base_offset for segment in segments]:
        return None
    for segment in segments:
        file = disk.open(directory / file_name(segment.base_offset, LOG))
        size = file.size()
        file.close()
        is_last = segment is segments[-1]
        if size < segment.size or (size > segment.size and not is_last):
            return None
    return replace(summary, segments=segments)


# --- the segments ----------------------------------------------------------------------------------------------


def _segments(
    disk: Disk,
    directory: PurePosixPath,
    config: LogConfig,
    summary: checkpoint.Summary | None,
    files: dict[str, list[Offset]],
) -> Recovered:
    bases = files[LOG]
    known = {segment.base_offset: segment for segment in summary.segments} if summary else {}
    growing = summary.segments[-1].base_offset if summary and summary.segments else None
    segments: list[Segment] = []
    aborted_from: dict[Offset, Offset] = {}
    for number, base in enumerate(bases):
        segment = Segment(disk, directory, base, config.index_interval_bytes)
        segments.append(segment)
        aborted_from[base] = base
        if base in known:
            segment.restore(known[base])
            # What lies after the checkpoint is replayed in any case, and before it where the file is not the one meant.
            if segment.load_aborted_index():
                aborted_from[base] = segment.end_offset
        following = bases[number + 1] if number + 1 < len(bases) else None
        is_proved = base in known and base != growing
        is_flushed = is_proved or (summary is None and following is not None and base in files[OFFSET_INDEX])
        is_whole = is_proved or _scan(segment, is_flushed=is_flushed)
        if is_whole and following is not None:
            is_whole = _reaches(segment, following, config, is_flushed=is_flushed)
        if not is_whole:
            _drop(disk, directory, config, bases[number + 1 :])
            break
    if not segments:
        segments.append(Segment.create(disk, directory, Offset(0), config.index_interval_bytes))
    start = max(summary.log_start_offset if summary else Offset(0), segments[0].base_offset)
    return Recovered(
        segments=segments,
        log_start_offset=min(start, segments[-1].end_offset),
        flushed_offset=summary.segments[-1].end_offset if summary and summary.segments else segments[0].base_offset,
        epochs=LeaderEpochs(),
        producers=ProducerStates(),
        snapshots=files[SNAPSHOT],
        aborted_from=aborted_from,
        cleaned_offset=min(summary.cleaned_offset, segments[-1].end_offset) if summary else Offset(0),
    )


def _scan(segment: Segment, *, is_flushed: bool) -> bool:
    """Read what is not known of a segment; false: the rest of it was not valid and has been cut off."""
    segment.is_dirty = True
    # A batch is taken when the next one has confirmed its offset: of two that contradict each other both go.
    held: tuple[int, BatchHeader] | None = None
    end_offset, error = segment.end_offset, ""
    try:
        for position, header in scan(segment.file, segment.size, segment.file.size()):
            if not end_offset <= header.base_offset <= segment.base_offset + RELATIVE_OFFSET_MAX:
                error, held = f"offset {header.base_offset} at {position}", None
                break
            if held is not None:
                segment.adopt(*held)
            held, end_offset = (position, header), header.next_offset
    except WireError as wire_error:
        error = str(wire_error)
    if held is not None:
        segment.adopt(*held)
    if not error:
        return True
    if is_flushed:
        raise LogCorruption(f"{segment.path(LOG)}: {error}")
    segment.cut(segment.size)
    # At once: what is appended now must not be followed by old bytes again after a power cut.
    segment.sync()
    return False


def _reaches(segment: Segment, following: Offset, config: LogConfig, *, is_flushed: bool) -> bool:
    """Whether the segment goes on to where the next begins; false: its end was never flushed, and is lost."""
    # Compaction may have left a hole in what was flushed. Anywhere else one means that batches are gone.
    is_hole = segment.end_offset < following and config.is_compacted and is_flushed
    is_whole = segment.end_offset == following or is_hole
    if not is_whole and (is_flushed or segment.end_offset > following):
        raise LogCorruption(
            f"{segment.path(LOG)}: ends at {segment.end_offset}, the next segment begins at {following}"
        )
    return is_whole


def _drop(disk: Disk, directory: PurePosixPath, config: LogConfig, bases: list[Offset]) -> None:
    # The last first: after a crash in between there is no hole.
    for base in reversed(bases):
        Segment(disk, directory, base, config.index_interval_bytes).remove()


def _remove(disk: Disk, directory: PurePosixPath, suffix: str, offsets: list[Offset]) -> None:
    for offset in offsets:
        path = directory / file_name(offset, suffix)
        if disk.exists(path):
            disk.remove(path)


# --- what is derived from the batches --------------------------------------------------------------------------


def _load_epochs(
    disk: Disk, directory: PurePosixPath, recovered: Recovered, summary: checkpoint.Summary | None
) -> bool:
    try:
        data = disk.read_file(directory / leader_epochs.FILE_NAME) if summary else b""
        stored = Stored.of(data)
        if summary and stored == summary.leader_epochs:
            recovered.epochs = LeaderEpochs.decode(data)
            recovered.stored_epochs = stored
            return True
    except (OSError, ValueError):
        pass
    # Not to be believed: the replay begins at the first segment, which is as good.
    recovered.aborted_from[recovered.segments[0].base_offset] = recovered.segments[0].base_offset
    recovered.segments[0].aborted_index.truncate_to(recovered.segments[0].base_offset)
    return False


def load_state(disk: Disk, directory: PurePosixPath, config: LogConfig, recovered: Recovered, now: Instant) -> None:
    """Producer state, and with it leader epochs and aborted indexes as far as they are not known.

    ``recovered.snapshots`` names the files that may be used; those that may not are removed.
    """
    end = recovered.segments[-1].end_offset
    replay_from = end
    for segment in recovered.segments:
        since = recovered.aborted_from.get(segment.base_offset, segment.base_offset)
        if since < segment.end_offset or since == segment.base_offset:
            replay_from = min(replay_from, since)
            break
    start = recovered.segments[0].base_offset
    kept: list[Offset] = []
    is_loaded = False
    for offset in reversed(recovered.snapshots):
        is_usable = offset <= end
        if is_usable and not is_loaded and start <= offset <= replay_from:
            try:
                data = disk.read_file(directory / file_name(offset, SNAPSHOT))
                recovered.producers = ProducerStates.decode_snapshot(data, now, config.producer_id_expiration_ms)
                start, is_loaded = offset, True
            except (OSError, ValueError):
                is_usable = False
        if is_usable:
            kept.insert(0, offset)
        else:
            _remove(disk, directory, SNAPSHOT, [offset])
    recovered.snapshots = kept
    _fill_windows(recovered, start)
    _replay(recovered, start, now)


def _fill_windows(recovered: Recovered, snapshot_offset: Offset) -> None:
    """Give the windows back what a snapshot leaves out, from the batches shortly before it, newest first."""
    if not len(recovered.producers):
        return
    number = bisect_left([segment.base_offset for segment in recovered.segments], snapshot_offset)
    # The segment before counts too: the snapshot may have been taken soon after a roll.
    for segment in reversed(recovered.segments[max(0, number - 2) : number]):
        end = segment.position_of(snapshot_offset)
        first = segment.offset_index.floor_before(end, _LOOK_BACK_ENTRIES)
        for header in reversed(segment.headers_between(first, end)):
            if header.producer_id >= 0:
                recovered.producers.refill_window(header)


def _replay(recovered: Recovered, start: Offset, now: Instant) -> None:
    for segment in recovered.segments:
        if segment.end_offset <= start:
            continue
        since = recovered.aborted_from.get(segment.base_offset, segment.base_offset)
        for position, header in segment.headers_from(segment.position_of(start)):
            recovered.epochs.assign(header.partition_leader_epoch, header.base_offset)
            if header.producer_id < 0:
                continue
            if not header.attributes & CONTROL:
                recovered.producers.replay_batch(
                    header, header.base_offset, header.last_offset, header.max_timestamp, now
                )
                continue
            data = segment.file.read(position, header.size)
            try:
                entry = replay_control_batch(recovered.producers, data, header, now)
            except WireError as error:
                raise LogCorruption(f"{segment.path(LOG)}: marker at offset {header.base_offset}: {error}") from error
            if entry is not None and header.base_offset >= since:
                segment.aborted_index.append(entry)


def replay_control_batch(
    producers: ProducerStates, data: bytes | bytearray | memoryview, header: BatchHeader, now: Instant
) -> AbortedEntry | None:
    """A control batch with its final offset is in the log; what the aborted index has to know of it, if anything.

    Raises CorruptBatch.
    """
    records = decode_records(data, 0, header)
    # Compaction may have left the batch without its record; other control records end no transaction.
    if not records or control_type(records[0]) not in (ABORT, COMMIT):
        return None
    marker = decode_marker(records[0])
    completed = producers.replay_marker(
        ProducerIdAndEpoch(header.producer_id, header.producer_epoch),
        committed=marker.committed,
        coordinator_epoch=marker.coordinator_epoch,
        offset=header.last_offset,
        timestamp=header.max_timestamp,
        now=now,
    )
    if completed is None or completed.committed:
        return None
    return AbortedEntry(
        completed.producer_id, completed.first_offset, completed.last_offset, completed.last_stable_offset
    )
