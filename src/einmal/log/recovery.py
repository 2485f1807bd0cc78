"""Opening a partition's folder: from files of unknown state to segments, producer state and leader epochs.

Only the log is believed. What the last checkpoint proves to be flushed must be there, which is checked before anything
is changed; everything after it is read and validated, and what is derived from batches is replayed.
"""

# Theory of operation
# ===================
#
# The question that recovery answers is: which of the bytes in this folder did the log contain when its process ended?
# After a clean close the answer is in the checkpoint. After a crash, the log is what the checkpoint promises, followed
# by as many whole, valid batches as there are. The difficulty is to distinguish three things at the first batch that is
# not valid, because they call for opposite reactions:
#
#   - *A torn tail*: bytes that were written and never flushed. Nobody was promised that they are durable, so they are
#     cut off and the log continues there.
#   - *Damage*: bytes that had been flushed and changed since (a failing disk, a file copied or edited by hand). Cutting
#     there would silently drop acknowledged records, perhaps the only copy, so this is LogCorruption: the partition
#     stays offline and the message lists the ways out.
#   - *Loss*: a file that is missing or shorter than promised. Also LogCorruption.
#
# Which writes can be torn depends on how the last process ended. The boot id shows which it was (`lost_power`):
#
#   - The process was killed, the machine kept running: the page cache survived, so only the very last write can be
#     incomplete, and the remaining bytes of it are a prefix (`_is_partial_write`). Anything else is damage.
#   - The machine lost power: of what was not flushed any page may be missing, zeroed or old, in any order. So
#     everything after the checkpoint may be torn, and whole later segments with it (`_drop`); what was flushed may not.
#
# Order of events, and why:
#
#   1. `_own`: is the checkpoint this topic's and this partition's? One that was on its way when its topic was deleted
#      may end up in the folder of the next topic of that name. One of another partition means exchanged folders.
#   2. `_check_promises`: every segment that the checkpoint names is there, long enough, and the same file by its
#      fingerprint. This comes first, because every later step changes the folder.
#   3. `segment_swap.settle`: finish or undo a swap that was interrupted, so that the folder holds one log, not two.
#   4. `_segments`: take closed segments over as they are; scan the growing one from where the checkpoint ends, and
#   those
#      that the checkpoint does not know. Each segment must reach to where the next begins (`_reaches`), except where
#      compaction has emptied the end of one.
#   5. `_load_epochs`, `load_state`: leader epochs, aborted indexes and producer state, from the file if it is the one
#      that the checkpoint means, else from the batches.
#
# Without a checkpoint (lost, or unreadable) all segments are scanned, and one that has an index file counts as flushed,
# as indexes are written after that. What only the checkpoint knows is forgotten: records that DeleteRecords removed may
# be there again, and a compacted log counts as dirty.
#
# Replay. Producer state at the end of the log = a snapshot + every batch behind it (`_replay`). The snapshot must not
# lie behind the first batch that the aborted indexes or the epochs need replayed, so one gap in them may move the
# start back by several snapshots, in the worst case to the first segment. A snapshot holds only the last batch of
# each producer's window, as Apache Kafka's does; the batches shortly before it fill the windows up again
# (`_fill_windows`), so that a retry of any of the last five is still recognized after a restart.
#
# Idempotence. A crash during recovery is followed by another recovery: each change of the folder (a cut, a removed
# segment, a finished rename) leaves a folder that recovers to the same log. The cut is synced at once, as what is
# appended next must not be followed by the old bytes after another power cut.

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final
from uuid import UUID

from einmal.event_log import EventLog
from einmal.log import checkpoint, leader_epochs, segment_swap
from einmal.log.aborted_index import AbortedEntry
from einmal.log.batches import holds_batch, scan
from einmal.log.config import LogConfig
from einmal.log.disk import Disk
from einmal.log.errors import LogCorruption
from einmal.log.leader_epochs import LeaderEpochs
from einmal.log.offset_index import ENTRY_SIZE as OFFSET_ENTRY_SIZE
from einmal.log.offset_index import RELATIVE_OFFSET_MAX
from einmal.log.producer_state import ProducerStates
from einmal.log.segment import Segment, entry_of
from einmal.log.segment_files import (
    ABORTED_INDEX,
    LOG,
    NOTHING_STORED,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    SegmentSummary,
    Stored,
    file_name,
    fingerprint_of,
)
from einmal.types import Instant, Offset, ProducerIdAndEpoch
from einmal.wire.control_batch import ABORT, COMMIT, control_type, decode_marker
from einmal.wire.errors import Truncated, WireError
from einmal.wire.record_batch import CONTROL, HEADER_SIZE, BatchHeader, decode_records, is_whole_batch

log = EventLog(__name__)
_UNKNOWN: Final = "%(path)s is not what the checkpoint knows: rebuilt from the log"

_NAME: Final = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)")
_DERIVED: Final = (OFFSET_INDEX, TIME_INDEX, ABORTED_INDEX)
_DENSE_BYTES: Final = 256 * 1024
_DENSE_RECORDS: Final = 5_000
"""An index with an entry for so many bytes or records is dense: a lookup takes milliseconds."""
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
    snapshots: dict[Offset, Stored | None]
    """Rising; None: no checkpoint has the CRC of the file."""
    matches_checkpoint: bool = False
    """Whether a new checkpoint would be the same as the last one."""
    stored_epochs: Stored = NOTHING_STORED
    aborted_from: dict[Offset, Offset] = field(default_factory=dict)
    """By a segment's base offset: from which marker on its aborted index has to be filled."""
    cleaned_offset: Offset = Offset(0)
    """Where it is clean up to; a log of which that is not known is taken to be dirty."""


def recover(
    disk: Disk,
    directory: PurePosixPath,
    config: LogConfig,
    now: Instant,
    topic_id: UUID | None = None,
    *,
    partition: int | None = None,
    lost_power: bool = True,
) -> Recovered:
    """Read a partition's folder, cutting a torn tail off. Raises LogCorruption or OSError.

    ``lost_power``: what was not flushed may be lost or torn. Else it was only a process that ended.
    """
    summary = _own(checkpoint.load(disk, directory), directory, topic_id, partition)
    if summary is not None:
        _check_promises(disk, directory, summary)
    segment_swap.settle(disk, directory, summary)
    files = _list(disk, directory)
    recovered = _segments(disk, directory, config, summary, files, lost_power)
    segments = recovered.segments
    for suffix in _DERIVED:
        _remove(disk, directory, suffix, sorted(set(files[suffix]) - {segment.base_offset for segment in segments}))
    has_epochs = _load_epochs(disk, directory, recovered, summary)
    proved = all(recovered.aborted_from.get(segment.base_offset) == segment.end_offset for segment in segments)
    has_stored = summary is None or [segment.stored for segment in segments] == [
        segment.stored for segment in summary.segments
    ]
    recovered.matches_checkpoint = has_epochs and proved and has_stored
    load_state(disk, directory, config, recovered, now)
    return recovered


def _own(
    summary: checkpoint.Summary | None, directory: PurePosixPath, topic_id: UUID | None, partition: int | None
) -> checkpoint.Summary | None:
    """The checkpoint, unless an earlier topic of the name has left it. Raises LogCorruption."""
    if summary is None:
        return None
    path = directory / checkpoint.FILE_NAME
    if summary.topic_id != topic_id:
        log.warning(
            "checkpoint_of_other_topic",
            "%(path)s is of topic id %(topic_id)s, not %(expected)s: the whole log is read instead",
            path=path,
            topic_id=summary.topic_id,
            expected=topic_id,
        )
        return None
    # Checkpoints of earlier versions do not name the partition.
    if None not in (partition, summary.partition) and summary.partition != partition:
        raise LogCorruption(
            f"{path} is of partition {summary.partition}: the directories, or files in them, were exchanged. "
            "Restore them from a backup, or exchange them again"
        )
    return summary


# --- what is promised ------------------------------------------------------------------------------------------


def _check_promises(disk: Disk, directory: PurePosixPath, summary: checkpoint.Summary) -> None:
    """Make sure that what the checkpoint proves to be on disk is there. Raises LogCorruption or OSError."""
    for known in summary.segments:
        # Only the last one may have grown since.
        may_grow = known is summary.segments[-1]
        problem = _problem(disk, directory / file_name(known.base_offset, LOG), known, may_grow)
        if problem:
            swap = directory / file_name(known.base_offset, LOG + segment_swap.SWAP)
            if not disk.exists(swap) or _problem(disk, swap, known, may_grow=False):
                raise LogCorruption(
                    f"{problem}. Flushed records up to offset {known.end_offset} were in it. Restore the file from a "
                    f"backup; or, to give these records up, remove {directory / checkpoint.FILE_NAME}: what can still "
                    "be read is kept then; or, with other replicas, move the directory away: it is copied from the "
                    "leader"
                )


def _problem(disk: Disk, path: PurePosixPath, known: SegmentSummary, may_grow: bool) -> str:
    """How a segment's file differs from what the checkpoint knows; empty: it does not."""
    if not disk.exists(path):
        return f"{path} is missing"
    file = disk.open(path)
    try:
        size = file.size()
        if size < known.size or (size > known.size and not may_grow):
            return f"{path} has {size} bytes, {checkpoint.FILE_NAME} promises {known.size}"
        if known.fingerprint is not None and fingerprint_of(file, known.size) != known.fingerprint:
            return f"{path} is not the file that {checkpoint.FILE_NAME} promises, or is damaged"
    finally:
        file.close()
    return ""


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


# --- the segments ----------------------------------------------------------------------------------------------


def _segments(
    disk: Disk,
    directory: PurePosixPath,
    config: LogConfig,
    summary: checkpoint.Summary | None,
    files: dict[str, list[Offset]],
    lost_power: bool,
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
            if _is_sparse(known[base]):
                _add_entries(segment)
            # Batches after the checkpoint are replayed in any case, those before it if the file is another one.
            if segment.load_aborted_index():
                aborted_from[base] = segment.end_offset
            else:
                log.warning("aborted_index_rebuilt", _UNKNOWN, path=segment.path(ABORTED_INDEX))
        following = bases[number + 1] if number + 1 < len(bases) else None
        is_proved = base in known and base != growing
        is_flushed = is_proved or (summary is None and following is not None and base in files[OFFSET_INDEX])
        may_be_torn = not is_flushed and (lost_power or following is None)
        is_whole = is_proved or _scan(segment, may_be_torn=may_be_torn, lost_power=lost_power)
        if is_whole and following is not None:
            is_whole = _reaches(segment, following, config, may_be_torn=may_be_torn)
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
        snapshots=_known_snapshots(files[SNAPSHOT], summary),
        aborted_from=aborted_from,
        cleaned_offset=min(summary.cleaned_offset, segments[-1].end_offset) if summary else Offset(0),
    )


def _is_sparse(known: SegmentSummary) -> bool:
    """Whether a lookup might read the headers of very many batches between two entries of the index."""
    entries = known.stored.offsets.size // OFFSET_ENTRY_SIZE + 1
    return known.size // entries > _DENSE_BYTES and (known.end_offset - known.base_offset) // entries > _DENSE_RECORDS


def _add_entries(segment: Segment) -> None:
    """Earlier versions wrote an index with the interval in the topic's settings, however large."""
    log.warning("index_rebuilt", "%(path)s: its index has few entries: rebuilt", path=segment.path(OFFSET_INDEX))
    try:
        segment.rebuild_indexes()
    except LogCorruption as error:
        # Whoever reads there gets the error, and nobody else.
        sentence = "%(path)s: its index stays as it is: %(error)s"
        log.warning("index_not_rebuilt", sentence, path=segment.path(OFFSET_INDEX), error=error)


def _known_snapshots(offsets: list[Offset], summary: checkpoint.Summary | None) -> dict[Offset, Stored | None]:
    if summary is None or summary.snapshots is None:
        return dict.fromkeys(offsets)
    # One that the checkpoint does not know was written for a checkpoint that has not come about.
    known = dict(summary.snapshots)
    return {offset: known.get(offset, NOTHING_STORED) for offset in offsets}


def _scan(segment: Segment, *, may_be_torn: bool, lost_power: bool) -> bool:
    """Read what is not known of a segment; false: the rest of it was not valid and has been cut off."""
    segment.is_dirty = True
    # A batch is taken when the next one has confirmed its offset: of two that contradict each other both go.
    held: tuple[int, BatchHeader] | None = None
    end_offset, error, is_short = segment.end_offset, "", False
    try:
        for position, header in scan(segment.file, segment.size, segment.file.size()):
            offset_max = segment.base_offset + RELATIVE_OFFSET_MAX
            if not end_offset <= header.base_offset <= offset_max:
                expected = f"expected an offset from {end_offset} to {offset_max} at byte {position}"
                error, held = f"{expected}, found {header.base_offset}", None
                break
            if held is not None:
                segment.include(held[0], [entry_of(held[1])])
            held, end_offset = (position, header), header.next_offset
    except WireError as wire_error:
        error, is_short = f"{wire_error} at {end_offset}", isinstance(wire_error, Truncated)
    if held is not None:
        segment.include(held[0], [entry_of(held[1])])
    if not error:
        return True
    is_torn = may_be_torn and (lost_power or (is_short and _is_partial_write(segment)))
    if not is_torn:
        raise LogCorruption(
            f"{segment.path(LOG)}: {error}. This is damage, not the torn tail of a crash: the bytes had been flushed, "
            "or other batches follow, or the machine has not lost its power. Restore the file from a backup; or, to "
            f"give up everything from offset {segment.end_offset} on, cut it to {segment.size} bytes and remove the "
            "segments after it; or, with other replicas, move the directory away: it is copied from the leader"
        )
    log.warning(
        "torn_tail_truncated",
        "%(path)s: %(error)s: the torn tail of a crash, %(bytes)d bytes from offset %(offset)d on, is cut off at "
        "%(size)d",
        path=segment.path(LOG),
        error=error,
        bytes=segment.file.size() - segment.size,
        offset=segment.end_offset,
        size=segment.size,
    )
    segment.cut(segment.size)
    # At once: what is appended now must not be followed by old bytes again after a power cut.
    segment.sync()
    return False


def _is_partial_write(segment: Segment) -> bool:
    """Whether what follows the last valid batch can be the beginning of one write that a kill has cut short."""
    # A wider definition truncates acknowledged records: one flipped bit after kill -9 cut the metadata log, and topics
    # disappeared with it.
    start, end = segment.size, segment.file.size()
    head = segment.file.read(start, HEADER_SIZE)
    if len(head) == HEADER_SIZE and is_whole_batch(segment.file.read(start, end - start)):
        # All of it is there, but for its length.
        return False
    return not holds_batch(segment.file, start + 1, end, segment.end_offset)


def _reaches(segment: Segment, following: Offset, config: LogConfig, *, may_be_torn: bool) -> bool:
    """Whether the segment reaches to where the next begins; false: its end was never flushed, and is lost."""
    # Compaction may have left a hole in what was flushed. Anywhere else one means that batches are gone: a torn tail
    # looks the same, and only the checkpoint distinguishes the two.
    is_hole = segment.end_offset < following and config.is_compacted and not may_be_torn
    is_whole = segment.end_offset == following or is_hole
    if not is_whole and (not may_be_torn or segment.end_offset > following):
        raise LogCorruption(
            f"{segment.path(LOG)}: ends at {segment.end_offset}, the next segment begins at {following}"
        )
    return is_whole


def _drop(disk: Disk, directory: PurePosixPath, config: LogConfig, bases: list[Offset]) -> None:
    # The last first: after a crash in between there is no hole.
    for base in reversed(bases):
        sentence = "%(path)s follows the torn tail of a crash, and goes"
        log.warning("segment_after_torn_tail_removed", sentence, path=directory / file_name(base, LOG))
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
    path = directory / leader_epochs.FILE_NAME
    try:
        data = disk.read_file(path) if summary else b""
        stored = Stored.of(data)
        if summary and stored == summary.leader_epochs:
            recovered.epochs = LeaderEpochs.decode(data)
            recovered.stored_epochs = stored
            return True
        if summary:
            log.warning("leader_epochs_rebuilt", _UNKNOWN, path=path)
    except (OSError, ValueError) as error:
        log.warning("leader_epochs_unreadable", "%(path)s: %(error)s: rebuilt from the log", path=path, error=error)
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
    for offset, stored in reversed(recovered.snapshots.items()):
        is_usable = offset <= end
        if is_usable and not is_loaded and start <= offset <= replay_from:
            try:
                data = disk.read_file(directory / file_name(offset, SNAPSHOT))
                actual = Stored.of(data)
                if stored not in (None, actual):
                    raise ValueError(f"expected the producer snapshot {stored} of the checkpoint, found {actual}")
                recovered.producers = ProducerStates.decode_snapshot(data, now, config.producer_id_expiration_ms)
                start, is_loaded = offset, True
            except (OSError, ValueError) as error:
                is_usable = False
                if stored != NOTHING_STORED:
                    sentence, path = "%(path)s is not used: %(error)s", directory / file_name(offset, SNAPSHOT)
                    log.warning("producer_snapshot_unused", sentence, path=path, error=error)
        if is_usable:
            kept.insert(0, offset)
        else:
            _remove(disk, directory, SNAPSHOT, [offset])
    recovered.snapshots = {offset: recovered.snapshots[offset] for offset in kept}
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
        for _, header in reversed(list(segment.headers(first, end))):
            if header.producer_id >= 0:
                recovered.producers.refill_window(header)


def _replay(recovered: Recovered, start: Offset, now: Instant) -> None:
    for segment in recovered.segments:
        if segment.end_offset <= start:
            continue
        since = recovered.aborted_from.get(segment.base_offset, segment.base_offset)
        for position, header in segment.headers(segment.position_of(start)):
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
