"""Nothing is left of those who wait for a change, whether it comes or not."""

from __future__ import annotations

from einmal.client.aio.network.changes import Changes


async def test_a_wait_without_a_change_leaves_nothing_behind() -> None:
    changes = Changes()
    for _ in range(3):
        await changes.wait(0)
    assert not changes._waiters
