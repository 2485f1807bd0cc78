"""The business key of a record: which event it is about, as the source's owner declares it. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from einmal.client.errors import ConfigError
from einmal.types import Header

KEYS_MAX: Final = 1_000_000
_DIGEST_SIZE: Final = 16
_HEADER: Final = "header:"
_FIELD: Final = "value."

KeyOf = Callable[[bytes | None, bytes, Sequence[Header]], bytes | None]
"""The business key of a record by key, value and headers; None: it has none."""


@dataclass(frozen=True, slots=True)
class Deduplicate:
    """Which records are duplicates: those with the business key of a record that is written, and a timestamp at most
    ``window_ms`` from its own.

    ``key``: "key" (of the record), "header:NAME", or "value.FIELD" (a field of a JSON object: text, a number or a truth
    value). ``keys_max``: keys in memory, about 200 bytes each; an ingester that needs more stops. Raises ConfigError.
    """

    key: str
    window_ms: int
    keys_max: int = KEYS_MAX

    def __post_init__(self) -> None:
        if self.key != "key" and not any(
            self.key.startswith(prefix) and len(self.key) > len(prefix) for prefix in (_HEADER, _FIELD)
        ):
            raise ConfigError(
                meaning=f"the business key {self.key!r} is not known",
                what_to_do='set "key", "header:NAME" or "value.FIELD"',
            )
        for name, value in (("window", self.window_ms), ("max.keys", self.keys_max)):
            if value < 1:
                raise ConfigError(meaning=f"the {name} of a deduplication is {value}", what_to_do="set at least 1")


def key_of(declared: Deduplicate) -> KeyOf:
    """Reads the business key as it is declared. An empty one is none: all events that lack one would be duplicates of
    each other."""
    if declared.key == "key":
        return lambda key, value, headers: key or None
    name = declared.key.partition(_HEADER if declared.key.startswith(_HEADER) else _FIELD)[2]
    if declared.key.startswith(_FIELD):
        return lambda key, value, headers: _field(value, name)
    # Kafka's own clients return the last of several headers with one name, too.
    return lambda key, value, headers: (
        next((header.value for header in reversed(headers) if header.key == name), None) or None
    )


class _Number(str):
    """The value of a JSON number, exactly: two numbers are equal if and only if these texts are."""


def _field(value: bytes, name: str) -> bytes | None:
    """A number and the same digits as text are two keys. What Python and others write for "no number" is no key, as an
    empty text is."""
    try:
        document = json.loads(value, parse_int=_integer, parse_float=_decimal, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    field = document.get(name) if isinstance(document, dict) else None
    if isinstance(field, _Number):
        return field.encode()
    return json.dumps(field).encode() if isinstance(field, bool) or (isinstance(field, str) and field) else None


def _integer(digits: str) -> _Number:
    return _Number("0" if digits == "-0" else digits)


def _decimal(text: str) -> _Number:
    """With all its digits: a double would make one key of many."""
    mantissa, _, exponent = text.lower().partition("e")
    whole, _, fraction = mantissa.removeprefix("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    kept = digits.rstrip("0")
    if not kept:
        return _Number("0e0")
    power = int(exponent or "0") - len(fraction) + len(digits) - len(kept)
    return _Number(f"{'-' if mantissa.startswith('-') else ''}{kept}e{power}")


def key_digest(topic: str, key: bytes) -> bytes:
    """Return the digest of a business key in one topic. Two keys with one digest would lose a record: 128 bits make
    that less likely than a disk that changes it."""
    name = topic.encode()
    return blake2b(len(name).to_bytes(4) + name + key, digest_size=_DIGEST_SIZE).digest()


def value_digest(value: bytes) -> int:
    """64 bits: decides only whether a removed duplicate is reported as a different one."""
    return int.from_bytes(blake2b(value, digest_size=8).digest())
