"""A TOML file as options by dotted names: variables, references to secrets, and all its problems at once. Pure."""

from __future__ import annotations

import errno
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import date, time
from typing import Any, Final, NamedTuple

from einmal.misspelt import nearest_name
from einmal.options.values import OptionError
from einmal.security.errors import SecuritySettingError
from einmal.security.properties import resolved

_VARIABLE: Final = re.compile(
    r"\$(\$|\{([A-Za-z_][A-Za-z0-9_]*)(?::-((?:(?!\$\{)[^}])*))?\}|\{(?:file|env):[^}]*\}|(?P<unknown>\{))"
)
_REFERENCES: Final = "references are ${NAME}, ${NAME:-text}, ${env:NAME} and ${file:PATH:KEY}, none within another"


class DeclarationError(OptionError):
    """The declaration cannot be meant as it is. ``problems``: every one of them, with its hint behind a line break."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


def toml_tables(text: str) -> dict[str, Any]:
    """The tables of a file. Raises DeclarationError."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DeclarationError([f"not TOML: {error}"]) from error


def flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables within tables as dotted names. An empty one stays: its name may be wrong."""
    result: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            result |= flattened(value, f"{prefix}{name}.")
        else:
            result[f"{prefix}{name}"] = value
    return result


def same_names(names: Iterable[str]) -> list[list[str]]:
    """The groups of names that differ in case at most."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.lower(), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def refuse_same(where: str, table: Mapping[str, Any], problems: list[str]) -> None:
    """Note the keys of a table that are one option, whose value would be the last: names differ in more than case, but
    for settings of Spark's session, which may not."""
    leaves = [*_leaves(table)]
    sessions = Counter(name for name in leaves if name.startswith("spark."))
    twice = [[name] for name, count in sessions.items() if count > 1]
    for same in [*same_names(name for name in leaves if name not in sessions), *twice]:
        at = f"{where}: " if where else ""
        names = " and ".join(map(repr, dict.fromkeys(same)))
        problems.append(f"{at}{names} set one option twice\nhint: leave one out")


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The names of ``flattened``, each as often as it is there."""
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def as_text(value: Any) -> str:
    """A value of the file as an option's text."""
    if isinstance(value, date | time):
        return value.isoformat()
    return str(value).lower() if isinstance(value, bool) else str(value)


def refuse_unknown(
    where: str, given: Iterable[str], known: Collection[str], problems: list[str], *, free: tuple[str, ...] = ()
) -> None:
    """Note every key that is not known, and does not begin with one of ``free``."""
    for name in given:
        if name not in known and not name.startswith(free or ("\0",)):
            at = f"{where}: " if where else ""
            problems.append(f"{at}unknown key {name!r}{nearest(name, known)}")


def nearest(name: str, known: Collection[str]) -> str:
    # A whole table may have the wrong name.
    near = nearest_name(name, known) or nearest_name(name.partition(".")[0], known)
    return f"\nhint: did you mean {near!r}?" if near else f"\nhint: known are: {', '.join(sorted(known))}"


class Variables(NamedTuple):
    """Variables that the values of a file may refer to."""

    environment: Mapping[str, str]
    read: Callable[[str], str]


def reads_nothing(path: str) -> str:
    raise OSError(errno.EACCES, f"files cannot be referred to here, {path} neither")


def referenced(where: str, value: str, variables: Variables, problems: list[str]) -> str:
    """The value with ``${env:NAME}`` and ``${file:PATH:KEY}`` replaced."""
    try:
        return resolved(where, value, variables.environment, variables.read)
    except SecuritySettingError as error:
        problems.append(f"{error.meaning}\nhint: {error.hint}")
        return value


def substituted(value: Any, variables: Variables, problems: list[str], where: str) -> Any:
    """The value with the environment's variables and the references in all its strings. As in a shell, the default
    after ``:-`` replaces a variable that is not set, or empty."""
    if isinstance(value, Mapping):
        return {
            name: substituted(child, variables, problems, f"{where}.{name}" if where else name)
            for name, child in value.items()
        }
    if isinstance(value, list):
        return [substituted(child, variables, problems, where) for child in value]
    if not isinstance(value, str):
        return value

    def replaced(match: re.Match[str]) -> str:
        name, default = match[2], match[3]
        if match["unknown"]:
            problems.append(f"{where}: no reference follows ${{\nhint: {_REFERENCES}; $$ is a dollar")
            return match[0]
        if name is None:
            return "$" if match[0] == "$$" else referenced(where, match[0], variables, problems)
        text = variables.environment.get(name)
        replacement = text if text or default is None else default
        if replacement is None:
            problems.append(
                f"{where}: the environment has no {name}\nhint: set it, or write ${{{name}:-default}}; $$ is a dollar"
            )
        # As it stands, so that no other check reports the same value.
        return match[0] if replacement is None else replacement

    return _VARIABLE.sub(replaced, value)
