from typing import Any

from einmal.bench.confluent import hand_over


class FullQueue:
    """A producer whose queue is full until it has been polled twice."""

    def __init__(self) -> None:
        self.polls = 0
        self.produced: list[Any] = []

    def produce(self, topic: str, value: bytes, **options: Any) -> None:
        if self.polls < 2:
            raise BufferError
        self.produced.append((topic, value, options))

    def poll(self, timeout: float) -> None:
        self.polls += 1


def test_a_record_waits_for_space_in_the_producers_queue() -> None:
    producer = FullQueue()
    hand_over(producer, "t", b"x", key=b"k")
    assert producer.produced == [("t", b"x", {"key": b"k"})]
