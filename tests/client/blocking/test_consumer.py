"""What the blocking consumer commits, against our broker."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from einmal.client import Consumer, Producer
from einmal.client.blocking.consumer import _in_another_thread
from einmal.client.errors import ClientClosed, InvalidState
from einmal.types import TopicPartition
from tests.client.conftest import NameFactory
from tests.interop.conftest import NodeFactory
from tests.suite.patience import patient

pytestmark = pytest.mark.system


@pytest.fixture
def bootstrap(node_of: NodeFactory) -> str:
    return node_of("einmal", 2).bootstrap


def test_a_loop_over_records_that_is_left_early_commits_returned_records(bootstrap: str, name: NameFactory) -> None:
    topic, group = name("left"), name("group")
    with Producer(bootstrap_servers=bootstrap) as producer:
        for value in (b"a", b"b", b"c"):
            producer.send(topic, value, partition=0)
    with Consumer(bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        for record in consumer:
            assert record.value == b"a"
            break
    with Consumer(bootstrap_servers=bootstrap, group_id=group) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert [next(iter(consumer)).value, next(iter(consumer)).value] == [b"b", b"c"]


class Expired(Exception):
    """As signal handlers raise it, such as those of task queues with a time limit."""


def test_a_signal_handler_may_close_the_consumer_and_end_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = Consumer(bootstrap_servers="127.0.0.1:1")

    def interrupted(_start: Any) -> None:
        monkeypatch.undo()
        consumer.close()
        raise SystemExit(0)

    monkeypatch.setattr(consumer._thread, "run", interrupted)
    with pytest.raises(SystemExit):
        consumer.poll(20_000)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_does_not_read_with_its_parents_consumer() -> None:
    with Consumer(bootstrap_servers="127.0.0.1:1", group_id="g", enable_auto_commit=False) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        child = os.fork()
        if child == 0:
            signal.alarm(int(patient(20)))
            try:
                for use in (lambda: consumer.poll(0), consumer.commit):
                    with pytest.raises(InvalidState, match="Make a Consumer after the fork"):
                        use()
                consumer.close()
                os._exit(0)
            finally:
                os._exit(2)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert consumer.assignment() == [TopicPartition("t", 0)]


def test_a_rebalance_callback_that_raises_stop_iteration_ends() -> None:
    callback = _in_another_thread(lambda _: next(iter(())))
    assert callback is not None
    ran = callback([])
    assert ran is not None
    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(asyncio.wait_for(ran, patient(20)))


@pytest.mark.parametrize(
    ("interruption", "closes", "expected"),
    [
        (KeyboardInterrupt, False, KeyboardInterrupt),
        (Expired, False, Expired),
        (SystemExit, True, SystemExit),
        (None, True, ClientClosed),
    ],
)
def test_records_of_a_poll_that_is_interrupted_are_not_committed(
    interruption: type[BaseException] | None,
    closes: bool,
    expected: type[BaseException],
    bootstrap: str,
    name: NameFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, group = name("interrupted"), name("group")
    at = TopicPartition(topic, 0)
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send(topic, b"a", partition=0)
    with Consumer(bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest") as consumer:
        consumer.assign([at])
        assert consumer.position(at) == 0
        run = consumer._thread.run

        def interrupted(start: Any) -> Any:
            monkeypatch.undo()
            records = run(start)
            assert records
            if closes:
                consumer.close()
            if interruption is not None:
                raise interruption
            return records

        monkeypatch.setattr(consumer._thread, "run", interrupted)
        with pytest.raises(expected):
            consumer.poll(20_000)
    with Consumer(bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="none") as consumer:
        consumer.assign([at])
        assert [record.value for record in consumer.poll(20_000)] == [b"a"]
