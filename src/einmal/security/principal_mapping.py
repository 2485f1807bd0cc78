"""Users' names from the distinguished names of certificates: ``ssl.principal.mapping.rules`` (KIP-371). Pure.

A rule is ``DEFAULT``, the whole name, or ``RULE:pattern/replacement/`` with ``L`` or ``U`` behind it for lower or upper
case; the first one whose pattern matches the whole name holds. The pattern is the operator's and the name a client's:
patterns have RE2's syntax, whose matches take time in proportion to the name, whatever the pattern.
"""

from __future__ import annotations

import re
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import re2

from einmal.security.errors import SecuritySettingError

_SETTING: Final = "ssl.principal.mapping.rules"
_RULE: Final = re.compile(r"\s*(?:DEFAULT|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|\n|$)")
_GROUP: Final = re.compile(r"\\(.)|\$(\d)", re.DOTALL)
_HINT: Final = "write DEFAULT, or RULE:pattern/replacement/ with L or U behind it, separated by commas"


class NoRuleMatches(Exception):
    """No rule has a name for this certificate: the client cannot be anybody."""


class _Rule(NamedTuple):
    """``pattern`` None: DEFAULT."""

    pattern: Any
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
            match = pattern.fullmatch(distinguished_name)
            if match is not None:
                name = _GROUP.sub(partial(_filled, match), replacement)
                return name.lower() if case == "L" else name.upper() if case == "U" else name
        raise NoRuleMatches(f"no rule of {_SETTING} matches {distinguished_name!r}")


def _filled(match: Any, token: re.Match[str]) -> str:
    """Return what a group, or an escaped character, of a replacement stands for."""
    return token[1] or match[int(token[2])] or ""


def _parsed(text: str) -> list[_Rule]:
    rules = []
    position = 0
    while position < len(text.rstrip()):
        match = _RULE.match(text, position)
        if match is None or match.end() == position:
            raise SecuritySettingError(f"{_SETTING}: {text[position : position + 60]!r} is no rule", _HINT)
        rules.append(_Rule(None, "", "") if match[1] is None else _rule(match[1], match[2], match[3]))
        position = match.end()
    return rules or [_Rule(None, "", "")]


def _rule(pattern: str, replacement: str, case: str) -> _Rule:
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode() if isinstance(error.args[0], bytes) else error
        raise SecuritySettingError(
            f"{_SETTING}: {pattern!r} is no regular expression of RE2's: {reason}",
            f"{_HINT}; RE2 has no (?=...) and no \\1",
        ) from None
    groups = [int(match[2]) for match in _GROUP.finditer(replacement) if match[2]]
    if groups and max(groups) > compiled.groups:
        raise SecuritySettingError(
            f"{_SETTING}: {replacement!r} uses a group that {pattern!r} does not have",
            f"the pattern has {compiled.groups} groups",
        )
    return _Rule(compiled, replacement, case)
