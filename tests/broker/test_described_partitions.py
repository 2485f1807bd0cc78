"""DescribeTopicPartitions: pages of a bounded size, wherever a cursor lets one begin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from einmal.types import ErrorCode
from tests.broker.nodes import Client, running_node

DESCRIBE_TOPIC_PARTITIONS = 75
PAGE = 3


def cursor(topic: str, partition: int) -> dict[str, Any]:
    return {"topic_name": topic, "partition_index": partition}


async def page(client: Client, *names: str, start: dict[str, Any] | None = None) -> tuple[list[Any], Any]:
    """The topics with their errors and partitions, and where the next page begins."""
    fields = {"topics": [{"name": name} for name in names], "response_partition_limit": PAGE, "cursor": start}
    answer = await client.call(DESCRIBE_TOPIC_PARTITIONS, 0, fields)
    topics = [
        (each.name, each.error_code, [item.partition_index for item in each.partitions]) for each in answer.topics
    ]
    after = answer.next_cursor
    return topics, None if after is None else (after.topic_name, after.partition_index)


async def test_pages_follow_each_other_to_the_last_partition(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        for name in "ab":
            await client.create_topic(name, partitions=4)
        ok = ErrorCode.none
        assert await page(client) == ([("a", ok, [0, 1, 2])], ("a", 3))
        assert await page(client, start=cursor("a", 3)) == ([("a", ok, [3]), ("b", ok, [0, 1])], ("b", 2))
        assert await page(client, "a", "b", start=cursor("b", 2)) == ([("b", ok, [2, 3])], None)
        assert await page(client, start=cursor("aa", 3)) == ([("b", ok, [0, 1, 2])], ("b", 3))


async def test_a_cursor_beyond_the_end_of_its_topic_lifts_no_bound(tmp_path: Path) -> None:
    """The rest of the page grew by as much as the cursor was too far."""
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("a", partitions=2)
        await client.create_topic("b", partitions=3 * PAGE)
        for names in ((), ("a", "b")):
            for partition in (2, 3, 2**31 - 1):
                topics, after = await page(client, *names, start=cursor("a", partition))
                assert topics == [("a", ErrorCode.none, []), ("b", ErrorCode.none, [0, 1, 2])]
                assert after == ("b", PAGE)


async def test_a_cursor_that_names_no_partition_of_a_topic_asked_for_is_refused(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("a")
        refused: list[Any] = [(name, ErrorCode.invalid_request, []) for name in ("a", "absent")]
        for start in (cursor("a", -1), cursor("other", 0), cursor("", 0), cursor("z", 0)):
            assert await page(client, "a", "absent", start=start) == (refused, None)
        assert await page(client, start=cursor("a", -1)) == ([], None)
        absent: Any = ("absent", ErrorCode.unknown_topic_or_partition, [])
        assert await page(client, "a", "absent", start=cursor("absent", 5)) == ([absent], None)
