"""May the sender of a request do something to a resource? Handlers ask before they reveal or change anything."""

from __future__ import annotations

from typing import Final, Protocol

from einmal.broker.front.context import RequestContext
from einmal.security.acl import CLUSTER_NAME, AclOperation, ResourceType
from einmal.security.principal import Principal
from einmal.types import ErrorCode

_REFUSALS: Final = {
    ResourceType.TOPIC: ErrorCode.topic_authorization_failed,
    ResourceType.GROUP: ErrorCode.group_authorization_failed,
    ResourceType.CLUSTER: ErrorCode.cluster_authorization_failed,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
}
_REPORTED: Final = {
    ResourceType.TOPIC: (3, 4, 5, 6, 7, 8, 10, 11),
    ResourceType.GROUP: (3, 6, 8, 10, 11),
    ResourceType.CLUSTER: (5, 7, 8, 9, 10, 11, 12),
}
"""Numbers of the operations in the bit fields of authorized operations (KIP-430)."""


class Authorizer(Protocol):
    """As StandardAuthorizer of Apache Kafka decides (KIP-801)."""

    def allows(
        self, principal: Principal, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """Whether the principal may do it, from this host."""

    def allows_any(self, principal: Principal, host: str, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Whether there may be a resource of the type to which the principal may do it (KIP-679)."""


class Access:
    """``authorizer`` None: everybody may do everything, as without ``authorizer.class.name``."""

    def __init__(self, authorizer: Authorizer | None) -> None:
        self._authorizer = authorizer

    def allows(
        self, context: RequestContext, operation: AclOperation, resource_type: ResourceType, name: str = CLUSTER_NAME
    ) -> bool:
        """Nodes of the cluster, whose principal is None, may do everything."""
        if self._authorizer is None or context.principal is None:
            return True
        return self._authorizer.allows(context.principal, context.client_address, operation, resource_type, name)

    def allows_any(self, context: RequestContext, operation: AclOperation, resource_type: ResourceType) -> bool:
        if self._authorizer is None or context.principal is None:
            return True
        return self._authorizer.allows_any(context.principal, context.client_address, operation, resource_type)

    def refusal(
        self, context: RequestContext, operation: AclOperation, resource_type: ResourceType, name: str = CLUSTER_NAME
    ) -> ErrorCode | None:
        """The error for a sender who may not do it; None: he may."""
        return None if self.allows(context, operation, resource_type, name) else _REFUSALS[resource_type]

    def refusal_of_client(self, context: RequestContext, what: str) -> ErrorCode | None:
        """The error for whoever is no node of the cluster, logged; None: a node may have sent the request.

        Where nodes do not prove themselves, any sender with CLUSTER_ACTION may be one, as in Apache Kafka.
        """
        if context.may_be_from_broker and self.allows(context, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER):
            return None
        return context.refuse_client(what)

    def sees_all(self, context: RequestContext) -> bool:
        """Whether the sender may do everything, whatever the resources are called."""
        return self._authorizer is None or context.principal is None

    def operations(self, context: RequestContext, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """The bits of the operations that the sender may do (KIP-430)."""
        allowed = (each for each in _REPORTED[resource_type] if self.allows(context, AclOperation(each), resource_type, name))
        return sum(1 << each for each in allowed)
