"""The admin client's calls about ACLs (KIP-140)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from einmal.client.aio.network.cluster import Cluster
from einmal.client.aio.network.results import ask_for, check
from einmal.security.acl import Acl, AclFilter, AclOperation, PatternType, Permission, ResourceType
from einmal.wire.api.create_acls import API as CREATE_ACLS
from einmal.wire.api.create_acls import AclCreation, CreateAclsRequest
from einmal.wire.api.delete_acls import API as DELETE_ACLS
from einmal.wire.api.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from einmal.wire.api.describe_acls import API as DESCRIBE_ACLS
from einmal.wire.api.describe_acls import DescribeAclsRequest

EVERY_ACL: Final = AclFilter()


class AclCalls:
    """A part of the admin client."""

    _cluster: Cluster

    async def create_acls(self, acls: Iterable[Acl]) -> None:
        """Those that hold already are accepted. Raises NotAuthorized, RequestRefused."""
        wanted = list(acls)
        creations = tuple(
            AclCreation(
                acl.resource_type,
                acl.resource_name,
                acl.pattern_type,
                acl.principal,
                acl.host,
                acl.operation,
                acl.permission,
            )
            for acl in wanted
        )
        response = await ask_for(
            self._cluster, CREATE_ACLS, CreateAclsRequest(creations), lambda response: response.results
        )
        for acl, result in zip(wanted, response.results, strict=False):
            check(result, f"creating the ACL {acl}")

    async def describe_acls(self, wanted: AclFilter = EVERY_ACL) -> list[Acl]:
        """The ACLs that the filter matches, as one broker has them. Raises NotAuthorized, RequestRefused."""
        request = DescribeAclsRequest(*_filter(wanted))
        response = await ask_for(self._cluster, DESCRIBE_ACLS, request, lambda response: [response])
        check(response, "describing ACLs")
        return [
            Acl(
                ResourceType(resource.resource_type),
                resource.resource_name,
                PatternType(resource.pattern_type),
                acl.principal,
                acl.host,
                AclOperation(acl.operation),
                Permission(acl.permission_type),
            )
            for resource in response.resources
            for acl in resource.acls
        ]

    async def delete_acls(self, filters: Iterable[AclFilter]) -> list[Acl]:
        """Delete the ACLs that any of the filters matches, and return them. Raises NotAuthorized, RequestRefused."""
        wanted = list(filters)
        request = DeleteAclsRequest(tuple(map(_filter, wanted)))
        response = await ask_for(self._cluster, DELETE_ACLS, request, lambda response: response.filter_results)
        deleted: dict[Acl, None] = {}
        for acl_filter, result in zip(wanted, response.filter_results, strict=False):
            check(result, f"deleting ACLs by {acl_filter}")
            for matching in result.matching_acls:
                acl = Acl(
                    ResourceType(matching.resource_type),
                    matching.resource_name,
                    PatternType(matching.pattern_type),
                    matching.principal,
                    matching.host,
                    AclOperation(matching.operation),
                    Permission(matching.permission_type),
                )
                check(matching, f"deleting the ACL {acl}")
                deleted[acl] = None
        return list(deleted)


def _filter(wanted: AclFilter) -> DeleteAclsFilter:
    """DescribeAcls has the same fields in the same order."""
    return DeleteAclsFilter(
        wanted.resource_type,
        wanted.resource_name,
        wanted.pattern_type,
        wanted.principal,
        wanted.host,
        wanted.operation,
        wanted.permission,
    )
