"""Use of confluent-kafka's producer, shared by the measurements."""

from __future__ import annotations

from typing import Any


def hand_over(producer: Any, topic: str, value: bytes, **options: Any) -> None:
    """Queue one record, once the producer's queue has space for it. ``options``: of ``Producer.produce``."""
    while True:
        try:
            producer.produce(topic, value, **options)
            return
        except BufferError:
            producer.poll(0.01)
