"""Claims about the embedded consumer protocol."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einmal.client.cores.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from einmal.types import TopicPartition
from einmal.wire.errors import Malformed

topics = st.text(min_size=1, max_size=20)
partitions = st.lists(st.builds(TopicPartition, topics, st.integers(0, 99)), unique=True, max_size=8)


@given(st.lists(topics, unique=True, max_size=5), partitions)
def test_a_subscription_is_read_back(names: list[str], owned: list[TopicPartition]) -> None:
    read = decode_subscription(encode_subscription(Subscription(tuple(names), tuple(owned))))
    assert (list(read.topics), sorted(read.owned)) == (names, sorted(owned))


@given(partitions)
def test_an_assignment_is_read_back(assigned: list[TopicPartition]) -> None:
    assert sorted(decode_assignment(encode_assignment(assigned))) == sorted(assigned)


def test_no_bytes_are_no_partitions() -> None:
    assert decode_assignment(b"") == ()


def test_a_subscription_of_version_0_owns_nothing() -> None:
    assert decode_subscription(b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\xff\xff\xff\xff") == Subscription(("t",))


def test_fields_of_later_versions_are_ignored() -> None:
    later = b"\0\7" + encode_subscription(Subscription(("t",)))[2:] + b"later"
    assert decode_subscription(later) == Subscription(("t",))


@given(st.binary(max_size=60))
def test_broken_bytes_are_refused_or_read_but_never_worse(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(data)
        except Malformed:
            continue


def test_a_lying_count_is_refused() -> None:
    with pytest.raises(Malformed, match="2147483647 elements"):
        decode_subscription(b"\0\1\x7f\xff\xff\xff")
