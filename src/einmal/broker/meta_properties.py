"""``meta.properties``: whose data directory this is, and which one, in Apache Kafka's format.

A comment in the last line has the CRC-32C of what is before it; Apache Kafka, whose files have none, skips it. Pure.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from typing import Final, NamedTuple
from uuid import UUID

from google_crc32c import value as crc32c

from einmal.broker.config import parse_properties

FILE_NAME: Final = "meta.properties"
_CHECKSUM: Final = "# crc32c "


class MetaProperties(NamedTuple):
    """``directory_id``: a directory that was wiped has another one (KIP-858)."""

    cluster_id: str
    node_id: int
    directory_id: UUID


def encode(properties: MetaProperties) -> bytes:
    text = (
        f"version=1\ncluster.id={properties.cluster_id}\nnode.id={properties.node_id}\n"
        f"directory.id={properties.directory_id}\n"
    )
    return f"{text}{_CHECKSUM}{crc32c(text.encode()):08x}\n".encode()


def decode(data: bytes) -> MetaProperties:
    """Raises ValueError for what is not such a file, or is damaged."""
    text = data.decode()
    body, has_checksum, checksum = text.partition(_CHECKSUM)
    computed = f"{crc32c(body.encode()):08x}"
    if has_checksum and checksum.strip() != computed:
        raise ValueError(f"expected CRC-32C {checksum.strip()}, found {computed}")
    known = parse_properties(text)
    for key in ("version", "cluster.id", "node.id", "directory.id"):
        if not known.get(key):
            raise ValueError(f"{key} is missing")
    if known["version"] != "1":
        raise ValueError(f"expected version 1, found {known['version']}")
    return MetaProperties(known["cluster.id"], int(known["node.id"]), _directory_id(known["directory.id"]))


def _directory_id(text: str) -> UUID:
    # Apache Kafka writes it as it writes all its ids.
    return UUID(text) if len(text) == 36 else UUID(bytes=urlsafe_b64decode(text + "=="))
