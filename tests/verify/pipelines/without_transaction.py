"""The mistake: output and positions are not one transaction, so that a restart writes output again."""

from __future__ import annotations

import time

from tests.verify.pipelines import OUTPUT, doubled, opened_consumer, opened_producer, polled, positions

consumer = opened_consumer()
producer = opened_producer()
while True:
    messages = polled(consumer)
    if not messages:
        continue
    for each in messages:
        time.sleep(0.01)  # as a transformation that takes a while
        producer.produce(OUTPUT, doubled(each.value()), each.key())
        producer.flush()
    consumer.commit(offsets=positions(messages), asynchronous=False)
