"""The bytes of a message that nobody vouches for yet.

A module of its own, because mypyc compiles no class that inherits from ``bytes``.
"""

from __future__ import annotations


class Message(bytes):
    """The bytes of a message, and how many array elements may still be read from them."""

    elements_left: int

    @classmethod
    def of(cls, frame: bytes | bytearray, elements_max: int) -> Message:
        message = cls(frame)
        message.elements_left = elements_max
        return message
