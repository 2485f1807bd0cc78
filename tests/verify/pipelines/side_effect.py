"""The mistake: the transformation writes by itself, outside of the transaction that has the positions."""

from __future__ import annotations

import time

from tests.verify.pipelines import INPUT, OUTPUT, doubled, opened_consumer, opened_producer, polled, positions

consumer = opened_consumer()
notifier = opened_producer()
producer = opened_producer(transactional_id=INPUT, transaction_timeout_ms=6000)
producer.init_transactions(30)
while True:
    messages = polled(consumer)
    if not messages:
        continue
    producer.begin_transaction()
    for each in messages:
        time.sleep(0.01)  # as a transformation that takes a while
        notifier.produce(OUTPUT, doubled(each.value()), each.key())
        notifier.flush()
    producer.send_offsets_to_transaction(positions(messages), consumer.consumer_group_metadata())
    producer.commit_transaction(10)
