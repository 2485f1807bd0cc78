"""Output and positions are one transaction."""

from __future__ import annotations

from confluent_kafka import KafkaException

from tests.verify.pipelines import INPUT, OUTPUT, doubled, opened_consumer, opened_producer, polled, positions

consumer = opened_consumer()
producer = opened_producer(transactional_id=INPUT, transaction_timeout_ms=6000)
producer.init_transactions(30)
while True:
    messages = polled(consumer)
    if not messages:
        continue
    producer.begin_transaction()
    try:
        for each in messages:
            producer.produce(OUTPUT, doubled(each.value()), each.key())
        producer.send_offsets_to_transaction(positions(messages), consumer.consumer_group_metadata())
        producer.commit_transaction(10)
    except KafkaException as error:
        if not error.args[0].txn_requires_abort():
            raise
        producer.abort_transaction(10)
        for position in consumer.committed(consumer.assignment(), 10):
            position.offset = max(0, position.offset)
            consumer.seek(position)
