"""Documents for programs: JSON on one line, or YAML in blocks, which any reader of YAML 1.1 or 1.2 takes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from einmal.cli.printing.formats import Format

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_NO_TEXT: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
"""Words that are no text in YAML 1.1, whatever their case."""
_KEY_MAX: Final = 1_000
"""Characters. Readers look for the colon of a key without a mark for 1,024 of them."""
_PAIR: Final = re.compile(r"\\\\|\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}")
"""A backslash, or a character beyond 16 bits, for which JSON has two escapes."""


def encoded(value: Any, output: Format, *, default: Callable[[Any], Any] | None = None) -> str:
    """Return one document, without a last line feed. ``default``: as of ``json.dumps``."""
    text = json.dumps(value, default=default)
    # What JSON makes of a value (keys that are numbers, tuples, ``default``) is the same in both.
    return "\n".join(("---", *_block(json.loads(text)))) if output is Format.YAML else text


def _block(value: Any) -> Iterator[str]:
    """The lines of a value, from the left edge."""
    if isinstance(value, dict) and value:
        for key, member in value.items():
            name = _scalar(key)
            if len(name) > _KEY_MAX:
                yield f"? {name}"
                name = ""
            if isinstance(member, dict | list) and member:
                yield f"{name}:"
                yield from (f"  {line}" for line in _block(member))
            else:
                yield f"{name}: {_scalar(member)}"
    elif isinstance(value, list) and value:
        for member in value:
            lines = _block(member)
            yield f"- {next(lines)}"
            yield from (f"  {line}" for line in lines)
    else:
        yield _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _NO_TEXT:
        return value
    text = json.dumps(value)
    if isinstance(value, float) and "e" in text and "." not in text:
        # By YAML 1.1 it would be a text.
        return text.replace("e", ".0e")
    return _PAIR.sub(_one_escape, text) if isinstance(value, str) else text


def _one_escape(match: re.Match[str]) -> str:
    return match[0] if match[0] == r"\\" else f"\\U{ord(json.loads(chr(34) + match[0] + chr(34))):08x}"
