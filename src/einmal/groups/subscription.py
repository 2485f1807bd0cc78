"""What a consumer says when it joins: the topics it wants (Kafka's ``ConsumerProtocolSubscription``).

The coordinator does not read metadata to run a group; only "is this topic still wanted?" needs it. All versions begin
alike: version, topics.
"""

from __future__ import annotations

from typing import Final

from einmal.groups.fields import FieldReader
from einmal.wire.errors import WireError

CONSUMER_PROTOCOL: Final = "consumer"


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics of one member; None when its metadata cannot be read."""
    reader = FieldReader(metadata)
    try:
        reader.int16()
        return frozenset(reader.string() for _ in range(reader.array_length()))
    except WireError:
        return None
