"""Filters of ACLs, and numbers of later versions."""

from __future__ import annotations

import pytest

from einmal.security.acl import Acl, AclFilter, AclOperation, PatternType, Permission, ResourceType, canonical_host

LITERAL, PREFIXED, MATCH = PatternType.LITERAL, PatternType.PREFIXED, PatternType.MATCH
ACL = Acl(ResourceType.TOPIC, "orders", LITERAL, "User:a", "*", AclOperation.READ, Permission.ALLOW)
PREFIX = ACL._replace(resource_name="ord", pattern_type=PREFIXED)
STAR = ACL._replace(resource_name="*")


@pytest.mark.parametrize(
    ("wanted", "matched"),
    [
        (AclFilter(), [ACL, PREFIX, STAR]),
        (AclFilter(ResourceType.TOPIC), [ACL, PREFIX, STAR]),
        (AclFilter(ResourceType.GROUP), []),
        (AclFilter(resource_name="orders"), [ACL]),
        (AclFilter(resource_name="ord"), [PREFIX]),
        (AclFilter(resource_name="*"), [STAR]),
        (AclFilter(resource_name="orders", pattern_type=LITERAL), [ACL]),
        (AclFilter(resource_name="orders", pattern_type=PREFIXED), []),
        (AclFilter(resource_name="orders", pattern_type=MATCH), [ACL, PREFIX, STAR]),
        (AclFilter(resource_name="order", pattern_type=MATCH), [PREFIX, STAR]),
        (AclFilter(resource_name="or", pattern_type=MATCH), [STAR]),
        (AclFilter(pattern_type=MATCH), [ACL, PREFIX, STAR]),
        (AclFilter(pattern_type=PREFIXED), [PREFIX]),
        (AclFilter(principal="User:b"), []),
        (AclFilter(principal="User:a", host="*"), [ACL, PREFIX, STAR]),
        (AclFilter(host="10.0.0.1"), []),
        (AclFilter(operation=AclOperation.READ, permission=Permission.ALLOW), [ACL, PREFIX, STAR]),
        (AclFilter(operation=AclOperation.ALL), []),
        (AclFilter(permission=Permission.DENY), []),
    ],
)
def test_filter_matches_as_apache_kafkas(wanted: AclFilter, matched: list[Acl]) -> None:
    assert [acl for acl in (ACL, PREFIX, STAR) if wanted.matches(acl)] == matched


def test_filter_without_any_open_part_means_one_acl() -> None:
    assert AclFilter(*ACL).only == ACL
    for open_part in (
        {"resource_type": ResourceType.ANY},
        {"resource_name": None},
        {"pattern_type": PatternType.ANY},
        {"pattern_type": MATCH},
        {"principal": None},
        {"host": None},
        {"operation": AclOperation.ANY},
        {"permission": Permission.ANY},
    ):
        assert AclFilter(*ACL)._replace(**open_part).only is None


def test_number_of_a_later_version_is_unknown() -> None:
    assert AclOperation(99) is AclOperation.UNKNOWN
    assert ResourceType(-1) is ResourceType.UNKNOWN


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("*", "*"),
        ("broker.example.com", "broker.example.com"),
        ("10.0.0.1", "10.0.0.1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("::FFFF:10.0.0.1", "10.0.0.1"),
        ("2001:DB8::0:1", "2001:db8::1"),
    ],
)
def test_address_has_one_spelling(text: str, canonical: str) -> None:
    assert canonical_host(text) == canonical
