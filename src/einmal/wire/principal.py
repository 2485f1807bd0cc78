"""A principal as it travels in an Envelope: DefaultPrincipalData, version 0 (KIP-590).

Format: the version (INT16), type and name (compact strings), whether a delegation token authenticated it, tags.
"""

from __future__ import annotations

import struct

from einmal.security.principal import Principal
from einmal.wire.errors import Malformed
from einmal.wire.primitives import INT16, encode_string, read_string

_VERSION = 0


def encode_principal(principal: Principal) -> bytes:
    return INT16.pack(_VERSION) + encode_string(principal.kind, True) + encode_string(principal.name, True) + b"\0\0"


def decode_principal(data: bytes) -> Principal:
    """Raises WireError."""
    try:
        (version,) = INT16.unpack_from(data)
        if version != _VERSION:
            raise Malformed(f"expected a principal of version {_VERSION}, found {version}")
        kind, position = read_string(data, 2, True)
        name, position = read_string(data, position, True)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise Malformed(f"principal: {error}") from error
    if not kind or not name:
        raise Malformed("principal without a type or a name")
    return Principal(kind, name)
