"""``ssl.principal.mapping.rules``: the examples of KIP-371 and of Apache Kafka's documentation, and bad rules."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from einmal.security.errors import SecuritySettingError
from einmal.security.principal_mapping import NoRuleMatches, PrincipalMapping

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


@pytest.mark.parametrize("pattern", ["(a+)*b", "(a|aa)+b", "(.*)*", "(a?b?)*c", "(?:x{0,900}y*){5,}", ".*" * 13])
def test_a_pattern_whose_time_may_explode_is_refused(pattern: str) -> None:
    with pytest.raises(SecuritySettingError, match="may take too long"):
        PrincipalMapping(f"RULE:{pattern}/x/")


def test_a_hostile_name_costs_little_time_under_the_documented_rules() -> None:
    mapping = PrincipalMapping(RULES.removesuffix(",DEFAULT"))
    began = time.process_time()
    for name in ("CN=" + ",OU=,O=,L=,ST=" * 30, "CN=" * 170, "CN=," * 100 + "x" * 1_000_000):
        with suppress(NoRuleMatches):
            mapping.name_of(name)
    assert time.process_time() - began < 2


def test_a_name_of_very_many_attributes_is_not_divided_among_the_groups_of_a_rule() -> None:
    """Else seven groups, which a rule may have, would take nine seconds."""
    keys = ("OU", "O", "L", "ST", "C", "DC")
    mapping = PrincipalMapping("RULE:^CN=(.*?)" + "".join(f",{key}=(.*?)" for key in (*keys, "UID")) + "$/$1/")
    began = time.process_time()
    for times in (3, 15):
        with pytest.raises(NoRuleMatches, match="no rule|many attributes"):
            mapping.name_of("CN=a" + "".join(f",{key}=a" * times for key in keys))
    assert time.process_time() - began < 2
    assert mapping.name_of("CN=a" + "".join(f",{key}=b" for key in (*keys, "UID"))) == "a"
