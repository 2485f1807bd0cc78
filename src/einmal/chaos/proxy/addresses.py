"""Answers that name brokers, changed so that a client behind the proxy stays behind it.

Metadata, FindCoordinator and DescribeCluster name brokers; answers of Produce, Fetch, ShareFetch and ShareAcknowledge
may name the new leader (KIP-951). DescribeTopicPartitions names ids only. ApiVersions is changed, too: a version
whose schema is not known here is not offered, because its addresses would pass unchanged, and rules that look into a
request would not apply to it.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeAlias

from kio.serial import entity_writer

from einmal.chaos.proxy.frames import AnswerFrame
from einmal.wire.errors import UnknownVersion
from einmal.wire.messages import encode_response_header, response_type

Address: TypeAlias = tuple[str, int]
Route: TypeAlias = Callable[[int, Address], Address]
"""From a broker's id and address to the address of the proxy."""

_API_VERSIONS: Final = 18
_NAMING: Final = frozenset((0, 1, 3, 10, 60, 78, 79))
"""Produce, Fetch, Metadata, FindCoordinator, DescribeCluster, ShareFetch, ShareAcknowledge."""
_VERSIONS_MAX: Final = 100
_NO_ERROR: Final = b"\0\0"


def behind_proxy(answer: AnswerFrame, route: Route) -> bytes:
    """The frame for the client: the broker's own where it names no broker. Raises WireError."""
    key = answer.request.header.api_key
    if key == _API_VERSIONS:
        return _with_known_versions(answer)
    if key not in _NAMING or not _may_name_brokers(key, answer.request.header.api_version):
        return answer.frame
    message = answer.message
    changed = _routed(message, route)
    return answer.frame if changed is message else encode_answer(answer.request.header, changed)


def encode_answer(header: Any, message: Any) -> bytes:
    """The frame of an answer to the request with this header. ``message``: kio's object of its version."""
    body = io.BytesIO()
    entity_writer(type(message))(body, message)
    return encode_response_header(header.api_key, header.api_version, header.correlation_id) + body.getvalue()


def _with_known_versions(answer: AnswerFrame) -> bytes:
    if answer.frame[answer.position : answer.position + len(_NO_ERROR)] != _NO_ERROR:
        # UNSUPPORTED_VERSION has the form of version 0, and the client asks again.
        return answer.frame
    message = answer.message
    keys = tuple(
        dataclasses.replace(key, max_version=newest)
        if (newest := _newest(key.api_key)) is not None and key.min_version <= newest < key.max_version
        else key
        for key in message.api_keys
    )
    if keys == message.api_keys:
        return answer.frame
    return encode_answer(answer.request.header, dataclasses.replace(message, api_keys=keys))


@cache
def _newest(api_key: int) -> int | None:
    """None for an API that is not known."""
    for version in range(_VERSIONS_MAX, -1, -1):
        try:
            response_type(api_key, version)
        except UnknownVersion:
            continue
        return version
    return None


@cache
def _may_name_brokers(api_key: int, version: int) -> bool:
    """Raises UnknownVersion."""
    fields = {field.name for field in dataclasses.fields(response_type(api_key, version))}
    return bool(fields & {"brokers", "coordinators", "host", "node_endpoints"})


def _routed(message: Any, route: Route) -> Any:
    """The message, or a copy of it in which every broker has its address at the proxy."""
    changes: dict[str, Any] = {}
    names = {field.name for field in dataclasses.fields(message)}
    if "host" in names:
        node_id = message.broker_id if "broker_id" in names else message.node_id
        # An answer without a coordinator has -1 as its port.
        if message.port > 0:
            host, port = route(node_id, (message.host, message.port))
            changes |= {"host": host, "port": port}
    for name in names & {"brokers", "coordinators", "node_endpoints"}:
        changes[name] = tuple(_routed(broker, route) for broker in getattr(message, name))
    changed = dataclasses.replace(message, **changes)
    return message if changed == message else changed
