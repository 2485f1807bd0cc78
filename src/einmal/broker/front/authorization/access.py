"""May the sender of a request do something to a resource? Handlers ask before they reveal or change anything.

Denials are logged as Apache Kafka logs them, except where a handler only filters: no one asked for these resources.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from einmal.broker.front.context import RequestContext
from einmal.event_log import EventLog
from einmal.security.acl import CLUSTER_NAME, OPERATION_BITS, AclOperation, ResourceType
from einmal.security.principal import Principal
from einmal.types import ErrorCode
from einmal.wire.errors import WireError
from einmal.wire.messages import api_name

log = EventLog(__name__)

_REFUSALS: Final = {
    ResourceType.TOPIC: ErrorCode.topic_authorization_failed,
    ResourceType.GROUP: ErrorCode.group_authorization_failed,
    ResourceType.CLUSTER: ErrorCode.cluster_authorization_failed,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
}


class AuthorizerNotReady(WireError):
    """The node has not learned yet what is committed: its connection is closed, so that the sender tries again."""


class Authorizer(Protocol):
    """As StandardAuthorizer of Apache Kafka decides (KIP-801)."""

    def is_super_user(self, principal: Principal) -> bool:
        """Whether the principal may do everything, whatever the ACLs."""

    def operations(self, principal: Principal, host: str, resource_type: ResourceType, name: str) -> int:
        """Everything that the principal may do to the resource, from this host: a bit for each operation."""

    def allows_any(self, principal: Principal, host: str, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Whether there may be a resource of the type to which the principal may do it (KIP-679)."""


class Access:
    """``authorizer`` None: everybody may do everything, as without ``authorizer.class.name``.

    So may nodes of the cluster, whose principal is None. ``is_ready``: whether the authorizer has the cluster's ACLs; a
    controller answers other controllers before it has them. Until then every question about anybody but super users
    raises AuthorizerNotReady.
    """

    def __init__(self, authorizer: Authorizer | None, is_ready: Callable[[], bool] = lambda: True) -> None:
        self._authorizer = authorizer
        self._is_ready = is_ready

    @property
    def is_enforced(self) -> bool:
        """Whether there is an authorizer."""
        return self._authorizer is not None

    def _authorizer_for(self, principal: Principal | None) -> Authorizer | None:
        """None: the principal may do everything. Raises AuthorizerNotReady."""
        authorizer = self._authorizer
        if authorizer is None or principal is None:
            return None
        if not self._is_ready() and not authorizer.is_super_user(principal):
            raise AuthorizerNotReady("the cluster's ACLs are not known here yet")
        return authorizer

    def allows(
        self,
        context: RequestContext,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str = CLUSTER_NAME,
        *,
        is_filter: bool = False,
    ) -> bool:
        """Whether the sender may do it. ``is_filter``: it has not named the resource, and a denial is not logged."""
        principal = context.principal
        authorizer = self._authorizer_for(principal)
        if authorizer is None or principal is None:
            return True
        operations = authorizer.operations(principal, context.client_address, resource_type, name)
        is_allowed = bool(operations >> operation & 1)
        if not is_allowed and not is_filter:
            _log_denial(context, operation, f"{_type_name(resource_type)}:LITERAL:{_printable(name)}")
        return is_allowed

    def refusal(
        self, context: RequestContext, operation: AclOperation, resource_type: ResourceType, name: str = CLUSTER_NAME
    ) -> ErrorCode | None:
        """The error for a sender that may not do it; None: it may."""
        if self._authorizer is None:
            return None
        return None if self.allows(context, operation, resource_type, name) else _REFUSALS[resource_type]

    def describes_topic(self, context: RequestContext, name: str, *, is_asked: bool) -> bool:
        """Whether the sender may learn that the topic exists. ``is_asked``: it has named the topic."""
        return self.allows(context, AclOperation.DESCRIBE, ResourceType.TOPIC, name, is_filter=not is_asked)

    def refusal_of_client(self, context: RequestContext, what: str) -> ErrorCode | None:
        """The error for a sender that is no node of the cluster, logged; None: a node may have sent the request.

        Where nodes do not prove themselves, any sender with CLUSTER_ACTION may be one, as in Apache Kafka.
        """
        if context.may_be_from_broker and self.allows(context, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER):
            return None
        return context.refuse_client(what)

    def is_unlimited(self, context: RequestContext) -> bool:
        """Whether the sender may do everything, whatever the ACLs."""
        principal = context.principal
        authorizer = self._authorizer_for(principal)
        return authorizer is None or principal is None or authorizer.is_super_user(principal)

    def allows_any(self, context: RequestContext, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Whether there may be a resource of the type to which the sender may do it (KIP-679)."""
        principal = context.principal
        authorizer = self._authorizer_for(principal)
        if authorizer is None or principal is None:
            return True
        is_allowed = authorizer.allows_any(principal, context.client_address, operation, resource_type)
        if not is_allowed:
            _log_denial(context, operation, f"any {_type_name(resource_type)}")
        return is_allowed

    def authorized_operations(
        self, context: RequestContext, resource_type: ResourceType, name: str = CLUSTER_NAME
    ) -> int:
        """Return what the sender may do, of the operations that the resource has: a bit for each (KIP-430)."""
        principal = context.principal
        supported = OPERATION_BITS[resource_type]
        authorizer = self._authorizer_for(principal)
        if authorizer is None or principal is None:
            return supported
        return supported & authorizer.operations(principal, context.client_address, resource_type, name)


def _type_name(resource_type: ResourceType) -> str:
    """``TransactionalId``, as Apache Kafka logs it."""
    return resource_type.name.title().replace("_", "")


def _printable(text: str) -> str:
    """A sender chooses the text: it must not begin a line of its own."""
    return text if text.isprintable() else repr(text)


def _log_denial(context: RequestContext, operation: AclOperation, resource: str) -> None:
    log.info(
        "access_denied",
        "Principal = %(principal)s is Denied operation = %(operation)s from host = %(client)s on resource = "
        "%(resource)s for request = %(request)s",
        principal=_printable(str(context.principal)),
        operation=operation.name,
        client=context.client_address,
        resource=resource,
        request=api_name(context.header.api_key),
    )
