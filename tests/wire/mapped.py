"""Messages by plain mappings, as a client writes requests, and ours as the broker reads them."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any, Final

from einmal.wire import api
from einmal.wire.message_writer import message_writer
from einmal.wire.messages import Api, Fields, response_type

APIS: Final[dict[int, Api[Any, Any]]] = {
    module.API.key: module.API
    for name in pkgutil.iter_modules(api.__path__)
    for module in (importlib.import_module(f"{api.__name__}.{name.name}"),)
}
"""By key, in no order."""


def decode_request(api_key: int, version: int, frame: bytes, position: int) -> Any:
    """The body at ``position``, as the broker reads it."""
    return APIS[api_key].decode_request(version, frame, position)


def encode_response(api_key: int, version: int, fields: Fields) -> bytes:
    """The body of a response."""
    encoded = bytearray()
    message_writer(response_type(api_key, version))(encoded, fields)
    return bytes(encoded)
