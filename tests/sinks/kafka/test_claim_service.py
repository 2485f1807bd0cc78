import contextlib
import pickle
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from einmal.commit_protocol.claims import Denied, Output, Task
from einmal.sinks.kafka import claim_client, claim_service, open_transaction
from einmal.sinks.kafka.claim_client import ClaimClient, ClaimRefused
from einmal.sinks.kafka.claim_messages import Claim, ClaimDenied, ClaimingAttempt, ClaimPartitions, Noted, encode
from einmal.sinks.kafka.claim_service import ClaimService
from einmal.sinks.kafka.open_transaction import OpenTransaction, TopicTable
from einmal.types import TopicPartition
from tests.security.certificates import shared_identity
from tests.spark.claim_moments import CLAIM, GRANTED, LATER, REPORTED, watch_claims
from tests.suite.patience import patient


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

    def task(self, attempt_id: int, task: Task | None = None) -> ClaimClient:
        """Attempts of one task, if ``task`` is not given."""
        return ClaimClient(self.service.address, self.transaction.token, task or Task(0, 0), attempt_id)


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.service.close()
    if (kept := claim_client._unused.pop(driver.service.address, None)) is not None:
        kept.close()


def test_a_partition_count_is_fixed_for_the_batch_and_every_partition_has_a_number(driver: Driver) -> None:
    with driver.task(1) as first, driver.task(2) as second:
        assert first.topic("a") == (0, 2)
        assert second.topic("b") == (2, 3)
        assert second.topic("a") == (0, 2)
        assert first.claim([4]) == [Claim(4, TopicPartition("b", 2), 0)]
    assert driver.looked_up == ["a", "b"]


def test_a_writer_passes_each_moment_at_which_tests_kill_it(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_transaction, "_WAIT_STEP_S", 0.01)
    reached: list[str] = []
    stop = watch_claims(lambda service, moment, port: reached.append(moment))
    try:
        with driver.task(1, Task(0, 1)) as first:
            first.topic("a")
            first.claim([0])
            second = waiting(driver, 2, Task(0, 2))
            with pytest.raises(TimeoutError):
                second.result(0.2)
            first.report([Output("a", 0, 0, 0, 1)])
            assert [each.number for each in second.result(60)] == [0]
    finally:
        stop()
    assert reached[:3] == [CLAIM, GRANTED, CLAIM]
    assert set(reached) == {CLAIM, GRANTED, LATER, REPORTED}


def test_a_partition_is_added_to_the_transaction_before_its_claim_is_granted(driver: Driver) -> None:
    with driver.task(1) as task:
        task.topic("a")
        assert task.claim([1]) == [Claim(1, TopicPartition("a", 1), 0)]
        assert driver.added == [TopicPartition("a", 1)]
        task.claim([1])
    assert driver.added == [TopicPartition("a", 1)]


def test_a_partition_that_could_not_be_added_is_not_granted_to_whoever_asks_again() -> None:
    def fail(partition: TopicPartition) -> None:
        raise OSError(f"no answer about {partition}")

    transaction = OpenTransaction(TopicTable(lambda topic: 2), add=fail, reported=lambda output: None)
    transaction.look_up("a")
    question = ClaimPartitions(ClaimingAttempt(transaction.token, Task(0, 0), 1), (0,), 1)
    with pytest.raises(OSError, match="no answer about a-0"):
        transaction.answer(question, object())
    again = transaction.answer(question, object())
    assert again == ClaimDenied("a-0 could not be added to the transaction: no answer about a-0")
    assert isinstance(transaction.close([]), Denied)


def test_an_attempt_that_asks_again_learns_first_what_it_has(driver: Driver) -> None:
    with driver.task(1, Task(0, 1)) as first, driver.task(2, Task(0, 2)) as second:
        first.topic("b")
        first.claim([0])
        assert [each.number for each in second.claim([0, 1, 2], 2)] == [1, 2]
        first.report([Output("b", 0, 0, 0, 1)])
        # As if its first answer had been lost.
        assert [each.number for each in second.claim([0, 1, 2], 2)] == [1, 2]


def waiting(driver: Driver, attempt_id: int, task: Task | None = None) -> Future[list[Claim]]:
    """The claim of a second attempt, which asks from a thread of its own."""
    claimed: Future[list[Claim]] = Future()

    def ask() -> None:
        try:
            with driver.task(attempt_id, task) as client:
                claimed.set_result(client.claim([0]))
        except ClaimRefused as refused:
            claimed.set_exception(refused)

    threading.Thread(target=ask, daemon=True).start()
    return claimed


def test_a_second_attempt_waits_while_the_first_is_at_work_and_gets_no_claim_when_it_has_died(driver: Driver) -> None:
    with driver.task(1) as first:
        first.topic("a")
        first.claim([0])
        second = waiting(driver, 2)
        with pytest.raises(TimeoutError):
            second.result(0.2)
    with pytest.raises(ClaimRefused, match="task attempt 1"):
        second.result(60)


def test_a_second_attempt_that_waits_is_turned_away_when_the_transaction_has_ended(driver: Driver) -> None:
    with driver.task(1) as first:
        first.topic("a")
        first.claim([0])
        second = waiting(driver, 2)
        with pytest.raises(TimeoutError):
            second.result(0.1)
        driver.service.end()
        with pytest.raises(ClaimRefused, match="has ended"):
            second.result(60)


def test_a_second_attempt_gives_spark_the_time_to_count_the_first_ones_success(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_transaction, "_COUNTED_S", 0.5)
    monkeypatch.setattr(open_transaction, "_WAIT_STEP_S", 0.05)
    with driver.task(1) as first:
        first.topic("a")
        first.claim([0])
        first.report([Output("a", 0, 5, 9, 5, 77)])
    second = waiting(driver, 2)
    with pytest.raises(TimeoutError):
        second.result(0.2)
    with pytest.raises(ClaimRefused, match="task attempt 1"):
        second.result(60)


def test_a_second_attempt_waits_no_longer_than_spark_needs_to_count_a_success(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_transaction, "_COUNTED_S", 0.2)
    with driver.task(1) as first:
        first.topic("a")
        first.claim([0])
        first.report([Output("a", 0, 5, 9, 5, 77)])
    with pytest.raises(ClaimRefused, match="task attempt 1"):
        waiting(driver, 2).result(open_transaction._WAIT_STEP_S / 2)


def test_no_call_waits_for_ever_for_a_hanging_attempt(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_transaction, "_WAIT_S", 0.2)
    monkeypatch.setattr(open_transaction, "_WAIT_STEP_S", 0.05)
    with driver.task(1) as hangs:
        hangs.topic("a")
        hangs.claim([0])
        with pytest.raises(ClaimRefused, match="task attempt 1"):
            waiting(driver, 2).result(60)


def test_two_tasks_never_wait_for_each_other(driver: Driver) -> None:
    with driver.task(1) as first, driver.task(2, Task(0, 1)) as second:
        first.topic("a")
        first.claim([0])
        second.claim([1])
        with pytest.raises(ClaimRefused, match="task attempt 1"):
            second.claim([0])


def test_a_task_gets_the_partitions_that_are_free_and_not_more_than_it_asks_for(driver: Driver) -> None:
    with driver.task(1) as first, driver.task(2, Task(0, 1)) as second:
        first.topic("a")
        first.topic("b")
        assert [each.number for each in first.claim([2, 0, 1], 2)] == [2, 0]
        assert [each.number for each in second.claim([0, 1, 2, 3], 3)] == [1, 3]


def test_a_task_waits_for_a_partition_until_its_writer_reports_and_continues_its_sequence(driver: Driver) -> None:
    with driver.task(1) as first:
        first.topic("a")
        first.claim([0])
        second = waiting(driver, 2, Task(0, 1))
        with pytest.raises(TimeoutError):
            second.result(0.2)
        first.report([Output("a", 0, 5, 9, 5, 77)])
        assert second.result(60) == [Claim(0, TopicPartition("a", 0), 5)]
    assert driver.added == [TopicPartition("a", 0)]


def test_a_task_does_not_wait_for_the_partition_of_one_that_has_died(driver: Driver) -> None:
    with driver.task(1) as first:
        first.topic("a")
        first.claim([0])
        second = waiting(driver, 2, Task(0, 1))
        with pytest.raises(TimeoutError):
            second.result(0.2)
    with pytest.raises(ClaimRefused, match="task attempt 1"):
        second.result(60)


def test_a_task_waits_as_long_as_something_is_reported(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_transaction, "_WAIT_S", 1.0)
    with driver.task(1) as first, driver.task(3, Task(0, 2)) as third:
        first.topic("a")
        first.claim([0])
        second = waiting(driver, 2, Task(0, 1))
        for turn in range(8):
            third.claim([1])
            with pytest.raises(TimeoutError):
                second.result(0.2)
            third.report([Output("a", 1, turn, turn, 1, 7)])
        first.report([Output("a", 0, 5, 9, 5, 77)])
        assert second.result(60) == [Claim(0, TopicPartition("a", 0), 5)]


def test_a_task_may_claim_and_report_more_partitions_than_one_line_holds() -> None:
    name = "t" * 249
    service = ClaimService(shared_identity(), "127.0.0.1", "127.0.0.1")
    transaction = OpenTransaction(TopicTable(lambda _: 3_000), add=lambda _: None, reported=lambda _: None)
    service.begin(transaction)
    with contextlib.closing(service), ClaimClient(service.address, transaction.token, Task(0, 0), 1) as task:
        task.topic(name)
        waiting, claimed = list(range(3_000)), []
        while waiting:
            claimed += task.claim(waiting, len(waiting))
            waiting = [number for number in waiting if number > claimed[-1].number]
        outputs = [Output(*each.partition, 1, 1, 1, 1) for each in claimed]
        task.report(outputs)
    assert transaction.close(outputs) == tuple(outputs)


def test_outputs_are_what_the_tasks_reported(driver: Driver) -> None:
    output = Output("a", 0, 5, 9, 5, 77)
    with driver.task(1) as task:
        task.topic("a")
        task.claim([0])
        task.report([output])
    assert driver.reported == [output]
    assert driver.transaction.close([output]) == (output,)


def test_at_least_once_lets_every_attempt_write(driver: Driver) -> None:
    open_to_all = OpenTransaction(TopicTable(lambda _: 1), add=driver.added.append, reported=print, exclusive=False)
    driver.service.begin(open_to_all)
    for attempt_id in (1, 2):
        with ClaimClient(driver.service.address, open_to_all.token, Task(0, 0), attempt_id) as task:
            task.topic("a")
            assert task.claim([0]) == [Claim(0, TopicPartition("a", 0), 0)]
    assert driver.added == []


def test_a_claim_without_a_report_keeps_the_batch_from_committing(driver: Driver) -> None:
    with driver.task(1) as task:
        task.topic("a")
        task.claim([0])
    assert isinstance(driver.transaction.close([]), Denied)


def test_a_task_of_an_ended_transaction_is_refused(driver: Driver) -> None:
    with driver.task(1) as late:
        driver.service.begin(OpenTransaction(TopicTable(lambda _: 1), add=driver.added.append, reported=print))
        with pytest.raises(ClaimRefused, match="has ended"):
            late.claim([0])


def test_a_failed_lookup_is_reported_to_the_task(driver: Driver) -> None:
    with driver.task(1) as task, pytest.raises(ClaimRefused, match="KeyError"):
        task.topic("nowhere")


NONSENSE = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"[]\n",
    b"{}\n",
    b"\xff\xfe\n",
    b"x" * 100_000,
    b'["LookUpTopic", ["token", 1], "a"]\n',
    b'["ClaimPartitions", ["token", [0, 0], 1], [null], 1]\n',
    b'["ReportOutputs", ["token", [0, 0], 1], [["a", 0]]]\n',
    encode(Noted()),
]


@pytest.mark.parametrize("line", NONSENSE)
def test_a_task_that_sends_nonsense_is_disconnected_and_the_service_continues(driver: Driver, line: bytes) -> None:
    address = driver.service.address
    context = address.identity.context(is_server=False)
    answer = b""
    with (
        socket.create_connection((address.host, address.port), timeout=60) as plain,
        context.wrap_socket(plain) as broken,
        # The service may have cut the connection off before everything was sent.
        contextlib.suppress(OSError),
    ):
        broken.sendall(line)
        while data := broken.recv(4096):
            answer += data
    assert answer in (b"", b"welcome\n")
    with driver.task(1) as task:
        assert task.topic("a") == (0, 2)


def test_a_transaction_does_not_end_while_a_partition_is_being_added(driver: Driver) -> None:
    is_adding, may_go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def add(_: TopicPartition) -> None:
        is_adding.set()
        may_go_on.wait(60)
        order.append("added")

    def end() -> None:
        driver.service.end()
        order.append("ended")

    transaction = OpenTransaction(TopicTable(lambda _: 1), add=add, reported=print)
    driver.service.begin(transaction)
    transaction.look_up("a")
    with ClaimClient(driver.service.address, transaction.token, Task(0, 0), 1) as task, ThreadPoolExecutor(2) as pool:
        claimed = pool.submit(task.claim, [0])
        assert is_adding.wait(60)
        ended = pool.submit(end)
        with pytest.raises(TimeoutError):
            ended.result(timeout=0.1)
        may_go_on.set()
        claimed.result(timeout=60)
        ended.result(timeout=60)
    assert order == ["added", "ended"]


def test_a_task_may_be_silent_for_longer_than_a_stranger(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_service._Handler, "timeout", 0.5)
    address = driver.service.address
    with driver.task(1) as task:
        task.topic("a")
        with socket.create_connection((address.host, address.port), timeout=60) as stranger:
            # The server has given up the silent stranger: so much time has passed for the task, too.
            assert stranger.recv(1) == b""
        task.claim([0])


def test_the_services_of_a_driver_take_the_ports_from_the_one_that_was_set_on(driver: Driver) -> None:
    port = driver.service.address.port
    second = ClaimService(shared_identity(), "127.0.0.1", "127.0.0.1", port)
    second.close()
    assert port < second.address.port < port + 16


def test_an_executor_that_cannot_reach_the_driver_reports_the_setting(driver: Driver) -> None:
    address = driver.service.address
    driver.service.close()
    with ClaimClient(address, "any", Task(0, 0), 1) as task, pytest.raises(ClaimRefused, match=r"spark\.driver\.host"):
        task.topic("a")


@pytest.fixture
def accepted(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Who has connected to the driver."""
    found: list[object] = []
    get_request = driver.service._server.get_request

    def counted() -> tuple[ssl.SSLSocket, object]:
        found.append(connection := get_request())
        return connection

    monkeypatch.setattr(driver.service._server, "get_request", counted)
    return found


def test_the_next_task_of_a_worker_uses_the_connection_of_the_last_one(driver: Driver, accepted: list[object]) -> None:
    for attempt_id in range(5):
        with driver.task(attempt_id, Task(0, attempt_id)) as task:
            task.topic("a")
            if attempt_id < 2:
                task.claim([attempt_id])
                task.report([Output("a", attempt_id, 0, 0, 1)])
    assert len(accepted) == 1


def test_a_task_that_has_left_is_not_at_work_although_its_connection_stays(driver: Driver) -> None:
    with driver.task(1) as first:
        first.topic("a")
        first.claim([0])
        second = waiting(driver, 2)
        with pytest.raises(TimeoutError):
            second.result(0.2)
    with pytest.raises(ClaimRefused, match="attempt 1 writes in this transaction"):
        second.result(60)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_task_that_fails_closes_its_connection(
    driver: Driver, accepted: list[object], error: type[BaseException]
) -> None:
    for attempt_id in range(2):
        with pytest.raises(error), driver.task(attempt_id) as task:
            task.topic("a")
            raise error
    assert len(accepted) == 2


def test_a_connection_that_the_driver_has_ended_is_made_again(driver: Driver, accepted: list[object]) -> None:
    with driver.task(1) as task:
        task.topic("a")
    driver.service._server.tasks.close()
    driver.service._server.tasks = claim_service._Tasks()
    with driver.task(2) as task:
        assert task.topic("a") == (0, 2)
    assert len(accepted) == 2


def test_a_service_that_closes_ends_the_connections_of_tasks_and_their_threads() -> None:
    # Threads of earlier tests may end meanwhile.
    others = set(threading.enumerate())
    driver = Driver()
    with driver.task(1) as task:
        task.topic("a")
    threads = set(threading.enumerate()) - others
    assert len(threads) == 2, "the service and the connection of the task"
    driver.service.close()
    deadline = time.monotonic() + 60
    while threads.intersection(threading.enumerate()):
        assert time.monotonic() < deadline, threads
        time.sleep(0.01)
    with pytest.raises(ClaimRefused, match="the driver cannot be reached"), driver.task(2) as task:
        task.topic("a")


_ONE_TASK = """
import pickle, sys
from einmal.sinks.kafka.claim_client import ClaimClient
with ClaimClient(*pickle.load(sys.stdin.buffer)) as task:
    print(task.topic("a"))
"""


def test_a_worker_that_ends_closes_the_connections_that_it_kept(driver: Driver) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", _ONE_TASK],
        input=pickle.dumps((driver.service.address, driver.transaction.token, Task(0, 0), 1)),
        capture_output=True,
        timeout=patient(60),
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"TopicNumbers(base=0, size=2)\n", b"")


def test_a_worker_keeps_few_connections() -> None:
    drivers = [Driver() for _ in range(claim_client._UNUSED_MAX + 2)]
    try:
        for driver in drivers:
            with driver.task(1) as task:
                task.topic("a")
        assert len(claim_client._unused) == claim_client._UNUSED_MAX
        assert drivers[-1].service.address in claim_client._unused
    finally:
        for driver in drivers:
            driver.service.close()
