"""Who sends a request: a type and a name, ``User:alice``, as in Apache Kafka's KafkaPrincipal. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from einmal.security.errors import SecuritySettingError

USER: Final = "User"


class Principal(NamedTuple):
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""Whoever is connected to a listener that authenticates nobody."""


def parse_principal(text: str) -> Principal:
    """``User:alice``. Raises SecuritySettingError."""
    kind, separator, name = text.partition(":")
    if not separator or not kind or not name:
        raise SecuritySettingError(f"{text!r} is not a principal", "write its type and name, such as User:alice")
    if kind != USER and kind.lower() == USER.lower():
        # Nobody would ever be this one: what is denied to it is denied to nobody.
        raise SecuritySettingError(f"{text!r}: the type of a principal has one spelling", f"write {USER}:{name}")
    return Principal(kind, name)
