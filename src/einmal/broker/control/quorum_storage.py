"""Files of this member of the metadata quorum: the log, its snapshots, and ``quorum-state`` with its vote.

The log is a partition like any other, kept by ``Partitions``. Raises LogCorruption where what is on disk cannot be
believed: a member that has forgotten a vote, or committed records, must not take part.
"""

from __future__ import annotations

from typing import Final

from einmal.broker.config import BrokerConfig
from einmal.broker.control.metadata_snapshots import MetadataSnapshots
from einmal.broker.identity import Identity
from einmal.broker.listeners import ConfigError
from einmal.broker.replicas.partition import Partition
from einmal.broker.replicas.partitions import Partitions
from einmal.event_log import EventLog
from einmal.log.disk import Disk
from einmal.log.errors import LogCorruption
from einmal.metadata import records
from einmal.metadata.image import METADATA_PARTITION, METADATA_TOPIC_ID
from einmal.metadata.records import MetadataRecord
from einmal.quorum import election_state
from einmal.quorum.election_state import ElectionState
from einmal.quorum.messages import OffsetAndEpoch
from einmal.quorum.raft import EPOCH_MAX
from einmal.types import NO_LEADER_EPOCH, Offset
from einmal.wire.errors import WireError
from einmal.wire.record_batch import decode_records, iter_headers

log = EventLog(__name__)
_UNREADABLE: Final = "cannot read %(partition)s at offset %(offset)d: %(error)s"

_EPOCH_SPENT: Final = EPOCH_MAX - 1_000
_READ_BYTES: Final = 1024 * 1024
_WAYS_OUT: Final = (
    f"Restore {METADATA_PARTITION} from a backup; or, where a majority of the other controllers is alive, move it "
    "away: it is copied from their leader"
)
"""Where this member's memory is damaged."""


class QuorumStorage:
    partition: Partition
    """Only after ``open``."""

    def __init__(self, config: BrokerConfig, identity: Identity, partitions: Partitions, disk: Disk) -> None:
        self.voters = tuple(sorted(config.quorum_voters)) or (config.node_id,)
        self.is_voter = config.node_id in self.voters
        self.snapshots = MetadataSnapshots(disk, config.directory / str(METADATA_PARTITION))
        self._identity = identity
        self._partitions = partitions
        self._disk = disk
        self._state_path = self.snapshots.directory / election_state.FILE_NAME

    @property
    def cluster_id(self) -> str:
        return self._identity.cluster_id

    async def open(self) -> tuple[OffsetAndEpoch, list[bytes]] | None:
        """Open the log; the latest snapshot with its records' values, None: there is none.

        Raises OSError or LogCorruption.
        """
        self.partition = self._partitions.open_metadata(METADATA_PARTITION, METADATA_TOPIC_ID)
        snapshot = self.snapshots.load(self.partition.log_start_offset)
        if snapshot is not None:
            snapshot_id, _values = snapshot
            if self.partition.log_end_offset < snapshot_id.offset or self.partition.latest_epoch < snapshot_id.epoch:
                # It stopped while it replaced a log that was far behind by the snapshot.
                await self.partition.restart_at(Offset(snapshot_id.offset))
        return snapshot

    def check_log(self, offset: Offset) -> None:
        """Read all that the image will be made of: with a part of it the node would wait for the rest for ever.

        Raises LogCorruption or OSError.
        """
        end = self.partition.log_end_offset
        while offset < end:
            batches = self.partition.read(offset, _READ_BYTES, below=end)
            if not batches:
                raise LogCorruption(f"{self.snapshots.directory}: nothing to read at offset {offset}. {_WAYS_OUT}")
            for _, header in iter_headers(batches):
                # No batch of this log is ever compacted away.
                if not header.base_offset <= offset < header.next_offset:
                    raise LogCorruption(
                        f"{self.snapshots.directory}: offset {header.base_offset} where {offset} is due. {_WAYS_OUT}"
                    )
                offset = header.next_offset

    def read(self, offset: Offset, below: Offset) -> tuple[list[MetadataRecord], Offset]:
        """The records from an offset on, and the offset after the last batch that was read.

        What cannot be read is logged; the rest comes when it is asked for again.
        """
        metadata_records: list[MetadataRecord] = []
        try:
            while offset < below:
                batches = self.partition.read(offset, _READ_BYTES, below=below)
                for position, header in iter_headers(batches):
                    if not header.is_control:
                        for record in decode_records(batches, position, header):
                            decoded = records.decode(record.key, record.value, None)
                            if decoded is not None:
                                metadata_records.append(decoded)
                    offset = header.next_offset
                if not batches:
                    break
        except (OSError, LogCorruption, WireError) as error:
            log.error("metadata_log_unreadable", _UNREADABLE, partition=METADATA_PARTITION, offset=offset, error=error)
        return metadata_records, offset

    # --- the vote ----------------------------------------------------------------------------------------------------

    def read_state(self) -> ElectionState | None:
        """Return what is remembered of the last election. Raises LogCorruption, ConfigError or OSError."""
        state, log_epoch = None, self.partition.latest_epoch
        if self._disk.exists(self._state_path):
            try:
                state = election_state.decode(self._disk.read_file(self._state_path))
            except ValueError as error:
                raise LogCorruption(f"{self._state_path}: {error}. {_WAYS_OUT}") from error
        if self.is_voter and log_epoch > (NO_LEADER_EPOCH if state is None else state.epoch):
            if state is None and len(self.voters) == 1:
                # Nobody else votes: all that matters is that the next epoch is a new one.
                missing = "%(path)s is missing: begun anew after epoch %(epoch)d of the log"
                log.warning("quorum_state_missing", missing, path=self._state_path, epoch=log_epoch)
                return None
            known = "is missing" if state is None else f"has epoch {state.epoch}"
            raise LogCorruption(
                f"{self._state_path} {known}, and the log beside it has epoch {log_epoch}: this controller does not "
                f"know whom it has voted for. {_WAYS_OUT}"
            )
        if state is not None and state.epoch > _EPOCH_SPENT:
            raise ConfigError(
                f"{self._state_path} is of epoch {state.epoch}, which leaves no epoch for another election. No cluster "
                "comes there by itself. Stop all controllers and write the same leaderEpoch, with leaderId=-1, "
                "votedId=-1 and no crc32c, into quorum-state on each: one more than the last epoch of any controller's "
                f"log (here {log_epoch})"
            )
        return state

    def write_state(self, state: ElectionState) -> None:
        """Durable when it returns. Raises OSError."""
        data = election_state.encode(state, self.cluster_id, self.voters)
        self._disk.write_file(self._state_path, data)
