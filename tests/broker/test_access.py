"""The question for access: who is asked about, and when nobody can be answered yet."""

from __future__ import annotations

from typing import cast

import pytest

from einmal.broker.front.authorization.access import Access, AuthorizerNotReady
from einmal.broker.front.context import RequestContext
from einmal.broker.resources.turns import Turns
from einmal.security.acl import OPERATION_BITS, Acl, AclOperation, PatternType, Permission, ResourceType
from einmal.security.authorizer import StandardAuthorizer
from einmal.security.principal import ANONYMOUS, Principal
from einmal.wire.messages import RequestHeader

ADMIN = Principal("User", "admin")
READ, TOPIC = AclOperation.READ, ResourceType.TOPIC
ACL = Acl(TOPIC, "t", PatternType.LITERAL, "User:ANONYMOUS", "*", READ, Permission.ALLOW)


def context_of(principal: Principal | None) -> RequestContext:
    header = RequestHeader(1, 0, 0, "client")
    return RequestContext(header, "10.0.0.1", cast(Turns, None), principal=principal)


def authorizer() -> StandardAuthorizer:
    made = StandardAuthorizer([ADMIN])
    made.replace([ACL])
    return made


@pytest.mark.parametrize("principal", [None, ANONYMOUS])
def test_without_an_authorizer_everybody_may_do_everything(principal: Principal | None) -> None:
    access, context = Access(None), context_of(principal)
    assert not access.is_enforced
    assert access.allows(context, READ, TOPIC, "t")
    assert access.allows_any(context, READ, TOPIC)
    assert access.authorized_operations(context, TOPIC, "t") == OPERATION_BITS[TOPIC]


def test_nodes_of_the_cluster_may_do_everything_before_the_acls_are_known_too() -> None:
    access, context = Access(authorizer(), lambda: False), context_of(None)
    assert access.allows(context, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER)
    assert access.allows_any(context, READ, TOPIC)
    assert access.authorized_operations(context, TOPIC, "u") == OPERATION_BITS[TOPIC]


def test_before_the_acls_are_known_only_super_users_are_answered() -> None:
    access, context = Access(authorizer(), lambda: False), context_of(ANONYMOUS)
    assert access.allows(context_of(ADMIN), READ, TOPIC, "t")
    with pytest.raises(AuthorizerNotReady):
        access.allows(context, READ, TOPIC, "t")
    with pytest.raises(AuthorizerNotReady):
        access.allows_any(context, READ, TOPIC)
    with pytest.raises(AuthorizerNotReady):
        access.authorized_operations(context, TOPIC, "t")


def test_the_senders_principal_and_address_decide() -> None:
    access, context = Access(authorizer()), context_of(ANONYMOUS)
    assert access.is_enforced
    assert access.allows(context, READ, TOPIC, "t")
    assert not access.allows(context, AclOperation.WRITE, TOPIC, "t")
    assert access.allows_any(context, READ, TOPIC)
    assert not access.allows_any(context, AclOperation.WRITE, TOPIC)
    assert access.authorized_operations(context, TOPIC, "t") == 1 << READ | 1 << AclOperation.DESCRIBE
    assert access.authorized_operations(context, TOPIC, "u") == 0


def test_only_denials_that_were_asked_for_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    access, context = Access(authorizer()), context_of(ANONYMOUS)
    access.allows(context, READ, TOPIC, "t")
    access.allows(context, READ, TOPIC, "u", is_filter=True)
    access.authorized_operations(context, TOPIC, "u")
    assert not caplog.messages
    access.allows(context, READ, ResourceType.TRANSACTIONAL_ID, "u\nv")
    access.allows_any(context, READ, ResourceType.GROUP)
    denied = "Principal = User:ANONYMOUS is Denied operation = READ from host = 10.0.0.1 on resource = "
    assert caplog.messages == [
        f"{denied}TransactionalId:LITERAL:'u\\nv' for request = Fetch",
        f"{denied}any Group for request = Fetch",
    ]
