"""The admin client's calls about ACLs (KIP-140)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from einmal.client.aio.cluster import Cluster
from einmal.client.apis import ApiKey
from einmal.client.errors import error_for
from einmal.security.acl import Acl, AclFilter, AclOperation, PatternType, Permission, ResourceType
from einmal.types import ErrorCode

EVERY_ACL: Final = AclFilter()


class AclCalls:
    """A part of the admin client."""

    _cluster: Cluster

    async def create_acls(self, acls: Iterable[Acl]) -> None:
        """Those that hold already are accepted. Raises NotAuthorized, RequestRefused."""
        wanted = list(acls)
        creations = [
            {
                "resource_type": acl.resource_type,
                "resource_name": acl.resource_name,
                "resource_pattern_type": acl.pattern_type,
                "principal": acl.principal,
                "host": acl.host,
                "operation": acl.operation,
                "permission_type": acl.permission,
            }
            for acl in wanted
        ]
        response = await self._call_about_acls(ApiKey.CREATE_ACLS, {"creations": creations}, lambda told: told.results)
        for acl, told in zip(wanted, response.results, strict=False):
            _check(told, f"creating the ACL {acl}")

    async def describe_acls(self, wanted: AclFilter = EVERY_ACL) -> list[Acl]:
        """The ACLs that the filter matches, as one broker has them. Raises NotAuthorized, RequestRefused."""
        response = await self._call_about_acls(ApiKey.DESCRIBE_ACLS, _fields(wanted), lambda told: [told])
        _check(response, "describing ACLs")
        return [
            Acl(
                ResourceType(resource.resource_type),
                resource.resource_name,
                PatternType(resource.pattern_type),
                each.principal,
                each.host,
                AclOperation(each.operation),
                Permission(each.permission_type),
            )
            for resource in response.resources
            for each in resource.acls
        ]

    async def delete_acls(self, filters: Iterable[AclFilter]) -> list[Acl]:
        """Delete the ACLs that any of the filters matches, and return them. Raises NotAuthorized, RequestRefused."""
        wanted = list(filters)
        fields = {"filters": [_fields(each) for each in wanted]}
        response = await self._call_about_acls(ApiKey.DELETE_ACLS, fields, lambda told: told.filter_results)
        deleted: dict[Acl, None] = {}
        for each, told in zip(wanted, response.filter_results, strict=False):
            _check(told, f"deleting ACLs by {each}")
            for matching in told.matching_acls:
                acl = Acl(
                    ResourceType(matching.resource_type),
                    matching.resource_name,
                    PatternType(matching.pattern_type),
                    matching.principal,
                    matching.host,
                    AclOperation(matching.operation),
                    Permission(matching.permission_type),
                )
                _check(matching, f"deleting the ACL {acl}")
                deleted[acl] = None
        return list(deleted)

    async def _call_about_acls(self, api_key: ApiKey, fields: dict[str, Any], results: Any) -> Any:
        """Retried while any of its results has a retriable error."""

        def error_of(told: Any) -> ErrorCode:
            codes = (each.error_code for each in results(told))
            return next((code for code in codes if code.retriable), ErrorCode.none)

        return await self._cluster.call_any(api_key, fields, deadline=self._cluster.deadline(), error_of=error_of)


def _fields(wanted: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": wanted.resource_type,
        "resource_name_filter": wanted.resource_name,
        "pattern_type_filter": wanted.pattern_type,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }


def _check(told: Any, what: str) -> None:
    if told.error_code is not ErrorCode.none:
        message = told.error_message
        raise error_for(told.error_code, f"{what}: {message.rstrip('.')}" if message else what)
