"""confluent-kafka's admin client, asked until the brokers know what it asks about.

A topic that was created a moment ago is unknown to a broker until it has read so far in the metadata log. Producers and
consumers repeat a request that is answered so; this admin client leaves that to the program.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

PATIENCE_S: Final = 120.0
_PAUSE_S: Final = 0.02
_NOT_YET: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
)

T = TypeVar("T")


def answered(ask: Callable[[], dict[Any, Future[T]]]) -> T:
    """The answer about the one resource that ``ask`` asks about. Raises KafkaException."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        (future,) = ask().values()
        try:
            return future.result(PATIENCE_S)
        except KafkaException as error:
            if error.args[0].code() not in _NOT_YET or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_S)
