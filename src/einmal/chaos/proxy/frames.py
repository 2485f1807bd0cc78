"""A request and its answer, as frames on a connection; their messages are decoded when first asked for.

Only the common start of every header is read beforehand: the proxy forwards what it cannot decode.
"""

from __future__ import annotations

import struct
from functools import cached_property
from typing import Any, Final

from kio.serial import entity_reader
from kio.serial.errors import SerialError

from einmal.wire.errors import Malformed, WireError
from einmal.wire.messages import (
    RequestHeader,
    api_name,
    decode_request_header,
    request_type,
    response_body_position,
    response_type,
)

_CORRELATION_ID: Final = struct.Struct(">i")
_SAME_ANSWER: Final = {(18, 5): (18, 4)}
"""Versions that kio does not know, and those with the same answer: KIP-1242 changes only the request of ApiVersions."""


class RequestFrame:
    """``broker``: the node id of the broker that it goes to, None where the proxy does not know it yet."""

    def __init__(self, frame: bytes, connection: int, broker: int | None) -> None:
        """``connection``: its number in the proxy. Raises WireError for a frame that begins with no header."""
        self.frame = frame
        self.connection = connection
        self.broker = broker
        # The tagged fields of the header are not looked at: only a known version has them at a known position.
        header, _ = decode_request_header(frame, flexible=_never)
        self.header: RequestHeader = header

    @property
    def api(self) -> str:
        """``EndTxn``; the key of an API that is not known."""
        return api_name(self.header.api_key)

    @cached_property
    def message(self) -> Any:
        """The request as kio's object of its version. Raises WireError."""
        key, version = self.header.api_key, self.header.api_version
        schema = request_type(key, version)
        _, position = decode_request_header(self.frame)
        return _decode(schema, self.frame, position)

    @cached_property
    def transactional_ids(self) -> frozenset[str]:
        """The transactional ids that the request names; empty for a request that cannot be decoded."""
        try:
            message = self.message
        except WireError:
            return frozenset()
        ids = {
            getattr(structure, "transactional_id", None)
            for structure in (message, *getattr(message, "transactions", ()))
        }
        ids.add(getattr(message, "v3_and_below_transactional_id", None))
        return frozenset(transactional_id for transactional_id in ids if transactional_id)


class AnswerFrame:
    """The answer to ``request``, as the broker sent it."""

    def __init__(self, request: RequestFrame, frame: bytes) -> None:
        self.request = request
        self.frame = frame

    @cached_property
    def position(self) -> int:
        """Where the body begins. Raises WireError."""
        header = self.request.header
        return response_body_position(header.api_key, header.api_version, self.frame)

    @cached_property
    def message(self) -> Any:
        """The answer as kio's object of the request's version. Raises WireError."""
        schema = response_type(*_schema_of_answer(self.request.header))
        return _decode(schema, self.frame, self.position)


def correlation_id(answer: bytes) -> int | None:
    """The correlation id of an answer; None for a frame that is too short."""
    return _CORRELATION_ID.unpack_from(answer)[0] if len(answer) >= _CORRELATION_ID.size else None


def _schema_of_answer(header: RequestHeader) -> tuple[int, int]:
    """API key and version."""
    asked = header.api_key, header.api_version
    return _SAME_ANSWER.get(asked, asked)


def _never(_api_key: int, _version: int) -> bool:
    return False


def _decode(schema: Any, frame: bytes, position: int) -> Any:
    try:
        message, _size = entity_reader(schema)(frame, position)
    except (SerialError, ValueError) as error:
        raise Malformed(f"{schema.__name__}: {error}") from error
    return message
