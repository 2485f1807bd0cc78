"""aiokafka as a client of ``einmal verify``."""

from __future__ import annotations

import asyncio

import aiokafka.errors
import pytest

from einmal.verify.clients.aio_kafka import WithoutLeftFutures


@pytest.mark.parametrize(
    ("error", "is_reported"), [(aiokafka.errors.ProducerFenced(), False), (ValueError("ours"), True)]
)
def test_futures_that_the_library_leaves_with_its_errors_are_not_reported_but_all_else_is(
    error: Exception, is_reported: bool
) -> None:
    reported: list[object] = []

    async def leave() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: reported.append(context["exception"]))
        # One for each producer.
        WithoutLeftFutures.install()
        WithoutLeftFutures.install()
        loop.create_future().set_exception(error)

    asyncio.run(leave())
    assert reported == ([error] if is_reported else [])
