import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from einmal.pipeline.claims import Denied, Output
from einmal.spark.output import claim_service
from einmal.spark.output.claim_service import (
    ClaimClient,
    ClaimRefused,
    ClaimService,
    OpenTransaction,
    TopicTable,
)
from einmal.types import TopicPartition
from tests.security.certificates import shared_identity


class Driver:
    """A service with one open transaction over topics ``a`` (2 partitions) and ``b`` (3)."""

    def __init__(self) -> None:
        self.service = ClaimService(shared_identity(), "127.0.0.1", "127.0.0.1")
        self.added: list[TopicPartition] = []
        self.looked_up: list[str] = []
        self.reported: list[Output] = []
        self.transaction = OpenTransaction(
            TopicTable(self._count), add=self.added.append, reported=self.reported.append
        )
        self.service.begin(self.transaction)

    def _count(self, topic: str) -> int:
        self.looked_up.append(topic)
        return {"a": 2, "b": 3}[topic]

    def task(self, attempt_id: int) -> ClaimClient:
        return ClaimClient(self.service.address, self.transaction.token, attempt_id)


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.service.close()


def test_a_partition_count_is_fixed_for_the_batch_and_every_partition_has_a_number(driver: Driver) -> None:
    with driver.task(1) as first, driver.task(2) as second:
        assert first.topic("a") == (0, 2)
        assert second.topic("b") == (2, 3)
        assert second.topic("a") == (0, 2)
        assert first.claim(4) == TopicPartition("b", 2)
    assert driver.looked_up == ["a", "b"]


def test_a_partition_is_added_to_the_transaction_before_its_claim_is_granted(driver: Driver) -> None:
    with driver.task(1) as task:
        task.topic("a")
        assert task.claim(1) == TopicPartition("a", 1)
        assert driver.added == [TopicPartition("a", 1)]
        task.claim(1)
    assert driver.added == [TopicPartition("a", 1)]


def waiting(driver: Driver, attempt_id: int) -> Future[TopicPartition]:
    """The claim of a second attempt, which asks from a thread of its own."""
    claimed: Future[TopicPartition] = Future()

    def ask() -> None:
        try:
            with driver.task(attempt_id) as task:
                claimed.set_result(task.claim(0))
        except ClaimRefused as refused:
            claimed.set_exception(refused)

    threading.Thread(target=ask, daemon=True).start()
    return claimed


def test_a_second_attempt_waits_while_the_first_is_at_work_and_gets_no_claim_when_it_has_died(driver: Driver) -> None:
    with driver.task(1) as first:
        first.topic("a")
        first.claim(0)
        second = waiting(driver, 2)
        with pytest.raises(TimeoutError):
            second.result(0.2)
    with pytest.raises(ClaimRefused, match="task attempt 1"):
        second.result(5)


def test_a_second_attempt_that_waits_is_turned_away_when_the_transaction_has_ended(driver: Driver) -> None:
    with driver.task(1) as first:
        first.topic("a")
        first.claim(0)
        second = waiting(driver, 2)
        with pytest.raises(TimeoutError):
            second.result(0.1)
        driver.service.end()
        with pytest.raises(ClaimRefused, match="has ended"):
            second.result(5)


def test_a_second_attempt_gives_spark_the_time_to_count_the_first_ones_success(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_service, "_COUNTED_S", 0.5)
    monkeypatch.setattr(claim_service, "_WAIT_STEP_S", 0.05)
    with driver.task(1) as first:
        first.topic("a")
        first.claim(0)
        first.report(Output("a", 0, 5, 9, 5, 77))
    second = waiting(driver, 2)
    with pytest.raises(TimeoutError):
        second.result(0.2)
    with pytest.raises(ClaimRefused, match="task attempt 1"):
        second.result(5)


def test_a_second_attempt_waits_no_longer_than_spark_needs_to_count_a_success(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_service, "_COUNTED_S", 0.2)
    with driver.task(1) as first:
        first.topic("a")
        first.claim(0)
        first.report(Output("a", 0, 5, 9, 5, 77))
    with pytest.raises(ClaimRefused, match="task attempt 1"):
        waiting(driver, 2).result(claim_service._WAIT_STEP_S / 2)


def test_no_call_waits_for_ever_for_a_hanging_attempt(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_service, "_WAIT_S", 0.2)
    monkeypatch.setattr(claim_service, "_WAIT_STEP_S", 0.05)
    with driver.task(1) as hangs:
        hangs.topic("a")
        hangs.claim(0)
        with pytest.raises(ClaimRefused, match="task attempt 1"):
            waiting(driver, 2).result(5)


def test_two_attempts_never_wait_for_each_other(driver: Driver) -> None:
    with driver.task(1) as first, driver.task(2) as second:
        first.topic("a")
        first.claim(0)
        second.claim(1)
        with pytest.raises(ClaimRefused, match="task attempt 1"):
            second.claim(0)


def test_outputs_are_what_the_tasks_reported(driver: Driver) -> None:
    output = Output("a", 0, 5, 9, 5, 77)
    with driver.task(1) as task:
        task.topic("a")
        task.claim(0)
        task.report(output)
    assert driver.reported == [output]
    assert driver.transaction.close([output]) == (output,)


def test_at_least_once_lets_every_attempt_write(driver: Driver) -> None:
    open_to_all = OpenTransaction(TopicTable(lambda _: 1), add=driver.added.append, reported=print, exclusive=False)
    driver.service.begin(open_to_all)
    for attempt_id in (1, 2):
        with ClaimClient(driver.service.address, open_to_all.token, attempt_id) as task:
            task.topic("a")
            assert task.claim(0) == TopicPartition("a", 0)
    assert driver.added == []


def test_a_claim_without_a_report_keeps_the_batch_from_committing(driver: Driver) -> None:
    with driver.task(1) as task:
        task.topic("a")
        task.claim(0)
    assert isinstance(driver.transaction.close([]), Denied)


def test_a_task_of_an_ended_transaction_is_refused(driver: Driver) -> None:
    with driver.task(1) as late:
        driver.service.begin(OpenTransaction(TopicTable(lambda _: 1), add=driver.added.append, reported=print))
        with pytest.raises(ClaimRefused, match="has ended"):
            late.claim(0)


def test_a_failed_lookup_is_reported_to_the_task(driver: Driver) -> None:
    with driver.task(1) as task, pytest.raises(ClaimRefused, match="KeyError"):
        task.topic("nowhere")


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b"{}\n", b"\xff\xfe\n", b"x" * 100_000])
def test_a_task_that_sends_nonsense_is_disconnected_and_the_service_continues(driver: Driver, line: bytes) -> None:
    address = driver.service.address
    context = address.identity.context(is_server=False)
    answer = b""
    with (
        socket.create_connection((address.host, address.port), timeout=10) as plain,
        context.wrap_socket(plain) as broken,
        # The service may have cut the connection off before everything was sent.
        contextlib.suppress(OSError),
    ):
        broken.sendall(line)
        while data := broken.recv(4096):
            answer += data
    answer = answer.removeprefix(b"welcome\n")
    assert answer == b"" or "denied" in json.loads(answer)
    with driver.task(1) as task:
        assert task.topic("a") == (0, 2)


def test_a_transaction_does_not_end_while_a_partition_is_being_added(driver: Driver) -> None:
    is_adding, may_go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def add(_: TopicPartition) -> None:
        is_adding.set()
        may_go_on.wait(20)
        order.append("added")

    def end() -> None:
        driver.service.end()
        order.append("ended")

    transaction = OpenTransaction(TopicTable(lambda _: 1), add=add, reported=print)
    driver.service.begin(transaction)
    transaction.look_up("a")
    with ClaimClient(driver.service.address, transaction.token, 1) as task, ThreadPoolExecutor(2) as pool:
        claimed = pool.submit(task.claim, 0)
        assert is_adding.wait(20)
        ended = pool.submit(end)
        with pytest.raises(TimeoutError):
            ended.result(timeout=0.1)
        may_go_on.set()
        claimed.result(timeout=20)
        ended.result(timeout=20)
    assert order == ["added", "ended"]


def test_a_task_may_be_silent_for_longer_than_a_stranger(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_service._Handler, "timeout", 0.5)
    address = driver.service.address
    with driver.task(1) as task:
        task.topic("a")
        with socket.create_connection((address.host, address.port), timeout=20) as stranger:
            # The server has given up the silent stranger: so much time has passed for the task, too.
            assert stranger.recv(1) == b""
        task.claim(0)


def test_the_services_of_a_driver_take_the_ports_from_the_one_that_was_set_on(driver: Driver) -> None:
    port = driver.service.address.port
    second = ClaimService(shared_identity(), "127.0.0.1", "127.0.0.1", port)
    second.close()
    assert port < second.address.port < port + 16


def test_an_executor_that_cannot_reach_the_driver_reports_the_setting(driver: Driver) -> None:
    address = driver.service.address
    driver.service.close()
    with ClaimClient(address, "any", 1) as task, pytest.raises(ClaimRefused, match=r"spark\.driver\.host"):
        task.topic("a")
