"""Claims about what a replica promises to have after a power failure."""

from __future__ import annotations

import pytest

from einmal.types import ErrorCode
from tests.broker.nodes import batch
from tests.broker.one_partition import OnePartition


@pytest.mark.parametrize("flush_each", [False, True])
def test_a_committed_record_is_promised_only_once_it_is_flushed_where_each_write_is(flush_each: bool) -> None:
    """A quorum commits what two of three voters have flushed, and its leader need not be one of them.

    Found by ``einmal simulate --workload cluster``, seed 1800876: the controller lost its power just then, and refused
    to start because its log ended before its promise.
    """
    world = OnePartition(flush_each=flush_each)
    partition = world.partition

    async def main() -> None:
        world.is_held = True
        appended = partition.append(bytearray(batch(b"a")), world.clock.now())
        assert appended.error is ErrorCode.none
        partition.advance(partition.log_end_offset)
        assert partition.high_watermark == 1
        assert partition.durable_high_watermark == (0 if flush_each else 1)
        assert await partition.flushed() is ErrorCode.none
        assert partition.durable_high_watermark == 1

    world.loop.run_until_complete(main())
    world.loop.close()
