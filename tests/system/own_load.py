"""The load by einmal's own client: see ``load.py``."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from einmal.client import AbortableError, Consumer, KafkaError, Producer, RecordMetadata, UnknownOutcome
from einmal.client.errors import RetriableError
from einmal.types import TopicPartition
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

_BACKLOG_MAX: Final = 1_000
_AGAIN_SECONDS: Final = 0.05


def _producer(bootstrap: str, transactional_id: str | None = None) -> Producer:
    # It gives up so late that whatever it took is written in the end.
    producer = Producer(
        client_security(), bootstrap_servers=bootstrap, transactional_id=transactional_id, delivery_timeout_ms=600_000
    )
    if transactional_id is not None:
        _insist(producer.init_transactions)
    return producer


def _insist(call: Callable[[], Any], report: Report | None = None) -> Any:
    """Call again for as long as the client's error is retriable."""
    while True:
        try:
            return call()
        except (RetriableError, UnknownOutcome) as error:
            if report is not None:
                report.tell(error=str(error))
            # Where no broker can be reached it fails at once.
            time.sleep(_AGAIN_SECONDS)


# --- the roles -------------------------------------------------------------------------------------------------


def idempotent(bootstrap: str, report: Report, seed: int) -> None:
    producer = _producer(bootstrap)
    numbers = [0] * PARTITIONS
    waiting = 0

    def acknowledged(partition: int, value: str, future: Future[RecordMetadata]) -> None:
        nonlocal waiting
        waiting -= 1
        if error := future.exception():
            report.tell(failed=str(error), value=value)
        else:
            report.tell(partition=partition, offset=future.result().offset, value=value)

    while not stopped.wait(PACE_S):
        if waiting > _BACKLOG_MAX:
            continue
        for partition in range(PARTITIONS):
            value = f"{seed}:{partition}:{numbers[partition]}"
            waiting += 1
            producer.send(PLAIN, value.encode(), partition=partition).add_done_callback(
                partial(acknowledged, partition, value)
            )
            numbers[partition] += 1
    producer.close()
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
                producer.send(TRANSACTIONS, value.encode(), partition=partition)

        outcome = _transaction(producer, write, commits=chance.random() >= ABORTED_SHARE)
        report.tell(transaction=number, **outcome.told())
        if outcome.name == "unknown":
            producer.close(flush=False)
            producer = _producer(bootstrap, name)
    producer.close()


def _transaction(producer: Producer, write: Callable[[Producer], None], *, commits: bool) -> Outcome:
    """One transaction. "unknown": this producer can do nothing any more; its successor settles what is open."""
    try:
        producer.begin_transaction()
        write(producer)
        if commits:
            producer.commit_transaction()
            return Outcome("committed")
        # So that there is something to abort in the log.
        producer.flush()
        producer.abort_transaction()
        return Outcome("aborted")
    except AbortableError as error:
        why = str(error)
    except KafkaError as error:
        return Outcome("unknown", str(error))
    try:
        producer.abort_transaction()
    except KafkaError as error:
        return Outcome("unknown", str(error))
    return Outcome("aborted", why)


def copier(bootstrap: str, report: Report, seed: int) -> None:
    name = f"copier-{seed}"
    producer = _producer(bootstrap, name)
    consumer = Consumer(
        client_security(),
        bootstrap_servers=bootstrap,
        group_id=name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=30_000,
        heartbeat_interval_ms=500,
    )
    consumer.subscribe([PLAIN])
    number = 0
    while True:
        records = _insist(lambda: consumer.poll(100, 200), report)
        if not records:
            if stopped.is_set() and _has_reached_the_end(consumer):
                break
            continue
        number += 1

        def write(producer: Producer, records: list[Any] = records) -> None:
            for record in records:
                producer.send(COPIES[seed], record.value, partition=record.partition)
            after = {TopicPartition(PLAIN, record.partition): record.offset + 1 for record in records}
            producer.send_offsets_to_transaction(after, consumer.group_metadata())

        outcome = _transaction(producer, write, commits=True)
        report.tell(transaction=number, records=len(records), **outcome.told())
        if outcome.name == "unknown":
            producer.close(flush=False)
            producer = _producer(bootstrap, name)
        if outcome.name != "committed":
            _rewind(consumer)
    consumer.close()
    producer.close()


def _rewind(consumer: Consumer) -> None:
    """Go back to where the last committed transaction ended."""
    for place, committed in _insist(lambda: consumer.committed(*consumer.assignment())).items():
        if place in consumer.assignment():
            consumer.seek(place, 0 if committed is None else committed)


def _has_reached_the_end(consumer: Consumer) -> bool:
    places = [TopicPartition(PLAIN, index) for index in range(PARTITIONS)]
    if consumer.assignment() != places:
        return False
    ends = _insist(lambda: consumer.end_offsets(*places))
    return all(_insist(partial(consumer.position, place)) >= ends[place] for place in places)


def reader(bootstrap: str, report: Report, seed: int) -> None:
    consumer = Consumer(client_security(), bootstrap_servers=bootstrap)
    places = [TopicPartition(topic, index) for topic in TOPICS for index in range(PARTITIONS)]
    consumer.assign(places)
    consumer.seek_to_beginning(*places)
    while not stopped.is_set():
        for record in _insist(lambda: consumer.poll(100, 500), report):
            report.tell(at=[record.topic, record.partition, record.offset], value=record.value.decode())
    consumer.close()


ROLES: Final = {"idempotent": idempotent, "transactional": transactional, "copier": copier, "reader": reader}
