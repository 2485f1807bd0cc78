"""The admin client's calls for client quotas (KIP-546)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from einmal.client.aio.network.cluster import Cluster
from einmal.client.aio.network.results import ask_for, check
from einmal.client.descriptions import ClientQuota
from einmal.wire.api.alter_client_quotas import API as ALTER_CLIENT_QUOTAS
from einmal.wire.api.alter_client_quotas import AlterClientQuotasRequest, OpData, RequestEntryData
from einmal.wire.api.alter_client_quotas import EntityData as AlteredEntity
from einmal.wire.api.describe_client_quotas import API as DESCRIBE_CLIENT_QUOTAS
from einmal.wire.api.describe_client_quotas import ComponentData, DescribeClientQuotasRequest

_EXACT: Final = 0
_DEFAULT: Final = 1
_ANY: Final = 2


class QuotaCalls:
    """Calls of ``Admin`` about quotas. An entity has types (user, client-id, ip) and their names; None is the default
    of the type."""

    _cluster: Cluster

    async def describe_client_quotas(
        self, entity: Mapping[str, str | None] | None = None, *, types: Iterable[str] = (), strict: bool = False
    ) -> list[ClientQuota]:
        """The quotas of entities with these names, and with any name of these types; without both of all entities.

        ``strict``: of entities without further types. Raises RequestRefused.
        """
        components = [
            ComponentData(kind, _DEFAULT if name is None else _EXACT, name) for kind, name in (entity or {}).items()
        ]
        components += [ComponentData(kind, _ANY) for kind in types]
        request = DescribeClientQuotasRequest(tuple(components), strict)
        response = await ask_for(self._cluster, DESCRIBE_CLIENT_QUOTAS, request, lambda response: [response])
        check(response, "client quotas")
        return [
            ClientQuota(
                {component.entity_type: component.entity_name for component in entry.entity},
                {value.key: value.value for value in entry.values},
            )
            for entry in response.entries or ()
        ]

    async def alter_client_quotas(
        self, entity: Mapping[str, str | None], values: Mapping[str, float | None], *, validate_only: bool = False
    ) -> None:
        """Set quotas of an entity; None removes one. Raises RequestRefused."""
        entry = RequestEntryData(
            tuple(AlteredEntity(kind, name) for kind, name in entity.items()),
            tuple(OpData(key, 0.0 if value is None else float(value), value is None) for key, value in values.items()),
        )
        request = AlterClientQuotasRequest((entry,), validate_only)
        response = await ask_for(self._cluster, ALTER_CLIENT_QUOTAS, request, lambda response: response.entries)
        for result in response.entries:
            check(result, "client quota")
