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
_ASSIGNED: Final = re.compile(r"([^\s=]+)=(\S+)")
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
    """The arguments of a command, with ``[hidden]`` in place of secrets: of ``-X sasl.password=...``, in the words of a
    shell's command, and in URLs."""
    return [_redacted_argument(argument) for argument in arguments]


def _redacted_argument(argument: str) -> str:
    name, equals, _ = argument.partition("=")
    # A value of one setting may have spaces; a command for the shell has several words of its own.
    if equals and not re.search(r"\s", name) and is_secret(name):
        return f"{name}={HIDDEN}"
    words = _ASSIGNED.sub(lambda match: f"{match[1]}={HIDDEN}" if is_secret(match[1]) else match[0], argument)
    return _URL.sub(f"://{HIDDEN}@", words)


class RedactedDict(dict[str, str]):
    """Settings whose repr and text hide secrets. Pickles with its values, for Spark's executors."""

    def __repr__(self) -> str:
        return repr(redacted(self))

    def __or__(self, other: Mapping[str, str]) -> RedactedDict:  # type: ignore[override]  # narrower than dict's
        return RedactedDict({**self, **other})

    def __ror__(self, other: Mapping[str, str]) -> RedactedDict:  # type: ignore[override]  # narrower than dict's
        return RedactedDict({**other, **self})
