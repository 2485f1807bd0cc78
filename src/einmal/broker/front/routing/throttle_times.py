"""``throttle_time_ms`` of an answer, whether it is a response or encoded already.

Nearly all responses begin with it. Produce, where it is near the end, states it itself.
"""

from __future__ import annotations

import dataclasses
import struct
from functools import cache
from typing import Final, cast

from einmal.broker.front.context import Body
from einmal.wire.messages import RequestHeader, Values, response_type

_FIELD: Final = "throttle_time"
_INT32: Final = struct.Struct(">i")


@cache
def _begins_with_it(api_key: int, version: int) -> bool:
    fields = dataclasses.fields(response_type(api_key, version))
    return bool(fields) and fields[0].name == _FIELD


def own_throttle_ms(header: RequestHeader, body: Body) -> int:
    """Return the time that a handler, or the active controller's answer, states."""
    if isinstance(body, tuple):
        return cast(int, getattr(body, _FIELD, 0))
    if isinstance(body, bytes) and len(body) >= _INT32.size and _begins_with_it(header.api_key, header.api_version):
        return cast(int, _INT32.unpack_from(body)[0])
    return 0


def with_throttle_ms(header: RequestHeader, body: Body, milliseconds: int) -> Body:
    """The answer with the time; without a change if its version does not have the field."""
    if isinstance(body, tuple):
        replace = getattr(body, "_replace", None)
        return cast(Values, replace(**{_FIELD: milliseconds})) if replace and hasattr(body, _FIELD) else body
    if isinstance(body, bytes) and len(body) >= _INT32.size and _begins_with_it(header.api_key, header.api_version):
        return _INT32.pack(milliseconds) + body[_INT32.size :]
    if isinstance(body, list) and body and _begins_with_it(header.api_key, header.api_version):
        return [_INT32.pack(milliseconds), memoryview(body[0])[_INT32.size :], *body[1:]]
    return body
