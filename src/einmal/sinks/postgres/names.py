"""Names in PostgreSQL: tables as options name them, and the names of what a pipeline creates. Pure."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from einmal.options.values import OptionError

NAME_BYTES_MAX: Final = 63
"""PostgreSQL cuts longer identifiers, so that two names could become one."""
RECORDS: Final = "einmal_commits"
_PART: Final = re.compile(r'\s*(?:"((?:[^"\x00]|"")+)"|([A-Za-z_\x80-\U0010ffff][\w$]*))\s*')
_STAGING: Final = re.compile(r"einmal_staging_[0-9a-f]{12}_(\d+)_(\d+)_(\d+)")
_APPLICATION: Final = re.compile(r"einmal ([0-9a-f]{12})(?: (\d+))?")


@dataclass(frozen=True, slots=True)
class TableName:
    """``schema`` None: found by the session's search_path. Exact, without quotes."""

    schema: str | None
    name: str

    def __str__(self) -> str:
        return ".".join(quoted(part) for part in (self.schema, self.name) if part is not None)


def quoted(name: str) -> str:
    """As SQL writes it: in quotes where it needs them. For messages; statements use ``psycopg.sql``."""
    return name if re.fullmatch(r"[a-z_][a-z0-9_$]*", name) else '"' + name.replace('"', '""') + '"'


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
    for part in parts:
        if len(part.encode()) > NAME_BYTES_MAX:
            raise OptionError(f'option "{option}": {part!r} is longer than {NAME_BYTES_MAX} bytes')
    return parts


def short_hash(pipeline: str) -> str:
    """Return the hash that stands for a pipeline's name, which may be longer than an identifier. Equal hashes of two
    names are distinguished by the comment on the table."""
    return hashlib.sha256(pipeline.encode()).hexdigest()[:12]


def staging_prefix(pipeline: str) -> str:
    return f"einmal_staging_{short_hash(pipeline)}_"


def staging_name(pipeline: str, epoch: int, number: int, batch_id: int) -> str:
    """``number``: of the transaction under the epoch: every attempt at a batch has a table of its own."""
    name = f"{staging_prefix(pipeline)}{epoch}_{number}_{batch_id}"
    assert len(name) <= NAME_BYTES_MAX, name
    return name


def staging_comment(pipeline: str) -> str:
    return f"einmal: rows of pipeline {pipeline!r} that are not committed yet"


def epoch_of_staging(name: str) -> int | None:
    match = _STAGING.fullmatch(name)
    return int(match[1]) if match else None


def application_name(schema: str, pipeline: str, epoch: int | None) -> str:
    """Return the name that ``pg_stat_activity`` shows for the sessions of a pipeline, of driver and tasks. ``schema``:
    of its record; two schemas of a database can have pipelines of one name."""
    return f"einmal {_session_hash(schema, pipeline)}" + ("" if epoch is None else f" {epoch}")


def epoch_of_application(schema: str, pipeline: str, name: str) -> int | None:
    """The epoch that a session of this pipeline works under; None: another's, or it has not acquired one."""
    match = _APPLICATION.fullmatch(name)
    return int(match[2]) if match and match[2] and match[1] == _session_hash(schema, pipeline) else None


def _session_hash(schema: str, pipeline: str) -> str:
    # No name has a NUL, so no two pairs are one text.
    return short_hash(f"{schema}\0{pipeline}")
