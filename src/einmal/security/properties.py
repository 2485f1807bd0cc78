"""Properties files, and references in them to files and to the environment, as Kafka's config providers resolve them.

``${file:/path:key}`` is a key of a properties file, ``${file:/path}`` the whole file without its last line break
(FileConfigProvider, KIP-297); ``${env:NAME}`` is an environment variable (EnvVarConfigProvider, KIP-887). ``resolved``
takes the reading as an argument; ``read_file`` is the real one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from einmal.security.errors import SecuritySettingError

REFERENCE: Final = re.compile(r"\$\{(file|env):([^}]*)\}")
_ESCAPED: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_LINE_END: Final = re.compile(r"\r\n|[\r\n]")
_CONTROL: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_KEY: Final = re.compile(r"((?:\\.|[^\\=:\s])+)\s*[=:]?\s*", re.DOTALL)


def parse_properties(text: str) -> dict[str, str]:
    """A Java properties file (java.util.Properties): comments, continued lines, escapes; lines end where Java's do."""
    values: dict[str, str] = {}
    carried = ""
    for line in [*_LINE_END.split(text), ""]:
        line = carried + line.lstrip()
        if not carried and line[:1] in ("#", "!"):
            continue
        carried = ""
        if (len(line) - len(line.rstrip("\\"))) % 2:
            carried = line[:-1]
            continue
        match = _KEY.match(line)
        if match is not None:
            values[_unescaped(match[1])] = _unescaped(line[match.end() :])
    return values


def _unescaped(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _CONTROL.get(code, code)

    # Java's characters are units of UTF-16: those beyond U+FFFF are two escapes.
    return _ESCAPED.sub(one, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def resolved(name: str, value: str, environment: Mapping[str, str], read: Callable[[str], str]) -> str:
    """``value`` with its references replaced. ``read``: a file's text, OSError. Raises SecuritySettingError."""

    def replaced(match: re.Match[str]) -> str:
        if match[1] == "env":
            if match[2] not in environment:
                raise SecuritySettingError(
                    f"{name}: the environment has no {match[2]}", f"set it: export {match[2]}=..."
                )
            return environment[match[2]]
        path, colon, key = match[2].rpartition(":")
        if not colon:
            path, key = match[2], ""
        try:
            text = read(path)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise SecuritySettingError(
                f"{name}: {path} cannot be read: {reason}", "write ${file:/path:key}, or ${file:/path:} for all of it"
            ) from error
        if not key:
            return text.rstrip("\r\n")
        values = parse_properties(text)
        if key not in values:
            raise SecuritySettingError(f"{name}: {path} has no key {key!r}", f"add a line {key}=... to it")
        return values[key]

    return REFERENCE.sub(replaced, value)


def read_file(path: str) -> str:
    """The text of a file in UTF-8, as Kafka's FileConfigProvider reads it. Raises OSError or UnicodeDecodeError."""
    return Path(path).read_text(encoding="utf-8")
