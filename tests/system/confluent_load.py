"""The load by confluent-kafka: see ``load.py``."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.system.load import (
    ABORTED_SHARE,
    COPIES,
    PACE_S,
    PARTITIONS,
    PLAIN,
    TOPICS,
    TRANSACTIONS,
    Outcome,
    Report,
    stopped,
)
from tests.system.secured import client_security

_CALL_S: Final = 30.0
_OFFSETS_S: Final = 20.0
"""Then a new producer is made: librdkafka waits for ever for a group's former coordinator once that has left the
cluster, Apache's cluster as well as ours, whatever its timeout is (its issues 5511 and 5456)."""


class _Hangs(Exception):
    """A call of librdkafka does not return."""


def _settings(bootstrap: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 200,
        "log_level": 0,
        "socket.timeout.ms": 30_000,
        # It keeps only the brokers that its last metadata named. Where that was one of three, and it dies, only the
        # bootstrap servers help; where there is but one, it forgets that one when it begins again.
        "metadata.recovery.strategy": "rebootstrap" if "," in bootstrap else "none",
        **client_security(),
    }


def _producer(bootstrap: str, transactional_id: str | None = None) -> Producer:
    settings = _settings(bootstrap) | {"linger.ms": 5, "retry.backoff.ms": 20, "retry.backoff.max.ms": 100}
    if transactional_id is None:
        # It never gives up, so whatever it took is written in the end.
        return Producer(settings | {"enable.idempotence": True, "message.timeout.ms": 0})
    producer = Producer(settings | {"transactional.id": transactional_id, "transaction.timeout.ms": 60_000})
    _insist(lambda: producer.init_transactions(_CALL_S))
    return producer


def _consumer(bootstrap: str, group: str) -> Consumer:
    settings = {
        "group.id": group,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "session.timeout.ms": 30_000,
        "heartbeat.interval.ms": 500,
    }
    return Consumer(_settings(bootstrap) | settings)


def _insist(call: Callable[[], Any]) -> None:
    """Call again for as long as this may help: as the client advises, and after an error of a former leader."""
    while True:
        try:
            call()
            return
        except KafkaException as error:
            if not error.args[0].retriable() and error.args[0].code() != KafkaError.NOT_COORDINATOR:
                raise


# --- the roles -------------------------------------------------------------------------------------------------


def idempotent(bootstrap: str, report: Report, seed: int) -> None:
    producer = _producer(bootstrap)
    numbers = [0] * PARTITIONS

    def acknowledged(error: KafkaError | None, message: Any) -> None:
        if error is not None:
            report.tell(failed=str(error), value=message.value().decode())
            return
        report.tell(partition=message.partition(), offset=message.offset(), value=message.value().decode())

    def write() -> None:
        for partition in range(PARTITIONS):
            value = f"{seed}:{partition}:{numbers[partition]}"
            producer.produce(PLAIN, value.encode(), partition=partition, on_delivery=acknowledged)
            numbers[partition] += 1

    while not stopped.wait(PACE_S):
        if len(producer) < 1_000:
            write()
        producer.poll(0)
    while producer.flush(1.0):
        pass
    report.tell(wrote=numbers)


def transactional(bootstrap: str, report: Report, seed: int) -> None:
    chance = random.Random(seed)
    name = f"writer-{seed}"
    producer = _producer(bootstrap, name)
    number = 0
    while not stopped.wait(PACE_S):
        number += 1
        partitions = [chance.randrange(PARTITIONS) for _ in range(chance.randint(1, 12))]
        values = [f"{seed}:{number}:{index}" for index in range(len(partitions))]
        report.tell(transaction=number, values=values)

        def write(producer: Producer, partitions: list[int] = partitions, values: list[str] = values) -> None:
            for partition, value in zip(partitions, values, strict=True):
                producer.produce(TRANSACTIONS, value.encode(), partition=partition)

        outcome = _transaction(producer, write, commits=chance.random() >= ABORTED_SHARE)
        report.tell(transaction=number, **outcome.told())
        if outcome.error is not None:
            producer = _producer(bootstrap, name)


def _transaction(producer: Producer, write: Callable[[Producer], None], *, commits: bool) -> Outcome:
    """One transaction. "unknown": this producer can do nothing any more; its successor settles what is open.

    After any error the caller makes a new producer, which gets a new epoch. An abort drops the batches that librdkafka
    is about to send again, and gives their sequence numbers to the next transaction (2.16,
    ``rd_kafka_toppar_purge_queues``). If a leader had appended one before it died, the first batch of that transaction
    is answered as its duplicate, by Apache Kafka as well, and is in no log.
    """
    try:
        producer.begin_transaction()
        write(producer)
        if commits:
            _insist(lambda: producer.commit_transaction(_CALL_S))
            return Outcome("committed")
        # So that there is something to abort in the log.
        producer.flush(_CALL_S)
        _insist(lambda: producer.abort_transaction(_CALL_S))
        return Outcome("aborted")
    except _Hangs:
        return Outcome("unknown", "TxnOffsetCommit hangs")
    except KafkaException as error:
        why = str(error)
        if not error.args[0].txn_requires_abort():
            return Outcome("unknown", why)
    try:
        _insist(lambda: producer.abort_transaction(_CALL_S))
    except KafkaException:
        return Outcome("unknown", why)
    return Outcome("aborted", why)


def _send_offsets(producer: Producer, positions: list[TopicPartition], metadata: object) -> None:
    """Raises KafkaException, or _Hangs: what hangs is left alone."""
    failures: list[KafkaException] = []

    def send() -> None:
        try:
            producer.send_offsets_to_transaction(positions, metadata, _OFFSETS_S)
        except KafkaException as error:
            failures.append(error)

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    sending.join(_OFFSETS_S + 1)
    if sending.is_alive():
        raise _Hangs
    if failures:
        raise failures[0]


def copier(bootstrap: str, report: Report, seed: int) -> None:
    name = f"copier-{seed}"
    producer = _producer(bootstrap, name)
    consumer = _consumer(bootstrap, name)
    consumer.subscribe([PLAIN])
    number = 0
    ended: set[int] = set()
    while not (stopped.is_set() and len(ended) == PARTITIONS):
        records = []
        for message in consumer.consume(200, 0.1):
            error, partition = message.error(), message.partition()
            if error is None:
                assert partition is not None
                records.append(message)
                ended.discard(partition)
            elif error.code() == KafkaError._PARTITION_EOF:
                assert partition is not None
                ended.add(partition)
            else:
                report.tell(error=str(error))
        if not records:
            continue
        number += 1

        def write(producer: Producer, records: list[Any] = records) -> None:
            for message in records:
                producer.produce(COPIES[seed], message.value(), partition=message.partition())
            after = {message.partition(): message.offset() + 1 for message in records}
            positions = [TopicPartition(PLAIN, partition, offset) for partition, offset in after.items()]
            metadata = consumer.consumer_group_metadata()
            _send_offsets(producer, positions, metadata)

        outcome = _transaction(producer, write, commits=True)
        report.tell(transaction=number, records=len(records), **outcome.told())
        if outcome.error is not None:
            producer = _producer(bootstrap, name)
        if outcome.name != "committed":
            ended.clear()
            _rewind(consumer)
    consumer.close()


def _rewind(consumer: Consumer) -> None:
    """Go back to where the last committed transaction ended."""
    assignment = consumer.assignment()
    found: list[TopicPartition] = []
    _insist(lambda: found.extend(consumer.committed(assignment, _CALL_S)))
    for position in found:
        if position.offset < 0:
            position.offset = 0
        consumer.seek(position)


def reader(bootstrap: str, report: Report, seed: int) -> None:
    consumer = _consumer(bootstrap, f"reader-{seed}")
    consumer.assign([TopicPartition(topic, index, 0) for topic in TOPICS for index in range(PARTITIONS)])
    while not stopped.is_set():
        for message in consumer.consume(500, 0.1):
            error, value = message.error(), message.value()
            if error is None:
                assert value is not None
                report.tell(at=[message.topic(), message.partition(), message.offset()], value=value.decode())
            elif error.code() != KafkaError._PARTITION_EOF:
                report.tell(error=str(error))
    consumer.close()


ROLES: Final = {"idempotent": idempotent, "transactional": transactional, "copier": copier, "reader": reader}
