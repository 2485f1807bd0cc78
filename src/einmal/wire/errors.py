"""What can be wrong with bytes.

WireError
├── Truncated         the bytes end before the message does, or a length points past the end
├── UnknownVersion    an API key or version that is not spoken here
├── Malformed         a field that cannot be what the schema says
└── CorruptBatch      a record batch whose magic, length, count or CRC-32C is wrong
    └── TooLarge      decompresses to more than is allowed
"""


class WireError(Exception):
    """Broken input. The connection, or the batch, that brought it is refused."""


class Truncated(WireError):
    pass


class UnknownVersion(WireError):
    pass


class Malformed(WireError):
    pass


class CorruptBatch(WireError):
    pass


class TooLarge(CorruptBatch):
    pass
