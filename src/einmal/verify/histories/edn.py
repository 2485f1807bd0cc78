"""EDN, the notation of Clojure's data, as far as Jepsen's histories use it: one form in a line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring
from typing import Final, TypeAlias

_TOKEN: Final = re.compile(
    r"""[\s,]*(?:
    (?P<string>"(?:\\.|[^"\\])*") | (?P<open>\#?\{|\[|\() | (?P<close>[\])}]) |
    (?P<tag>\#[^\s,\[\](){}"]+) | (?P<atom>[^\s,\[\](){}"]+)
    )""",
    re.VERBOSE,
)
_NUMBER: Final = re.compile(r"([+-]?\d+)N?")
_DECIMAL: Final = re.compile(r"([+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)M?")
_WORDS: Final = {"nil": None, "true": True, "false": False}
_CLOSING: Final = {"[": "]", "(": ")", "{": "}", "#{": "}"}

EdnValue: TypeAlias = "None | bool | int | float | str | Sequence[EdnValue] | Mapping[EdnValue, EdnValue]"


class Keyword(str):
    """``:name``. Equal to the text without the colon."""

    __slots__ = ()


class EdnWrong(ValueError):
    """The text is not EDN."""


def parse(text: str) -> EdnValue:
    """Return the form that the text is. Tags are left out, symbols become text, sets lists. Raises EdnWrong."""
    forms: list[EdnValue] = []
    nested: list[tuple[str, list[EdnValue]]] = [("", forms)]
    position, text = 0, text.rstrip().rstrip(",")
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise EdnWrong(f"unexpected text at character {position + 1}: {text[position : position + 20]!r}")
        position = token.end()
        if token["open"]:
            nested.append((token["open"], []))
        elif token["close"]:
            opening, content = nested.pop()
            if _CLOSING.get(opening) != token["close"]:
                raise EdnWrong(f"unexpected {token['close']!r} at character {position}")
            nested[-1][1].append(_map(content) if opening == "{" else content)
        elif token["string"]:
            nested[-1][1].append(json.loads(token["string"], strict=False))
        elif token["atom"]:
            nested[-1][1].append(_atom(token["atom"]))
    if len(nested) > 1 or len(forms) != 1:
        raise EdnWrong("expected one complete form in a line")
    return forms[0]


def _map(content: list[EdnValue]) -> Mapping[EdnValue, EdnValue]:
    if len(content) % 2 or any(isinstance(key, (list, dict)) for key in content[::2]):
        raise EdnWrong("a map needs a value for each key; keys are numbers, text or keywords")
    return dict(zip(content[::2], content[1::2], strict=True))


def _atom(text: str) -> EdnValue:
    if text in _WORDS:
        return _WORDS[text]
    if text.startswith(":"):
        return Keyword(text[1:])
    if number := _NUMBER.fullmatch(text):
        return int(number[1])
    if decimal := _DECIMAL.fullmatch(text):
        return float(decimal[1])
    return text


def write(value: EdnValue) -> str:
    """Return a form in one line."""
    # Most of a history are offsets with their values: the abstract types below are slow to ask for.
    if type(value) is str:
        return encode_basestring(value)
    if type(value) is int:
        return str(value)
    if type(value) is list:
        return "[" + " ".join(map(write, value)) + "]"
    if isinstance(value, Keyword):
        return f":{value}"
    if value is None:
        return "nil"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{write(key)} {write(mapped)}" for key, mapped in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + " ".join(map(write, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
