"""``partition.metadata``: the id of the topic that a partition's folder belongs to (KIP-516)."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final
from uuid import UUID

FILE_NAME: Final = "partition.metadata"


def encode(topic_id: UUID) -> bytes:
    return f"version: 0\ntopic_id: {urlsafe_b64encode(topic_id.bytes).decode().rstrip('=')}".encode()


def decode(data: bytes) -> UUID:
    """Raises ValueError."""
    fields = dict(line.split(": ", 1) for line in data.decode().splitlines() if line)
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise ValueError("not a partition.metadata file")
    return UUID(bytes=urlsafe_b64decode(fields["topic_id"] + "=="))
