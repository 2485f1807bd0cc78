"""What the blocking producer's queue may not do to a transaction, against our broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

from einmal.client import Consumer, Producer
from einmal.client.aio import producer as aio
from einmal.client.errors import AbortableError, ClientClosed, KafkaError, UnknownOutcome
from einmal.client.records import RecordMetadata
from einmal.types import TopicPartition
from tests.client.conftest import NameFactory
from tests.interop.conftest import NodeFactory
from tests.suite.patience import patient

pytestmark = pytest.mark.system


@contextmanager
def locked_elsewhere(producer: Producer) -> Iterator[None]:
    """Another thread holds the locks, as it may in the moment of a fork."""
    are_held, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        with producer._lock, producer._thread._lock:
            are_held.set()
            may_go.wait()

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    are_held.wait()
    yield
    may_go.set()
    holder.join()


@pytest.fixture
def bootstrap(node_of: NodeFactory) -> str:
    return node_of("einmal", 2).bootstrap


def test_a_record_that_is_larger_than_the_room_left_waits_and_is_not_dropped(bootstrap: str, name: NameFactory) -> None:
    topic = name("full-buffer")
    settings: dict[str, Any] = {"linger_ms": 300, "batch_size": 900_000, "buffer_memory": 1_000_000}
    with Producer(bootstrap_servers=bootstrap, transactional_id=name("id"), **settings) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"x" * 450_000)
        # More than half of the memory is free, but this record takes more than is left.
        future = producer.send(topic, b"y" * 600_000)
        producer.commit_transaction()
        assert future.result(timeout=0).topic == topic


def test_a_transaction_without_one_of_its_records_is_not_committed(bootstrap: str, name: NameFactory) -> None:
    topic = name("refused")
    with Producer(bootstrap_servers=bootstrap, transactional_id=name("id"), buffer_memory=1_000_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"x")
        # As a second thread's records can: accepted while there was buffer space, handed over when there is none.
        size = producer.settings.buffer_memory + 1
        ticket: Future[RecordMetadata] = Future()
        producer._queue.append((ticket, topic, b"y" * size, None, (), None, None, 0))
        producer.send(topic, b"z")
        with pytest.raises(AbortableError):
            producer.commit_transaction()
        producer.abort_transaction()
        assert ticket.exception(timeout=0) is not None


def test_a_commit_that_closing_cuts_off_is_of_unknown_outcome(own_node_of: NodeFactory, name: NameFactory) -> None:
    node = own_node_of("einmal", 2)
    producer = Producer(bootstrap_servers=node.bootstrap, transactional_id=name("id"))
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(name("topic"), b"v")
    producer.flush()
    raised: list[BaseException] = []
    has_asked = threading.Event()

    def commit() -> None:
        try:
            producer.commit_transaction()
        except KafkaError as error:
            raised.append(error)

    def look(twin: aio.Producer) -> None:
        if any(connection.in_flight for connection in twin._cluster._connections._open.values()):
            has_asked.set()

    os.kill(node.pid, signal.SIGSTOP)
    try:
        committing = threading.Thread(target=commit, daemon=True)
        committing.start()
        while not has_asked.is_set():
            producer._thread.call(look)
        producer.close()
        committing.join(patient(20))
    finally:
        os.kill(node.pid, signal.SIGCONT)
    assert isinstance(raised[0], UnknownOutcome)


def test_records_that_are_sent_while_the_producer_is_closed_have_an_outcome(bootstrap: str, name: NameFactory) -> None:
    topic = name("closing")
    for _ in range(5):
        producer = Producer(bootstrap_servers=bootstrap)
        producer.send(topic, b"first").result(timeout=patient(20))
        futures: list[Future[RecordMetadata]] = []
        are_sending = threading.Semaphore(0)

        def send(
            producer: Producer = producer,
            futures: list[Future[RecordMetadata]] = futures,
            are_sending: threading.Semaphore = are_sending,
        ) -> None:
            with pytest.raises(ClientClosed):
                while True:
                    futures.append(producer.send(topic, bytes(2_000)))
                    are_sending.release()

        senders = [threading.Thread(target=send, daemon=True) for _ in range(2)]
        for sender in senders:
            sender.start()
        are_sending.acquire()
        producer.close(flush=False)
        for sender in senders:
            sender.join(patient(20))
        assert all(future.done() for future in futures)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_signal_handler_may_close_the_producer_in_the_midst_of_sending(moment: str) -> None:
    producer = Producer(bootstrap_servers="127.0.0.1:1", bootstrap_timeout_ms=600_000)
    first = producer.send("t", b"v")

    class Interrupted(deque[Any]):
        def append(self, record: Any) -> None:
            if moment == "before":
                signal.raise_signal(signal.SIGUSR1)
            super().append(record)
            if moment == "after":
                signal.raise_signal(signal.SIGUSR1)

    previous = signal.signal(signal.SIGUSR1, lambda *_: producer.close(flush=False))
    try:
        producer._queue = Interrupted(producer._queue)
        second = producer.send("t", b"v")
    finally:
        signal.signal(signal.SIGUSR1, previous)
    for future in (first, second):
        assert isinstance(future.exception(timeout=0), ClientClosed)
    with pytest.raises(ClientClosed):
        producer.send("t", b"v")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_that_only_closes_its_producer_ends_and_leaves_the_records_to_the_parent() -> None:
    producer = Producer(bootstrap_servers="127.0.0.1:1", bootstrap_timeout_ms=600_000)
    may_go_on = threading.Event()
    producer.send("t", b"v")
    producer._thread.wake(may_go_on.wait)
    queued = producer.send("t", b"v")
    with locked_elsewhere(producer):
        child = os.fork()
        if child == 0:
            signal.alarm(int(patient(20)))
            try:
                producer.close()
                os._exit(1 if queued.done() else 0)
            finally:
                os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    may_go_on.set()
    producer.close(flush=False)
    assert isinstance(queued.exception(timeout=0), ClientClosed)


@pytest.mark.parametrize("ending", ["", "raise SystemExit", "raise RuntimeError"])
def test_a_program_that_ends_without_closing_its_producer_logs_how_many_records_are_lost(ending: str) -> None:
    program = f"""
from einmal.client import Producer
producer = Producer(bootstrap_servers="127.0.0.1:1", bootstrap_timeout_ms=600_000)
for _ in range(3):
    producer.send("t", b"v")
{ending}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=patient(60))
    assert "Records without an acknowledgement: 3 of topic t. The first error: ClientClosed" in done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("sent_by_child", [(b"child",), ()])
def test_after_a_fork_parent_and_child_send_their_own_records_once(
    sent_by_child: tuple[bytes, ...], bootstrap: str, name: NameFactory
) -> None:
    at = TopicPartition(name("forked"), 0)
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send(at.topic, b"first", partition=0).result()
        may_go_on = threading.Event()
        producer._thread.wake(may_go_on.wait)
        queued = producer.send(at.topic, b"parent", partition=0)
        with locked_elsewhere(producer):
            child = os.fork()
            if child == 0:
                signal.alarm(int(patient(20)))
                try:
                    futures = [producer.send(at.topic, value, partition=0) for value in sent_by_child]
                    producer.flush()
                    os._exit(0 if all(future.done() and not future.exception() for future in futures) else 1)
                finally:
                    os._exit(2)
        _, status = os.waitpid(child, 0)
        may_go_on.set()
        producer.flush()
        assert os.waitstatus_to_exitcode(status) == 0
        assert queued.done()
    expected = Counter([b"first", b"parent", *sent_by_child])
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([at])
        values: Counter[bytes | None] = Counter()
        (end,) = consumer.end_offsets(at).values()
        while consumer.position(at) < end:
            values.update(record.value for record in consumer.poll(1_000))
    assert values == expected
