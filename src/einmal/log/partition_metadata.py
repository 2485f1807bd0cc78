"""``partition.metadata``: the id of the topic that a partition's folder belongs to (KIP-516).

A third line has the CRC-32C of the two that Apache Kafka writes and reads.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final
from uuid import UUID

from google_crc32c import value as crc32c

FILE_NAME: Final = "partition.metadata"
_KEYS: Final = ("version", "topic_id", "crc32c")


def encode(topic_id: UUID) -> bytes:
    return f"{_text(topic_id)}\ncrc32c: {_checksum(topic_id)}".encode()


def _text(topic_id: UUID) -> str:
    return f"version: 0\ntopic_id: {urlsafe_b64encode(topic_id.bytes).decode().rstrip('=')}"


def decode(data: bytes) -> UUID:
    """Raises ValueError."""
    fields = dict(line.split(": ", 1) for line in data.decode().splitlines() if line)
    if fields.get("version") != "0" or "topic_id" not in fields or not set(fields) <= set(_KEYS):
        raise ValueError("not a partition.metadata file")
    topic_id = UUID(bytes=urlsafe_b64decode(fields["topic_id"] + "=="))
    computed = _checksum(topic_id)
    expected = fields.get("crc32c", computed)
    if expected != computed:
        raise ValueError(f"expected CRC-32C {expected}, found {computed}")
    return topic_id


def _checksum(topic_id: UUID) -> str:
    return f"{crc32c(_text(topic_id).encode()):08x}"
