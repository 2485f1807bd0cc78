"""Who this node is: its cluster, its data folder, and its epoch as a broker of that cluster.

The ids of cluster and folder are read from ``meta.properties`` at the start; an empty folder gets new ones. The
broker epoch comes with each registration. Everybody reads them, one writes each: the ids ``load``, the epoch the
broker's lifecycle.
"""

from __future__ import annotations

import base64
import hashlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from einmal.broker import meta_properties
from einmal.broker.config import BrokerConfig, ConfigError
from einmal.broker.meta_properties import MetaProperties
from einmal.log.disk import Disk
from einmal.log.errors import LogCorruption
from einmal.metadata.image import METADATA_PARTITION

_UNKNOWN: Final = UUID(int=0)


@dataclass(slots=True)
class Identity:
    node_id: int
    cluster_id: str = ""
    directory_id: UUID = _UNKNOWN
    """Id of the data folder: a folder that was wiped has another one. As the cluster's, only after ``load``."""
    broker_epoch: int = -1
    """Epoch of this process as a broker; -1: it has none yet."""

    def load(
        self, config: BrokerConfig, disk: Disk, source: random.Random, holds_partitions: Callable[[], bool]
    ) -> None:
        """Read the ids from the data folder, or give new ones to an empty one.

        Raises ConfigError for the folder of another node, LogCorruption where the ids of records are lost, OSError.
        """
        path = config.directory / meta_properties.FILE_NAME
        how_to_identify = (
            "Restore it from a backup, or write it again: version=1, cluster.id= as in "
            f"{METADATA_PARTITION}/quorum-state, node.id={self.node_id}, directory.id= a UUID"
        )
        if disk.exists(path):
            try:
                known = meta_properties.decode(disk.read_file(path))
            except ValueError as error:
                raise LogCorruption(f"{path}: {error}. {how_to_identify}") from error
            if known.node_id != self.node_id:
                raise ConfigError(
                    f"the data in {config.directory} is of node.id={known.node_id}, "
                    f"this broker is node.id={self.node_id}"
                )
            if config.einmal_cluster_id not in ("", known.cluster_id):
                raise ConfigError(
                    f"the data in {config.directory} is of cluster {known.cluster_id}, this broker is of "
                    f"einmal.cluster.id={config.einmal_cluster_id}"
                )
            self.cluster_id, self.directory_id = known.cluster_id, known.directory_id
            return
        if holds_partitions() or disk.exists(config.directory / str(METADATA_PARTITION)):
            raise LogCorruption(
                f"{config.directory} holds partitions, but no {meta_properties.FILE_NAME} with the ids of its cluster. "
                f"{how_to_identify}"
            )
        voters = config.quorum_voters
        # Fresh processes of one cluster must agree on it before their first request.
        derived = cluster_id_of(voters) if voters else new_cluster_id(new_uuid(source))
        self.cluster_id = config.einmal_cluster_id or derived
        self.directory_id = new_uuid(source)
        written = MetaProperties(self.cluster_id, self.node_id, self.directory_id)
        disk.write_file(path, meta_properties.encode(written))


def new_uuid(source: random.Random) -> UUID:
    return UUID(bytes=source.randbytes(16), version=4)


def cluster_id_of(voters: Mapping[int, object]) -> str:
    """The id of a cluster whose nodes have it from nobody: it follows from who its controllers are."""
    text = ",".join(f"{node_id}@{endpoint}" for node_id, endpoint in sorted(voters.items()))
    return new_cluster_id(UUID(bytes=hashlib.sha256(text.encode()).digest()[:16], version=4))


def new_cluster_id(random_uuid: UUID) -> str:
    """As Kafka writes ids: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(random_uuid.bytes).decode().rstrip("=")
