"""Values of columns as JSON: from the text that PostgreSQL prints under ``SESSION``. Pure.

Numbers that JSON has are numbers, everything else is the text of its type: a numeric keeps all its digits. bytea is
base64, as in Debezium. A type that is not built in (an enumeration, a domain, an extension's) is text, too.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from einmal.ingest.postgresql.pgoutput import Unchanged, Value
from einmal.schemas.debezium_format import UNAVAILABLE

PRINTING: Final[Mapping[str, str]] = MappingProxyType(
    {
        "TimeZone": "UTC",
        "DateStyle": "ISO,YMD",
        "IntervalStyle": "iso_8601",
        "extra_float_digits": "1",
        "bytea_output": "hex",
        "lc_monetary": "C",
        "xmlbinary": "base64",
        "quote_all_identifiers": "off",
    }
)
"""Settings of a session that change how values print: without them the same row could have two texts."""
SESSION: Final[Mapping[str, str]] = MappingProxyType(
    {
        **PRINTING,
        # Names of tables, functions and types print with their schema where it is not this one.
        "search_path": "pg_catalog",
    }
)
"""Those of a capture."""


class UnreadableValue(Exception):
    """A text that its type does not print."""


def _boolean(text: str) -> bool:
    if text not in ("t", "f"):
        raise ValueError(f"boolean {text!r}")
    return text == "t"


def _integer(text: str) -> int:
    # 20 characters hold 64 bits; Python's own conversion takes any length, spaces and underscores.
    if len(text) > 20 or not text.lstrip("-").isdecimal():
        raise ValueError(f"integer {text[:20]!r}")
    return int(text)


def _floating(text: str) -> float | str:
    """NaN and the infinities are no numbers in JSON."""
    number = float(text)
    return number if math.isfinite(number) else text


def _base64(text: str) -> str:
    if not text.startswith("\\x"):
        raise ValueError("bytea without \\x")
    return base64.b64encode(bytes.fromhex(text[2:])).decode()


_JSON_OF: Final[Mapping[int, Callable[[str], Any]]] = MappingProxyType(
    {
        16: _boolean,
        17: _base64,
        20: _integer,  # int8
        21: _integer,  # int2
        23: _integer,  # int4
        26: _integer,  # oid
        700: _floating,  # float4
        701: _floating,  # float8
    }
)


def json_value(value: Value, type_id: int) -> Any:
    """Raises UnreadableValue."""
    if value is None:
        return None
    if isinstance(value, Unchanged):
        return UNAVAILABLE
    convert = _JSON_OF.get(type_id)
    if isinstance(value, bytes):
        raise UnreadableValue(f"a value of type {type_id} in binary format, which was not asked for")
    if convert is None:
        return value
    try:
        return convert(value)
    except ValueError as error:
        raise UnreadableValue(f"not a value of type {type_id}: {error}") from error
