import random
import struct
import tracemalloc

import pytest

from einmal.wire.errors import Malformed, TooLarge
from einmal.wire.frames import SIZE_MIN, FrameReceiver, frame

MAX_SIZE = 1_000_000


def feed(receiver: FrameReceiver, data: bytes, sizes: list[int]) -> list[bytes]:
    """Give the receiver ``data`` in reads of these sizes, as far as its buffer allows, then the rest."""
    frames: list[bytes] = []
    position = 0
    while position < len(data):
        room = receiver.buffer()
        size = min(sizes.pop() if sizes else len(data), len(room), len(data) - position)
        room[:size] = data[position : position + size]
        position += size
        room.release()
        frames += map(bytes, receiver.received(size))
    return frames


@pytest.mark.parametrize("seed", range(30))
def test_frames_come_out_whole_however_they_are_cut(seed: int) -> None:
    source = random.Random(seed)
    sent = [source.randbytes(source.choice((SIZE_MIN, 11, 13, 100, 1_000, 5_000, 70_000, 600_000))) for _ in range(20)]
    sizes = [source.choice((1, 2, 3, 5, 100, 4_000, 100_000)) for _ in range(2_000)]
    receiver = FrameReceiver(MAX_SIZE, bytearray(8_192))
    assert feed(receiver, b"".join(map(frame, sent)), sizes) == sent


def test_receivers_share_a_scratch_buffer() -> None:
    scratch = bytearray(1_000)
    first, second = FrameReceiver(MAX_SIZE, scratch), FrameReceiver(MAX_SIZE, scratch)
    data = [frame(b"a" * 300), frame(b"b" * 5_000)]
    received: list[list[bytes]] = [[], []]
    for position in range(0, 5_004, 3):
        for index, receiver in enumerate((first, second)):
            received[index] += feed(receiver, data[index][position : position + 3], [])
    assert received == [[b"a" * 300], [b"b" * 5_000]]


def test_frames_may_be_written_to() -> None:
    receiver = FrameReceiver(MAX_SIZE, bytearray(100))
    small, large = frame(b"a" * SIZE_MIN), frame(bytes(1_000))
    for data in (small, large):
        position = 0
        while position < len(data):
            room = receiver.buffer()
            size = min(len(room), len(data) - position)
            room[:size] = data[position : position + size]
            room.release()
            position += size
            for received in receiver.received(size):
                memoryview(received)[0:1] = b"x"


def test_a_length_is_paid_for_by_what_has_come() -> None:
    receiver = FrameReceiver(2**30, bytearray(1_000))
    tracemalloc.start()
    feed(receiver, struct.pack(">i", 2**30) + bytes(100), [])
    assert tracemalloc.get_traced_memory()[1] < 200_000
    feed(receiver, bytes(200_000), [])
    assert tracemalloc.get_traced_memory()[1] < 8 * 200_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("length", "error"), [(-1, Malformed), (0, Malformed), (SIZE_MIN - 1, Malformed), (MAX_SIZE + 1, TooLarge)]
)
def test_impossible_lengths_are_refused(length: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        feed(FrameReceiver(MAX_SIZE, bytearray(100)), struct.pack(">i", length), [])
