"""ACLs and filters of ACLs between the wire, where they are numbers and texts, and their types."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, Protocol

from einmal.broker.front.context import RequestContext
from einmal.security.acl import (
    Acl,
    AclFilter,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
    canonical_host,
)
from einmal.wire.api.create_acls import AclCreation

NO_AUTHORIZER: Final = "No Authorizer is configured on the broker."
NOT_AUTHORIZED: Final = "Cluster authorization failed."
_ACLS_PER_STEP: Final = 100


class FilterFields(Protocol):
    """A filter in DescribeAcls or DeleteAcls."""

    @property
    def resource_type_filter(self) -> int: ...
    @property
    def resource_name_filter(self) -> str | None: ...
    @property
    def pattern_type_filter(self) -> int: ...
    @property
    def principal_filter(self) -> str | None: ...
    @property
    def host_filter(self) -> str | None: ...
    @property
    def operation(self) -> int: ...
    @property
    def permission_type(self) -> int: ...


def filter_of(fields: FilterFields) -> AclFilter:
    host = fields.host_filter
    return AclFilter(
        ResourceType(fields.resource_type_filter),
        fields.resource_name_filter,
        PatternType(fields.pattern_type_filter),
        fields.principal_filter,
        None if host is None else canonical_host(host),
        AclOperation(fields.operation),
        Permission(fields.permission_type),
    )


def acl_of(fields: AclCreation) -> Acl:
    return Acl(
        ResourceType(fields.resource_type),
        fields.resource_name,
        PatternType(fields.resource_pattern_type),
        fields.principal,
        canonical_host(fields.host),
        AclOperation(fields.operation),
        Permission(fields.permission_type),
    )


async def matching_acls(context: RequestContext, wanted: AclFilter, acls: Sequence[Acl]) -> AsyncIterator[Acl]:
    """Those that the filter matches, in turns with other work. ``acls`` must not change meanwhile."""
    async for begin in context.paced(range(0, len(acls), _ACLS_PER_STEP)):
        for acl in acls[begin : begin + _ACLS_PER_STEP]:
            if wanted.matches(acl):
                yield acl
