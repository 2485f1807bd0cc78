"""Cutting a stream into frames."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einmal.wire.errors import WireError
from einmal.wire.frames import FrameSplitter, frame


@given(
    messages=st.lists(st.binary(max_size=50), max_size=8), cuts=st.lists(st.integers(1, 30), min_size=1, max_size=50)
)
def test_frames_come_out_whole_however_the_stream_is_cut(messages: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frame(message) for message in messages)
    splitter = FrameSplitter(100)
    found: list[bytes] = []
    position = index = 0
    while position < len(stream):
        size = cuts[index % len(cuts)]
        found += splitter.feed(stream[position : position + size])
        position += size
        index += 1
    assert found == messages
    assert splitter.buffered == 0


def test_a_frame_of_parts_is_their_sum() -> None:
    assert frame(b"ab", memoryview(b"cd"), bytearray(b"e")) == b"\x00\x00\x00\x05abcde"


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff", b"\x80\x00\x00\x00", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x65"])
def test_negative_and_oversized_frames_are_refused(length: bytes) -> None:
    with pytest.raises(WireError):
        FrameSplitter(100).feed(length)
