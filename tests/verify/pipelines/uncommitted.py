"""The mistake: it reads what is not committed, and may be aborted later."""

from __future__ import annotations

from tests.verify.pipelines import INPUT, OUTPUT, doubled, opened_consumer, opened_producer, polled, positions

consumer = opened_consumer("read_uncommitted")
producer = opened_producer(transactional_id=INPUT, transaction_timeout_ms=6000)
producer.init_transactions(30)
while True:
    messages = polled(consumer)
    if not messages:
        continue
    producer.begin_transaction()
    for each in messages:
        producer.produce(OUTPUT, doubled(each.value()), each.key())
    producer.send_offsets_to_transaction(positions(messages), consumer.consumer_group_metadata())
    producer.commit_transaction(10)
