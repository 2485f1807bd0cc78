"""Claims about the readers of workloads: where they begin, and how long they wait for the end of a log."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from einmal.checker.history import Poll
from einmal.client.records import ConsumerRecord
from einmal.types import TopicPartition
from einmal.workloads.endings import Endings
from einmal.workloads.reading import NotFinished, follow, read_to_the_end
from einmal.workloads.recorder import Recorder
from tests.virtual_time import virtual_time

KEY = TopicPartition("t", 0)
_END = 5


@dataclass
class SlowLog:
    """A process whose consumers get one record after so many seconds, up to ``readable``."""

    seconds: float
    readable: int = _END
    name: str = "last"
    number: int = 1
    random: random.Random = field(default_factory=lambda: random.Random(1))
    next: int = 0
    positions: list[int] = field(default_factory=list)

    def producer(self, **settings: Any) -> Any:
        raise NotImplementedError

    def consumer(self, **settings: Any) -> Any:
        return self

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        assert list(partitions) == [KEY]

    def seek(self, key: TopicPartition, offset: int) -> None:
        self.positions.append(offset)
        self.next = offset

    async def end_offsets(self, *keys: TopicPartition) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(keys, _END)

    async def position(self, key: TopicPartition) -> int:
        return self.next

    async def poll(self, timeout_ms: int) -> list[ConsumerRecord]:
        await asyncio.sleep(self.seconds)
        if self.next >= self.readable:
            return []
        self.next += 1
        return [ConsumerRecord(KEY.topic, KEY.partition, self.next - 1, 0, None, b"%d" % self.next, ())]

    async def close(self) -> None:
        return


def read(recorder: Recorder) -> list[int]:
    history = recorder.history(is_read_to_the_end=True)
    polls = [action for op in history.ops for action in op.actions if isinstance(action, Poll)]
    return [offset for poll in polls for offset, _ in poll.records]


@virtual_time
async def test_a_long_log_is_read_for_as_long_as_it_yields_records() -> None:
    recorder = Recorder()
    await read_to_the_end(SlowLog(40.0), [KEY], recorder)
    assert read(recorder) == list(range(_END)), "200 s"


@virtual_time
async def test_a_log_that_somebody_holds_back_is_given_up() -> None:
    with pytest.raises(NotFinished, match="within 60 s: t-0 at 3 of 5"):
        await read_to_the_end(SlowLog(10.0, readable=3), [KEY], Recorder())


@pytest.mark.parametrize(("behind_max", "first"), [(None, 0), (2, 3), (9, 0)])
def test_a_reader_begins_near_the_end_where_the_beginning_is_far(behind_max: int | None, first: int) -> None:
    @virtual_time
    async def follows() -> list[int]:
        recorder, endings = Recorder(), Endings()
        asyncio.get_running_loop().call_later(60.0, endings.stop)
        await follow(SlowLog(1.0), [KEY], recorder, endings, read_committed=True, behind_max=behind_max)
        return read(recorder)

    assert follows() == list(range(first, _END))
