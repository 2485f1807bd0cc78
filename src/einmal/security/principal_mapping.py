"""Users' names from the distinguished names of certificates: ``ssl.principal.mapping.rules`` (KIP-371). Pure.

A rule is ``DEFAULT``, the whole name, or ``RULE:pattern/replacement/`` with ``L`` or ``U`` behind it for lower or upper
case; the first one whose pattern matches the whole name holds. The pattern is the operator's and the name a client's,
so the time of a match is bounded: no choice and no repetition within a repetition, no long names, and none with more
attributes than certificates have, between which groups one after another could be divided in very many ways.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache, partial
from re import _constants as constants  # type: ignore[attr-defined]  # no public way to a parsed pattern
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final, NamedTuple

from einmal.security.errors import SecuritySettingError

_SETTING: Final = "ssl.principal.mapping.rules"
_RULE: Final = re.compile(r"\s*(?:DEFAULT|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|\n|$)")
_GROUP: Final = re.compile(r"\\(.)|\$(\d)", re.DOTALL)
_NAME_MAX: Final = 512
"""Longest name that a pattern is applied to."""
_SEPARATORS: Final = ",=+"
_SEPARATORS_MAX: Final = 20
"""Of each of them in such a name."""
_REPEATS_MAX: Final = 12
"""Of unbounded repetitions in a pattern: with lazy groups one after another, time grows with such a power of length."""
_UNBOUNDED: Final = 64
"""A repetition of more than so many counts as unbounded."""
_HINT: Final = "write DEFAULT, or RULE:pattern/replacement/ with L or U behind it, separated by commas"


class NoRuleMatches(Exception):
    """No rule has a name for this certificate: the client cannot be anybody."""


class _Rule(NamedTuple):
    """``pattern`` None: DEFAULT."""

    pattern: re.Pattern[str] | None
    replacement: str
    case: str


class PrincipalMapping:
    def __init__(self, rules: str) -> None:
        """Raises SecuritySettingError."""
        self._rules = _parsed(rules)
        self.name_of = lru_cache(maxsize=1_000)(self._name_of)
        """The user's name of a distinguished name. Raises NoRuleMatches."""

    def _name_of(self, distinguished_name: str) -> str:
        for pattern, replacement, case in self._rules:
            if pattern is None:
                return distinguished_name
            if len(distinguished_name) > _NAME_MAX:
                raise NoRuleMatches(f"a name of {len(distinguished_name)} characters; rules apply to {_NAME_MAX}")
            if max(map(distinguished_name.count, _SEPARATORS)) > _SEPARATORS_MAX:
                raise NoRuleMatches(f"a name of many attributes; rules apply to {_SEPARATORS_MAX}")
            match = pattern.fullmatch(distinguished_name)
            if match is not None:
                name = _GROUP.sub(partial(_filled, match), replacement)
                return name.lower() if case == "L" else name.upper() if case == "U" else name
        raise NoRuleMatches(f"no rule of {_SETTING} matches {distinguished_name!r}")


def _filled(match: re.Match[str], found: re.Match[str]) -> str:
    """What a group, or an escaped character, of a replacement stands for."""
    return found[1] or match[int(found[2])] or ""


def _parsed(text: str) -> list[_Rule]:
    rules = []
    position = 0
    while position < len(text.rstrip()):
        found = _RULE.match(text, position)
        if found is None or found.end() == position:
            raise SecuritySettingError(f"{_SETTING}: {text[position : position + 60]!r} is no rule", _HINT)
        rules.append(_Rule(None, "", "") if found[1] is None else _rule(found[1], found[2], found[3]))
        position = found.end()
    return rules or [_Rule(None, "", "")]


def _rule(pattern: str, replacement: str, case: str) -> _Rule:
    try:
        compiled = re.compile(pattern)
        repeats = list(_repeats(parser.parse(pattern)))
    except (re.error, RecursionError) as error:
        raise SecuritySettingError(f"{_SETTING}: {pattern!r} is no regular expression: {error}", _HINT) from None
    if any(repeats) or len(repeats) > _REPEATS_MAX:
        raise SecuritySettingError(
            f"{_SETTING}: matching {pattern!r} may take too long",
            f"leave out choices and repetitions within a repetition, such as (a+)*, and use at most {_REPEATS_MAX}",
        )
    groups = [int(found[2]) for found in _GROUP.finditer(replacement) if found[2]]
    if groups and max(groups) > compiled.groups:
        raise SecuritySettingError(
            f"{_SETTING}: {replacement!r} uses a group that {pattern!r} does not have",
            f"the pattern has {compiled.groups} groups",
        )
    return _Rule(compiled, replacement, case)


def _repeats(node: Any, *, is_inside: bool = False) -> Iterator[bool]:
    """For each unbounded repetition, and each choice of lengths, whether it is within an unbounded repetition."""
    for operator, argument in node if isinstance(node, parser.SubPattern) else ():
        is_repeat = operator in (constants.MAX_REPEAT, constants.MIN_REPEAT, constants.POSSESSIVE_REPEAT)
        is_unbounded = is_repeat and argument[1] > _UNBOUNDED
        if is_unbounded or (is_inside and (operator is constants.BRANCH or (is_repeat and argument[0] != argument[1]))):
            yield is_inside
        for part in _parts(argument):
            yield from _repeats(part, is_inside=is_inside or is_unbounded)


def _parts(argument: Any) -> Iterator[Any]:
    if isinstance(argument, parser.SubPattern):
        yield argument
    elif isinstance(argument, tuple | list):
        for each in argument:
            yield from _parts(each)
