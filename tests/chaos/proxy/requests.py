"""Requests as the proxy receives them, built by kio."""

from __future__ import annotations

import dataclasses
import io
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from einmal.chaos.proxy.frames import RequestFrame
from einmal.wire.messages import encode_request_header, request_type
from einmal.wire.schemas import unwrap
from tests.wire.kio_messages import encode

_VALUES: Final = {
    "string": "name",
    "bytes": b"x",
    "records": b"",
    "bool": False,
    "uuid": UUID(int=1),
    "float64": 0.5,
    "error_code": ErrorCode.none,
    "timedelta_i32": timedelta(seconds=1),
    "timedelta_i64": timedelta(seconds=1),
    "datetime_i64": datetime(2025, 1, 1, tzinfo=UTC),
}


def request(
    api_key: int,
    version: int,
    *,
    correlation_id: int = 7,
    client_id: str | None = "client",
    broker: int | None = 1,
    **fields: Any,
) -> RequestFrame:
    """``fields``: of the message; others have their defaults."""
    header = encode_request_header(api_key, version, correlation_id, client_id)
    return RequestFrame(header + encode(request_type(api_key, version), fields), 1, broker)


def filled_request(api_key: int, version: int) -> RequestFrame:
    """A request whose arrays have one element each, and whose other fields have no default."""
    body = io.BytesIO()
    schema = request_type(api_key, version)
    entity_writer(schema)(body, filled(schema))
    return RequestFrame(encode_request_header(api_key, version, 7, "client") + body.getvalue(), 1, 1)


def filled(schema: Any) -> Any:
    """An object of a schema of kio whose arrays have one element each."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(schema):
        inner, _, is_array = unwrap(field.type)
        kind = field.metadata.get("kafka_type")
        value = filled(inner) if dataclasses.is_dataclass(inner) else _VALUES.get(str(kind), 1)
        values[field.name] = (value,) if is_array else value
    return schema(**values)
