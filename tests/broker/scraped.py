"""The monitoring pages of a node, as a scraper reads them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from einmal.broker.node import Node


async def get(node: Node, path: str, method: str = "GET") -> tuple[int, bytes]:
    """The status and the body of a page."""
    assert node.monitoring is not None
    reader, writer = await asyncio.open_connection(*node.monitoring.endpoint)
    try:
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: einmal\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    return int(head.split(b" ")[1]), body


async def ready(node: Node) -> tuple[int, Any]:
    status, body = await get(node, "/health/ready")
    return status, json.loads(body)


class Samples:
    """The samples of a page."""

    def __init__(self, body: bytes) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(body.decode())}
        self._values = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    @classmethod
    async def of(cls, node: Node) -> Samples:
        status, body = await get(node, "/metrics")
        assert status == 200, body
        return cls(body)

    def value(self, name: str, **labels: object) -> float | None:
        """None: there is no such sample."""
        return self._values.get((name, frozenset((key, str(value)) for key, value in labels.items())))

    @property
    def names(self) -> set[str]:
        return {name for name, _labels in self._values}
