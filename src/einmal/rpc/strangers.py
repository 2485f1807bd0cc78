"""Guess at what answers on a port that is no Kafka port, by its first bytes. For error messages."""

from __future__ import annotations

from typing import Final

HEAD_SIZE: Final = 16
"""Bytes worth keeping of an answer."""

_TLS_ALERT: Final = (b"\x15\x03", b"\x16\x03")
_HTTP: Final = (b"HTTP/", b"<!DOC", b"<html")
_IS_KAFKA: Final = "is this the port of a Kafka listener?"
AFTER_THE_FIRST_ANSWER: Final = (
    "; it answered ApiVersions only: a listener that requires SASL behaves like this (security.protocol)"
)


def suspicion(head: bytes) -> str:
    """In words, to be appended to what went wrong; ``head``: the first bytes that came, or none."""
    if not head:
        return (
            f"; it gave no answer to ApiVersions: {_IS_KAFKA} A TLS listener may behave like this: set "
            "security.protocol to SSL or SASL_SSL"
        )
    if head.startswith(_TLS_ALERT):
        return "; the answer is TLS: set security.protocol to SSL or SASL_SSL, or use the port of a PLAINTEXT listener"
    if head.startswith(_HTTP):
        return f"; the answer is HTTP: {_IS_KAFKA}"
    if head[:8].isascii() and head[:8].decode().isprintable():
        return f"; the answer begins with {head[:8].decode()!r}: {_IS_KAFKA}"
    return ""
