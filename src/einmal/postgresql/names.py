"""Names in PostgreSQL: tables as options name them, and as SQL writes them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from einmal.options.values import OptionError

NAME_BYTES_MAX: Final = 63
"""PostgreSQL cuts longer identifiers, so that two names could become one."""
_PART: Final = re.compile(r'\s*(?:"((?:[^"\x00]|"")+)"|([A-Za-z_\x80-\U0010ffff][\w$]*))\s*')


@dataclass(frozen=True, slots=True)
class TableName:
    """``schema`` None: found by the session's search_path. Exact, without quotes."""

    schema: str | None
    name: str

    def __str__(self) -> str:
        return ".".join(map(quoted, self._parts()))

    @property
    def in_quotes(self) -> str:
        """Every part in quotes, for ``to_regclass``, which would fold them."""
        return ".".join(map(_in_quotes, self._parts()))

    def _parts(self) -> list[str]:
        return [name for name in (self.schema, self.name) if name is not None]


def quoted(name: str) -> str:
    """As SQL writes it: in quotes where it needs them. For messages; statements use ``psycopg.sql``."""
    return name if re.fullmatch(r"[a-z_][a-z0-9_$]*", name) else _in_quotes(name)


def _in_quotes(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def identifier(option: str, text: str) -> str:
    """One name as SQL reads it: in lower case, unless it is in quotes. Raises OptionError."""
    parts = _parts(option, text)
    if len(parts) != 1:
        raise OptionError(f'option "{option}" is one name, not {text!r}')
    return parts[0]


def table_name(option: str, text: str) -> TableName:
    """``table`` or ``schema.table``, as SQL reads them. Raises OptionError."""
    parts = _parts(option, text)
    if len(parts) > 2:
        raise OptionError(f'option "{option}" is table or schema.table, not {text!r}')
    return TableName(parts[0] if len(parts) == 2 else None, parts[-1])


def _parts(option: str, text: str) -> list[str]:
    parts: list[str] = []
    at = 0
    while match := _PART.match(text, at):
        in_quotes, plain = match.groups()
        parts.append(plain.lower() if plain else in_quotes.replace('""', '"'))
        at = match.end()
        if text[at : at + 1] != ".":
            break
        at += 1
    if match is None or at != len(text):
        raise OptionError(
            f'option "{option}" is not a name: {text!r}\nhint: quote names with other characters: \'"My Schema"."T"\''
        )
    for name in parts:
        if len(name.encode()) > NAME_BYTES_MAX:
            raise OptionError(f'option "{option}": {name!r} is longer than {NAME_BYTES_MAX} bytes')
    return parts
