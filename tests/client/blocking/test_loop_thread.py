"""Claims about the thread behind a blocking client: one per process, closed for good, never waiting for itself."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from types import FrameType

import pytest

from einmal.client.blocking.loop_thread import LoopThread
from einmal.client.errors import ClientClosed, InvalidState
from tests.suite.patience import patient


class Twin:
    """Stands for an asyncio client."""

    def __init__(self) -> None:
        self.is_closed = False
        self.thread = threading.current_thread().name
        self.process_id = os.getpid()

    async def double(self, number: int) -> int:
        await asyncio.sleep(0)
        return number * 2

    async def count(self, end: int) -> AsyncIterator[int]:
        for number in range(end):
            await asyncio.sleep(0)
            yield number

    async def wait(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def thread() -> LoopThread[Twin]:
    return LoopThread(Twin, "twin")


def test_the_client_lives_in_its_own_thread(thread: LoopThread[Twin]) -> None:
    assert thread.run(lambda twin: twin.double(21)) == 42
    assert thread.client.thread == "twin"
    thread.close()


def test_a_call_that_ends_the_program_ends_no_other_call(thread: LoopThread[Twin]) -> None:
    async def ends(_twin: Twin) -> None:
        sys.exit(3)

    with pytest.raises(SystemExit):
        thread.run(ends)
    assert thread.run(lambda twin: twin.double(21)) == 42
    thread.close()


def test_it_is_made_at_the_first_call(thread: LoopThread[Twin]) -> None:
    thread.close()
    assert "twin" not in [each.name for each in threading.enumerate()]


_LEFT_AT_THE_END = """
from einmal.client.blocking.loop_thread import LoopThread
from tests.client.blocking.test_loop_thread import Twin

def numbers():
    thread = LoopThread(Twin, "twin")
    try:
        yield from thread.iterate(lambda twin: twin.count(3))
    finally:
        thread.close()

left = numbers()
print(next(left))
"""


def test_a_program_that_leaves_an_iterator_half_read_ends() -> None:
    done = subprocess.run([sys.executable, "-c", _LEFT_AT_THE_END], capture_output=True, text=True, timeout=patient(20))
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


_OUTLIVES_PYTHON = """
import asyncio, ctypes, sys
from einmal.client.blocking.loop_thread import LoopThread


class Twin:
    def __init__(self):
        asyncio.get_running_loop().call_later(0.5, print)

    async def close(self):
        pass


thread = LoopThread(Twin, "twin")
thread.client
# Once Python is gone the C library calls sleep(1), where 1 is the exit status; the timer of the client is due then.
libc = ctypes.CDLL(None)
libc.on_exit(libc.sleep, None)
sys.exit(1)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="on_exit is glibc's")
def test_a_thread_that_is_left_open_does_not_run_on_after_the_interpreter() -> None:
    done = subprocess.run([sys.executable, "-c", _OUTLIVES_PYTHON], capture_output=True, text=True, timeout=patient(20))
    assert (done.returncode, done.stderr) == (1, "")


_USED_WHILE_PYTHON_ENDS = """
import asyncio, atexit, threading


def late():
    try:
        thread.run(twice)
    except Exception as error:
        print(type(error).__name__)
    thread.close()


# Handlers run in the reverse of their order.
atexit.register(late)
from einmal.client.blocking.loop_thread import LoopThread


class Twin:
    async def close(self):
        pass


async def twice(_):
    return 2


def use():
    while True:
        thread.run(twice)
        in_use.set()


thread = LoopThread(Twin, "twin")
in_use = threading.Event()
threading.Thread(target=use, daemon=True).start()
in_use.wait()
atexit.register(lambda: print(thread.run(twice)))
"""


def test_until_its_thread_is_parked_a_client_can_be_used_at_the_end() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _USED_WHILE_PYTHON_ENDS], capture_output=True, text=True, timeout=patient(20)
    )
    assert (done.stdout, done.stderr, done.returncode) == ("2\nClientClosed\n", "", 0)


_WAITED_FOR_AT_THE_END = """
import asyncio, atexit, threading


def late():
    for user in users:
        user.join()
    print(*ended)


atexit.register(late)
from einmal.client.blocking import loop_thread

loop_thread._SILENT_S = 0.1


class Twin:
    async def close(self):
        pass


async def wait(_):
    begun.set()
    await asyncio.Event().wait()


async def at_once(_):
    pass


def use(begin):
    try:
        while True:
            thread.run(begin)
    except Exception as error:
        ended.append(type(error).__name__)


ended = []
thread = loop_thread.LoopThread(Twin, "twin")
begun = threading.Event()
users = [threading.Thread(target=use, args=(begin,), daemon=True) for begin in (wait, at_once)]
for user in users:
    user.start()
begun.wait()
"""


def test_a_handler_that_waits_for_a_thread_which_uses_a_client_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WAITED_FOR_AT_THE_END], capture_output=True, text=True, timeout=patient(20)
    )
    assert (done.stdout, done.stderr, done.returncode) == ("ClientClosed ClientClosed\n", "", 0)


def test_an_iterator_gives_one_by_one_and_can_be_left(thread: LoopThread[Twin]) -> None:
    assert list(thread.iterate(lambda twin: twin.count(3))) == [0, 1, 2]
    for number in thread.iterate(lambda twin: twin.count(3)):
        assert number == 0
        break
    thread.close()


def test_closing_ends_the_thread_and_every_later_call(thread: LoopThread[Twin]) -> None:
    twin = thread.client
    thread.close()
    thread.close()
    assert twin.is_closed
    assert "twin" not in [each.name for each in threading.enumerate()]
    with pytest.raises(ClientClosed):
        thread.run(lambda twin: twin.double(1))


def test_a_call_from_inside_would_wait_for_itself_and_is_refused(thread: LoopThread[Twin]) -> None:
    with pytest.raises(InvalidState, match="wait for itself"):
        thread.call(lambda _: thread.run(lambda twin: twin.double(1)))
    thread.close()


def test_closing_ends_the_calls_of_other_threads(thread: LoopThread[Twin]) -> None:
    ended: list[BaseException] = []
    are_waiting = threading.Semaphore(0)

    async def wait(twin: Twin) -> None:
        are_waiting.release()
        await twin.wait()

    def call() -> None:
        try:
            while True:
                thread.run(wait)
        except ClientClosed as error:
            ended.append(error)

    users = [threading.Thread(target=call, daemon=True) for _ in range(3)]
    for user in users:
        user.start()
    for _ in users:
        are_waiting.acquire()
    thread.close()
    for user in users:
        user.join(patient(20))
    assert len(ended) == 3


def test_many_threads_may_close_it(thread: LoopThread[Twin]) -> None:
    assert thread.run(lambda twin: twin.double(1)) == 2
    users = [threading.Thread(target=thread.close, daemon=True) for _ in range(8)]
    for user in users:
        user.start()
    for user in users:
        user.join(patient(20))
    assert not any(user.is_alive() for user in users)


def test_whoever_closes_it_second_does_not_cut_the_first_short() -> None:
    """It may be committing positions."""
    has_begun = threading.Event()

    class Slow(Twin):
        def __init__(self) -> None:
            super().__init__()
            self.may_end = asyncio.Event()
            self.has_ended = False

        async def close(self) -> None:
            if self.is_closed:
                # As the clients do, which are closed already.
                self.may_end.set()
                return
            self.is_closed = True
            has_begun.set()
            await self.may_end.wait()
            # As long as a commit takes: nothing announces that the one behind did not wait.
            await asyncio.sleep(0.2)
            self.has_ended = True

    thread = LoopThread(Slow, "slow")
    twin = thread.client
    users = [threading.Thread(target=thread.close, daemon=True) for _ in range(2)]
    users[0].start()
    has_begun.wait(patient(20))
    users[1].start()
    for user in users:
        user.join(patient(20))
    assert not any(user.is_alive() for user in users)
    assert twin.has_ended


def test_closing_from_inside_is_refused_and_changes_nothing(thread: LoopThread[Twin]) -> None:
    with pytest.raises(InvalidState, match="wait for itself"):
        thread.call(lambda _: thread.close())
    assert thread.run(lambda twin: twin.double(1)) == 2
    thread.close()


def test_many_threads_share_one_client(thread: LoopThread[Twin]) -> None:
    clients: list[Twin] = []
    users = [threading.Thread(target=lambda: clients.append(thread.client)) for _ in range(8)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert all(each is clients[0] for each in clients)
    thread.close()


def interrupted_after(calls: int, run: Callable[[], object]) -> bool:
    """Whether KeyboardInterrupt came before ``run`` was over: raised in this thread at the start of a function of
    Python, which is where a signal is, after so many of them. Not in ``threading``, whose locks do not bear it."""
    left = calls

    def trace(frame: FrameType, _event: str, _argument: object) -> None:
        nonlocal left
        left -= frame.f_code.co_filename != threading.__file__
        if left < 0:
            sys.settrace(None)
            raise KeyboardInterrupt

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(former)
    return False


def test_ctrl_c_at_any_moment_leaves_no_coroutine_behind(
    thread: LoopThread[Twin], monkeypatch: pytest.MonkeyPatch
) -> None:
    left_behind: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda left: left_behind.append(str(left.exc_value)))
    assert thread.run(lambda twin: twin.double(1)) == 2
    calls = 0
    while interrupted_after(calls, lambda: thread.run(lambda twin: twin.double(1))):
        assert thread.run(lambda twin: twin.double(2)) == 4
        gc.collect()
        assert left_behind == [], calls
        calls += 1
    assert calls > 8
    thread.close()


def test_a_client_that_cannot_be_made_leaves_no_thread_and_can_be_made_later() -> None:
    made: list[Twin] = []

    def make() -> Twin:
        made.append(Twin())
        if len(made) < 3:
            raise ValueError("wrong settings")
        return made[-1]

    thread = LoopThread(make, "maker")
    for _ in range(2):
        with pytest.raises(ValueError, match="wrong settings"):
            thread.run(lambda twin: twin.double(1))
        assert "maker" not in [each.name for each in threading.enumerate()]
    unused = LoopThread(make, "maker")
    made.clear()
    with pytest.raises(ValueError, match="wrong settings"), contextlib.closing(unused):
        unused.run(lambda twin: twin.double(1))
    made += [Twin()] * 2
    assert thread.run(lambda twin: twin.double(1)) == 2
    thread.close()


def test_what_the_start_of_a_call_raises_reaches_the_caller(thread: LoopThread[Twin]) -> None:
    with pytest.raises(AttributeError, match="treble"):
        thread.run(lambda twin: twin.treble(1))  # type: ignore[attr-defined]
    assert thread.run(lambda twin: twin.double(1)) == 2
    thread.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_after_a_fork_the_child_has_a_client_of_its_own(thread: LoopThread[Twin]) -> None:
    assert thread.run(lambda twin: twin.double(1)) == 2
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            told = b"%d %d" % (thread.client.process_id == os.getpid(), thread.run(lambda twin: twin.double(4)))
            os.write(writer, told)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"1 8"
    os.waitpid(child, 0)
    assert thread.run(lambda twin: twin.double(3)) == 6
    thread.close()
