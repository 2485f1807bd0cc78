"""Claims about the memory that large requests may take together."""

from __future__ import annotations

import asyncio

from einmal.broker.resources.unpacked_requests import UnpackedRequests


async def rounds() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_requests_are_admitted_in_the_order_of_arrival_while_they_fit() -> None:
    unpacked = UnpackedRequests(limit=1_000_000)
    admitted: list[int] = []
    leave = [asyncio.Event() for _ in range(4)]

    async def work(number: int, frame_bytes: int) -> None:
        async with unpacked.admitted(frame_bytes):
            admitted.append(number)
            await leave[number].wait()

    tasks = [asyncio.ensure_future(work(*each)) for each in enumerate((1_000, 900, 1_500, 10))]
    await rounds()
    assert admitted == [0, 1]
    leave[0].set()
    await rounds()
    assert admitted == [0, 1], "the third fits beside the second only when that is gone, and the last is behind it"
    leave[1].set()
    await rounds()
    assert admitted == [0, 1, 2, 3]
    leave[2].set()
    leave[3].set()
    await asyncio.gather(*tasks)


async def test_what_fits_beside_nothing_is_admitted_alone() -> None:
    async with UnpackedRequests(limit=1_000).admitted(50_000):
        pass


async def test_a_cancelled_wait_admits_the_next() -> None:
    unpacked = UnpackedRequests(limit=1_000)
    admitted = asyncio.Event()

    async def work() -> None:
        async with unpacked.admitted(10):
            admitted.set()

    async with unpacked.admitted(10):
        first, second = asyncio.ensure_future(work()), asyncio.ensure_future(work())
        await rounds()
        first.cancel()
        await rounds()
        assert not admitted.is_set()
    await second
