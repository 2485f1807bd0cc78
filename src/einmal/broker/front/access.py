"""May the sender of a request do something to a resource? Handlers ask before they reveal or change anything."""

from __future__ import annotations

from typing import Protocol

from einmal.broker.front.context import RequestContext
from einmal.security.acl import CLUSTER_NAME, AclOperation, ResourceType
from einmal.security.principal import Principal


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
