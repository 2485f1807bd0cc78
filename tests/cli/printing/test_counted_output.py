"""What has left stdout is counted, however the write ends."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from einmal.cli.clients import ended_by_sigterm
from einmal.cli.printing.counted_output import CountedOutput


class SignalledInTheWrite(io.RawIOBase):
    """Takes the bytes, and by then the process has a signal."""

    def __init__(self, number: int) -> None:
        self.taken = b""
        self._number = number

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        taken = bytes(data)  # type: ignore[call-overload]
        self.taken += taken
        signal.raise_signal(self._number)
        return len(taken)


def stdout_on(raw: io.RawIOBase, monkeypatch: pytest.MonkeyPatch, buffered: bool) -> None:
    # As python -u has it, whose text is on the raw file.
    below = io.BufferedWriter(raw) if buffered else raw
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(below, write_through=True))  # type: ignore[type-var]


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_bytes_count_that_left_as_a_signal_came(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, buffered: bool
) -> None:
    raw = SignalledInTheWrite(number)
    with monkeypatch.context() as patch:
        stdout_on(raw, patch, buffered)
        out = CountedOutput()
        with pytest.raises((SystemExit, KeyboardInterrupt)), ended_by_sigterm():
            out.write(b"a line\n")
    assert raw.taken == b"a line\n"
    assert out.written == len(raw.taken)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for each in (reader, writer):
        os.close(each)


def test_a_signal_does_not_wait_for_a_reader(monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    with monkeypatch.context() as patch:
        stdout_on(io.FileIO(writer, "w", closefd=False), patch, buffered=True)
        out = CountedOutput()

        def end_when_the_pipe_is_full() -> None:
            full = 0
            while out.written == 0 or out.written > full:
                full = out.written
                threading.Event().wait(0.05)
            os.kill(os.getpid(), signal.SIGTERM)

        other = threading.Thread(target=end_when_the_pipe_is_full)
        other.start()
        with pytest.raises(SystemExit), ended_by_sigterm():
            out.write(b"x" * 10_000_000)
        other.join()
    assert out.written == len(os.read(reader, 10_000_000)) < 10_000_000
