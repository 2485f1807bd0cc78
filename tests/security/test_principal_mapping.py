"""``ssl.principal.mapping.rules``: the examples of KIP-371 and of Apache Kafka's documentation, and bad rules."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from einmal.security.errors import SecuritySettingError
from einmal.security.principal_mapping import NoRuleMatches, PrincipalMapping
from tests.suite.patience import patient

RULES = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,"
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,"
    "DEFAULT"
)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("CN=serviceuser,OU=ServiceUsers,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "serviceuser"),
        ("CN=adminUser,OU=Admin,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "adminuser@admin"),
        ("cn=Kafka1.Example,OU=x", "kafka1.example"),
        ("O=Example", "O=Example"),
    ],
)
def test_the_first_rule_that_matches_the_whole_name_holds(name: str, told: str) -> None:
    assert PrincipalMapping(RULES).name_of(name) == told


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ("", "CN=A,O=b"),
        ("DEFAULT", "CN=A,O=b"),
        ("RULE:^CN=(.*?),.*$/$1/U", "A"),
        ("RULE:^CN=(.*?),.*$/user-$1/L", "user-a"),
        (" RULE:^CN=(.*?),O=(.*)$/$2\\/$1/ , DEFAULT", "b/A"),
    ],
)
def test_replacements_have_groups_case_and_escapes(rules: str, told: str) -> None:
    assert PrincipalMapping(rules).name_of("CN=A,O=b") == told


def test_a_name_that_no_rule_matches_is_nobody() -> None:
    with pytest.raises(NoRuleMatches, match=r"no rule .* matches 'O=x'"):
        PrincipalMapping("RULE:^CN=(.*)$/$1/").name_of("O=x")


@pytest.mark.parametrize("rules", ["RULE:a", "FOO", "RULE:(/x/", "RULE:a/$1/", "RULE:a/b/X", "DEFAULT DEFAULT"])
def test_what_is_no_rule_is_refused(rules: str) -> None:
    with pytest.raises(SecuritySettingError, match=r"ssl\.principal\.mapping\.rules"):
        PrincipalMapping(rules)


@pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1", "a++"])
def test_what_re2_does_not_have_is_refused_with_the_reason(pattern: str) -> None:
    with pytest.raises(SecuritySettingError, match="RE2"):
        PrincipalMapping(f"RULE:{pattern}/x/")


KEYS = ("OU", "O", "L", "ST", "C", "DC")
GROUPS = "RULE:^CN=(.*?)" + "".join(f",{key}=(.*?)" for key in (*KEYS, "UID")) + "$/$1/"


@pytest.mark.parametrize(
    "rules",
    [RULES.removesuffix(",DEFAULT"), GROUPS, "RULE:(a+)*b/x/", "RULE:(.*)*=(a|aa)+b/x/", f"RULE:{'.*' * 13}b/x/"],
)
def test_a_hostile_name_costs_little_time_whatever_the_rule(rules: str) -> None:
    mapping = PrincipalMapping(rules)
    names = ["CN=" + ",OU=,O=,L=,ST=" * 30, "CN=" * 170, "CN=," * 100 + "x" * 100_000, "CN=" + "a" * 1_000]
    began = time.thread_time()
    for name in [*names, *("CN=a" + "".join(f",{key}=a" * times for key in KEYS) for times in (3, 15))]:
        with suppress(NoRuleMatches):
            mapping.name_of(name)
    assert time.thread_time() - began < patient(2)


def test_groups_are_as_short_as_possible() -> None:
    assert PrincipalMapping(GROUPS).name_of("CN=a" + "".join(f",{key}=b" for key in (*KEYS, "UID"))) == "a"
