"""A value that no log, error, repr or formatted text shows."""

from __future__ import annotations

import hmac
from typing import Any, Final

HIDDEN: Final = "[hidden]"
"""As Kafka prints a password."""


class Secret:
    """A password, key or token. ``reveal()`` returns the value; every other text of it is ``[hidden]``.

    Pickles with its value, because settings travel to Spark's executors.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return HIDDEN

    def __format__(self, _spec: str) -> str:
        return HIDDEN

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Secret, (self._value,))
