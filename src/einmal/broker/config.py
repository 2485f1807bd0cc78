"""The broker's settings: Kafka's names, defaults and units, in one table.

A setting's dotted name is written once, beside its field. Knows where values come from (``server.properties``,
``-X key=value``) but not what they do.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


def _key(name: str, default: Any) -> Any:
    return field(default=default, metadata={"key": name})


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    node_id: int = _key("node.id", 1)
    host: str = "127.0.0.1"
    port: int = 9092
    data_dir: str = _key("log.dirs", "")
    socket_request_max_bytes: int = _key("socket.request.max.bytes", 104_857_600)
    max_connections: int = _key("max.connections", 10_000)
    connections_max_idle_ms: int = _key("connections.max.idle.ms", 600_000)
    transaction_version: int = 2


KEYS = {item.metadata["key"]: item for item in fields(BrokerConfig) if "key" in item.metadata}
