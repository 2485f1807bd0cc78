"""The authorizer decides as Apache Kafka's StandardAuthorizer, checked against a naive reference implementation."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einmal.security import authorizer as subject
from einmal.security.acl import (
    OPERATION_BITS,
    WILDCARD,
    Acl,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
    canonical_host,
)
from einmal.security.authorizer import StandardAuthorizer
from einmal.security.principal import ANONYMOUS, Principal

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
HOST, OTHER_HOST = "10.0.0.1", "10.0.0.2"
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE


def acl(
    operation: AclOperation = READ,
    name: str = "orders",
    *,
    principal: str = "User:alice",
    host: str = WILDCARD,
    pattern: PatternType = PatternType.LITERAL,
    permission: Permission = Permission.ALLOW,
    resource_type: ResourceType = TOPIC,
) -> Acl:
    return Acl(resource_type, name, pattern, principal, host, operation, permission)


def authorizer_of(*acls: Acl, allow_if_no_acl: bool = False) -> StandardAuthorizer:
    made = StandardAuthorizer([Principal("User", "root")], allow_if_no_acl=allow_if_no_acl)
    made.replace(acls)
    return made


# --- the rules, one by one -------------------------------------------------------------------------------------------


def test_nothing_is_allowed_without_an_acl() -> None:
    assert not authorizer_of().allows(ALICE, HOST, READ, TOPIC, "orders")


def test_allowed_operation_is_allowed_to_that_principal_on_that_resource_only() -> None:
    made = authorizer_of(acl())
    assert made.allows(ALICE, HOST, READ, TOPIC, "orders")
    assert not made.allows(BOB, HOST, READ, TOPIC, "orders")
    assert not made.allows(ALICE, HOST, WRITE, TOPIC, "orders")
    assert not made.allows(ALICE, HOST, READ, TOPIC, "orders2")
    assert not made.allows(ALICE, HOST, READ, GROUP, "orders")


def test_acl_for_everybody_holds_for_principals_of_every_kind() -> None:
    made = authorizer_of(acl(principal="User:*"))
    assert made.allows(ANONYMOUS, HOST, READ, TOPIC, "orders")
    assert made.allows(Principal("Group", "staff"), HOST, READ, TOPIC, "orders")


def test_acl_of_a_host_holds_only_there_in_every_spelling_of_its_address() -> None:
    made = authorizer_of(acl(host=HOST), acl(host=canonical_host("0:0:0:0:0:0:0:1")))
    assert made.allows(ALICE, HOST, READ, TOPIC, "orders")
    assert made.allows(ALICE, f"::ffff:{HOST}", READ, TOPIC, "orders")
    assert made.allows(ALICE, "::1", READ, TOPIC, "orders")
    assert not made.allows(ALICE, OTHER_HOST, READ, TOPIC, "orders")


def test_deny_wins_over_allow_whatever_their_patterns() -> None:
    deny = acl(name=WILDCARD, principal="User:*", host=HOST, permission=Permission.DENY)
    made = authorizer_of(acl(), deny)
    assert not made.allows(ALICE, HOST, READ, TOPIC, "orders")
    assert made.allows(ALICE, OTHER_HOST, READ, TOPIC, "orders")
    made.remove(deny)
    assert made.allows(ALICE, HOST, READ, TOPIC, "orders")


@pytest.mark.parametrize("operation", [READ, WRITE, AclOperation.DELETE, AclOperation.ALTER])
def test_allow_implies_describe_and_deny_does_not(operation: AclOperation) -> None:
    assert authorizer_of(acl(operation)).allows(ALICE, HOST, DESCRIBE, TOPIC, "orders")
    denying = authorizer_of(acl(DESCRIBE), acl(operation, permission=Permission.DENY))
    assert denying.allows(ALICE, HOST, DESCRIBE, TOPIC, "orders")
    assert not denying.allows(ALICE, HOST, operation, TOPIC, "orders")


def test_deny_of_describe_leaves_read_allowed() -> None:
    made = authorizer_of(acl(READ), acl(DESCRIBE, permission=Permission.DENY))
    assert made.allows(ALICE, HOST, READ, TOPIC, "orders")
    assert not made.allows(ALICE, HOST, DESCRIBE, TOPIC, "orders")


def test_alter_configs_implies_describe_configs() -> None:
    made = authorizer_of(acl(AclOperation.ALTER_CONFIGS))
    assert made.allows(ALICE, HOST, AclOperation.DESCRIBE_CONFIGS, TOPIC, "orders")
    assert not made.allows(ALICE, HOST, DESCRIBE, TOPIC, "orders")


def test_all_is_every_operation_for_allow_and_for_deny() -> None:
    allowing = authorizer_of(acl(AclOperation.ALL))
    assert allowing.operations(ALICE, HOST, TOPIC, "orders") == subject.EVERY_OPERATION
    denying = authorizer_of(acl(READ), acl(AclOperation.ALL, permission=Permission.DENY))
    assert denying.operations(ALICE, HOST, TOPIC, "orders") == 0


def test_prefix_applies_to_names_that_begin_with_it() -> None:
    made = authorizer_of(acl(name="ord", pattern=PatternType.PREFIXED))
    assert made.allows(ALICE, HOST, READ, TOPIC, "orders")
    assert made.allows(ALICE, HOST, READ, TOPIC, "ord")
    assert not made.allows(ALICE, HOST, READ, TOPIC, "or")
    assert not made.allows(ALICE, HOST, READ, TOPIC, "Orders")


def test_star_is_a_wildcard_only_as_a_literal_name() -> None:
    assert authorizer_of(acl(name=WILDCARD)).allows(ALICE, HOST, READ, TOPIC, "orders")
    assert not authorizer_of(acl(name=WILDCARD, pattern=PatternType.PREFIXED)).allows(ALICE, HOST, READ, TOPIC, "o")


def test_super_user_may_do_everything_in_spite_of_deny() -> None:
    made = authorizer_of(acl(AclOperation.ALL, principal="User:root", permission=Permission.DENY))
    assert made.operations(Principal("User", "root"), HOST, TOPIC, "orders") == subject.EVERY_OPERATION


def test_resource_without_acls_is_open_if_so_configured_and_only_then() -> None:
    made = authorizer_of(acl(principal="User:bob"), allow_if_no_acl=True)
    assert made.allows(ALICE, HOST, READ, TOPIC, "payments")
    assert not made.allows(ALICE, HOST, READ, TOPIC, "orders"), "there is an ACL, of another principal"
    made.add(acl(name="pay", principal="User:bob", pattern=PatternType.PREFIXED))
    assert not made.allows(ALICE, HOST, READ, TOPIC, "payments")


def test_decision_changes_with_the_acls() -> None:
    made = authorizer_of()
    assert not made.allows(ALICE, HOST, READ, TOPIC, "orders")
    assert not made.allows_any(ALICE, HOST, READ, TOPIC)
    made.add(acl())
    assert made.allows(ALICE, HOST, READ, TOPIC, "orders")
    assert made.allows_any(ALICE, HOST, READ, TOPIC)
    made.remove(acl())
    assert not made.allows(ALICE, HOST, READ, TOPIC, "orders")
    assert not made.allows_any(ALICE, HOST, READ, TOPIC)


def test_remembered_decisions_are_bounded_in_number_and_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_REMEMBERED_MAX", 10)
    made = authorizer_of(acl())
    for number in range(25):
        made.allows(ALICE, HOST, READ, TOPIC, f"topic-{number}")
        made.allows_any(Principal("User", str(number)), HOST, READ, TOPIC)
    made.allows(ALICE, HOST, READ, GROUP, "g" * 1_000)
    assert 0 < len(made._remembered) <= 10
    assert 0 < len(made._remembered_types) <= 10
    assert max(len(name) for _, _, _, name in made._remembered) < 1_000


def test_removed_acls_leave_nothing_behind() -> None:
    acls = [acl(), acl(WRITE), acl(name="or", pattern=PatternType.PREFIXED), acl(permission=Permission.DENY)]
    made = authorizer_of(*acls)
    for each in acls:
        made.remove(each)
    assert not made._patterns
    assert not any(made._counts.values())
    assert not any(counts.lengths for counts in made._counts.values())


def test_authorized_operations_of_a_topic_are_the_bits_that_apache_kafka_sends() -> None:
    assert OPERATION_BITS[ResourceType.TOPIC] == 0b1101_1111_1000
    assert OPERATION_BITS[ResourceType.CLUSTER] == 0b1_1111_1010_0000
    assert OPERATION_BITS[ResourceType.GROUP] == 0b1101_0100_1000


# --- the same as a naive implementation ------------------------------------------------------------------------------

NAMES = ("a", "ab", "abc", "b", WILDCARD)
PRINCIPALS = (ALICE, BOB, Principal("User", "root"))
RESOURCE_TYPES = (TOPIC, GROUP)
OPERATIONS = (AclOperation.ALL, READ, WRITE, DESCRIBE, AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS)
ACLS = st.builds(
    Acl,
    st.sampled_from(RESOURCE_TYPES),
    st.sampled_from(NAMES),
    st.sampled_from((PatternType.LITERAL, PatternType.PREFIXED)),
    st.sampled_from(("User:alice", "User:bob", "User:root", "User:*")),
    st.sampled_from((WILDCARD, HOST, OTHER_HOST)),
    st.sampled_from(OPERATIONS),
    st.sampled_from((Permission.ALLOW, Permission.DENY)),
)


def naive_applies(each: Acl, principal: Principal, host: str, name: str) -> bool:
    is_literal = each.pattern_type is PatternType.LITERAL
    names = each.resource_name in (name, WILDCARD) if is_literal else name.startswith(each.resource_name)
    return names and each.principal in (str(principal), "User:*") and each.host in (host, WILDCARD)


def naive_allows(
    acls: Iterable[Acl],
    principal: Principal,
    host: str,
    operation: AclOperation,
    resource: tuple[ResourceType, str],
    allow_if_no_acl: bool,
) -> bool:
    """As the text of KIP-11 and KIP-290: look at every ACL."""
    if principal.name == "root":
        return True
    implying = {
        DESCRIBE: {DESCRIBE, READ, WRITE, AclOperation.DELETE, AclOperation.ALTER},
        AclOperation.DESCRIBE_CONFIGS: {AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS},
    }.get(operation, {operation})
    has_acls = is_allowed = False
    for each in acls:
        if each.resource_type is not resource[0]:
            continue
        has_acls |= naive_applies(each._replace(principal="User:*", host=WILDCARD), principal, host, resource[1])
        if not naive_applies(each, principal, host, resource[1]):
            continue
        if each.permission is Permission.DENY:
            if each.operation in (operation, AclOperation.ALL):
                return False
        elif each.operation in implying or each.operation is AclOperation.ALL:
            is_allowed = True
    return is_allowed or (allow_if_no_acl and not has_acls)


def naive_allows_any(
    acls: Iterable[Acl], principal: Principal, host: str, operation: AclOperation, resource_type: ResourceType
) -> bool:
    """As the text of KIP-679: an ALLOW of the operation that no DENY covers as a whole."""
    mine = [
        each
        for each in acls
        if each.resource_type is resource_type
        and each.operation in (operation, AclOperation.ALL)
        and each.principal in (str(principal), "User:*")
        and each.host in (host, WILDCARD)
    ]
    denied = [each for each in mine if each.permission is Permission.DENY]
    star = [each for each in mine if each.resource_name == WILDCARD and each.pattern_type is PatternType.LITERAL]
    if any(each in star for each in denied):
        return False
    for each in mine:
        if each.permission is Permission.DENY:
            continue
        if each in star:
            return True
        covered = any(
            each.resource_name.startswith(deny.resource_name)
            if deny.pattern_type is PatternType.PREFIXED
            else each.pattern_type is PatternType.LITERAL and deny.resource_name == each.resource_name
            for deny in denied
        )
        if not covered:
            return True
    return False


@settings(deadline=None)
@given(st.sets(ACLS, max_size=12), st.sets(ACLS, max_size=4), st.booleans())
def test_decisions_equal_those_of_a_naive_implementation(acls: set[Acl], removed: set[Acl], is_open: bool) -> None:
    made = StandardAuthorizer([Principal("User", "root")], allow_if_no_acl=is_open)
    made.replace(sorted(acls))
    for each in sorted(removed):
        (made.remove if each in acls else made.add)(each)
    acls ^= removed
    for principal in PRINCIPALS:
        for host in (HOST, OTHER_HOST):
            for operation in OPERATIONS:
                for kind in RESOURCE_TYPES:
                    for name in ("a", "abcd", "c", WILDCARD):
                        expected = naive_allows(acls, principal, host, operation, (kind, name), is_open)
                        assert made.allows(principal, host, operation, kind, name) == expected


@settings(deadline=None)
@given(st.sets(ACLS, max_size=12))
def test_decisions_about_a_type_equal_those_of_a_naive_implementation(acls: set[Acl]) -> None:
    made = StandardAuthorizer()
    made.replace(sorted(acls))
    for principal in (ALICE, BOB):
        for operation in (READ, WRITE):
            named = naive_allows(acls, principal, HOST, operation, (TOPIC, "hardcode"), False)
            expected = named or naive_allows_any(acls, principal, HOST, operation, TOPIC)
            assert made.allows_any(principal, HOST, operation, TOPIC) == expected
