"""The rows of the campaign, by number: five kinds of bad ones, and what repairs them. Pure.

Four kinds cannot be decoded. The fifth can, and is rejected by a constraint of the table.
"""

from __future__ import annotations

import json
import re
from typing import Final

from tests.spark.bad_rows import KINDS, bad

BAD_IN: Final = 100
"""One row in so many is bad."""
TABLE: Final = "CREATE TABLE payments (id bigint NOT NULL, amount double precision CHECK (amount >= 0))"
"""Without a key: a row that was loaded twice would be there twice."""
_REASONS: Final = (*KINDS[:4], "check_violation")
_NUMBERS: Final = re.compile(rb"\d+")


def is_bad(number: int) -> bool:
    return number % BAD_IN == BAD_IN - 1


def reason(number: int) -> str:
    """Of a bad row."""
    return _REASONS[(number // BAD_IN) % 5]


def clean(number: int) -> bytes:
    """What the row should have been."""
    return json.dumps({"id": number, "card": f"card-{number % 7}", "amount": number % 1000}).encode()


def sent(number: int) -> bytes:
    """What was sent."""
    return _bad(number) if is_bad(number) else clean(number)


def _bad(number: int) -> bytes:
    kind = (number // BAD_IN) % 5
    # The last digit decides the kind, the others are the row's number.
    if kind < len(_REASONS) - 1:
        return bad(10 * number + kind)
    return json.dumps({"id": 10 * number, "amount": -1}).encode()


def repaired(value: bytes) -> bytes:
    """The clean row of a bad one."""
    found = int(_NUMBERS.search(value)[0])  # type: ignore[index] # every kind has its number
    if found > 2**70 - 1:
        found -= 2**70
    return clean(found // 10)


def output(number: int) -> str:
    """What the pipeline makes of a clean row: id and amount."""
    return f"{number}:{number % 1000}.0"
