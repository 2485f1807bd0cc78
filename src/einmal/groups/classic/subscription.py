"""A joining consumer's subscription: the topics it wants (Kafka's ``ConsumerProtocolSubscription``).

The coordinator reads it only to find out whether a group still subscribes to a topic. All versions begin alike:
version, topics.

The bytes are another client's. kio's reader would trust the lengths in them (``wire/request_reader.py``), so it does
not read them.
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
