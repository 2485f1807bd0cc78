"""Which settings hold secrets, by their names; mappings of settings that print without them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from einmal.security.secret import HIDDEN

SECRET_NAMES: Final = (
    r"password|secret|token$|token\.provider$|jaas\.config|\.key$|key\.pem$|private|credential|user\.info"
)
"""A regular expression, in Java's syntax too, to be searched for without regard to case."""
_SECRET: Final = re.compile(SECRET_NAMES, re.IGNORECASE)
_ASSIGNED: Final = re.compile(
    r"""(?P<name>[\w.-]+)(?P<separator>["']?\s*[=:]\s*|\s+)(?P<value>'[^']*'|"(?:\\.|[^"\\])*"|[^\s,;}=]+)"""
)
_KEY: Final = re.compile(r"[-_]key$", re.IGNORECASE)
_FILE: Final = re.compile(r"(file|path|location|dir|directory)$", re.IGNORECASE)
_CREDENTIALS: Final = re.compile(r"://\S+@")
_URL: Final = re.compile(r"://[^/@\s]+@")


def is_secret(name: str) -> bool:
    """Whether a setting of this name, with or without a prefix such as ``kafka.``, holds a secret."""
    return _SECRET.search(name) is not None


def redacted(settings: Mapping[str, object]) -> dict[str, object]:
    """The settings, with ``[hidden]`` in place of every secret and of credentials in a URL."""
    return {
        name: HIDDEN if is_secret(name) else _URL.sub(f"://{HIDDEN}@", value) if isinstance(value, str) else value
        for name, value in settings.items()
    }


def redacted_command(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command, with ``[hidden]`` in place of what looks like a secret: the value of a setting or an
    option by its name, in the words of a shell's command too, and credentials in URLs."""
    shown: list[str] = []
    before = ""
    for argument in arguments:
        if before.startswith("-") and "=" not in before and _is_named_secret(before):
            shown.append(HIDDEN)
        elif before == "-X" or argument.startswith("-X"):
            shown.append(_redacted_setting(argument))
        else:
            shown.append(_redacted_words(argument))
        before = argument
    return shown


def _redacted_setting(argument: str) -> str:
    """``KEY=VALUE``, whatever is in the value."""
    name, equals, _ = argument.partition("=")
    return f"{name}={HIDDEN}" if equals and is_secret(name.strip()) else _redacted_words(argument)


def _redacted_words(text: str) -> str:
    parts, position = [], 0
    while (match := _ASSIGNED.search(text, position)) is not None:
        separator = match["separator"]
        # A word that only stands before another one is no name, unless it is an option's.
        if _is_named_secret(match["name"]) and (separator.strip() or match["name"].startswith("-")):
            parts += [text[position : match.start("value")], HIDDEN]
            position = match.end("value")
        else:
            # The value may be an assignment itself.
            parts.append(text[position : match.start("value")])
            position = match.start("value")
    return _CREDENTIALS.sub(f"://{HIDDEN}@", "".join(parts) + text[position:])


def _is_named_secret(name: str) -> bool:
    """As ``is_secret``, in the spelling of options and variables; the name of a file is no secret."""
    return (is_secret(name) or _KEY.search(name) is not None) and _FILE.search(name) is None


class RedactedDict(dict[str, str]):
    """Settings whose repr and text hide secrets. Pickles with its values, for Spark's executors."""

    def __repr__(self) -> str:
        return repr(redacted(self))

    def __or__(self, other: Mapping[str, str]) -> RedactedDict:  # type: ignore[override]  # narrower than dict's
        return RedactedDict({**self, **other})

    def __ror__(self, other: Mapping[str, str]) -> RedactedDict:  # type: ignore[override]  # narrower than dict's
        return RedactedDict({**other, **self})
