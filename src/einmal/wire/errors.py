"""Errors of decoding.

WireError
├── Truncated         the bytes end before the message does, or a length points past the end
├── UnknownVersion    an API key or version that is not supported
├── Malformed         a field that does not fit the schema
├── OtherProtocol     the client speaks TLS or HTTP
├── Unanswered        refused records in a request that has no response
└── CorruptBatch      a record batch whose magic, length, count or CRC-32C is wrong
    ├── InvalidRecord one of its records is malformed
    └── TooLarge      decompresses to more than is allowed
"""


class WireError(Exception):
    """Broken input. Its connection, or its batch, is refused."""


class Truncated(WireError):
    pass


class UnknownVersion(WireError):
    pass


class Malformed(WireError):
    pass


class OtherProtocol(WireError):
    def __init__(self, protocol: str) -> None:
        super().__init__(f"the client speaks {protocol}")
        self.protocol = protocol


class Unanswered(WireError):
    """The sender can be notified only by closing the connection."""


class CorruptBatch(WireError):
    pass


class InvalidRecord(CorruptBatch):
    """``index``: which record of the batch, counted from 0."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"record {index}: {reason}")
        self.index = index


class TooLarge(CorruptBatch):
    pass


class TooLong(Exception):
    """A check would exceed the caller's limit of elements (records, headers, compressed blocks): nothing is decided."""
