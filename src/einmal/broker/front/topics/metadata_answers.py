"""Encoded answers to Metadata, kept until the image changes: clients ask for the same again and again."""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from einmal.broker.cluster_metadata import ClusterMetadata

_BYTES_MAX: Final = 16 * 1024 * 1024
"""Maximum size of all answers: enough for the topics that the clients of a broker ask for together."""
_OVERHEAD: Final = 1024
_NAMES_MAX: Final = 100
"""Maximum number of names in a question whose answer is kept."""
_VISIBLE_BYTES: Final = 150
"""That a visible topic takes in a key; its name is the image's."""


class MetadataKey(NamedTuple):
    """All that an answer to Metadata depends on beside the image."""

    version: int
    asked: tuple[tuple[str | None, UUID], ...] | None
    visible: frozenset[tuple[str, int]] | None
    """Names, and bits of operations, of the topics that the sender may see; None: all."""
    with_topic_operations: bool
    cluster_operations: int
    controller_id: int
    listener: str


class EncodedAnswers:
    """Encoded Metadata answers of the image as it is now, by what was asked."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata
        self._answers: dict[MetadataKey, bytes] = {}
        self._bytes = 0
        self._version = -1

    def get(self, key: MetadataKey) -> bytes | None:
        if self._version != self._metadata.image.version:
            self._clear()
        return self._answers.get(key)

    def put(self, key: MetadataKey, answer: bytes) -> None:
        size = len(answer) + _OVERHEAD + _VISIBLE_BYTES * len(key.visible or ())
        if self._version != self._metadata.image.version or self._bytes + size > _BYTES_MAX:
            self._clear()
        if size <= _BYTES_MAX and (key.asked is None or len(key.asked) <= _NAMES_MAX):
            self._answers[key] = answer
            self._bytes += size

    def _clear(self) -> None:
        self._answers, self._bytes = {}, 0
        self._version = self._metadata.image.version
