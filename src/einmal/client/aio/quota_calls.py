"""The admin client's calls for client quotas (KIP-546)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from einmal.client.aio.cluster import Cluster
from einmal.client.apis import ApiKey
from einmal.client.descriptions import ClientQuota
from einmal.client.errors import error_for
from einmal.types import ErrorCode

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
            {"entity_type": kind, "match_type": _DEFAULT if name is None else _EXACT, "match": name}
            for kind, name in (entity or {}).items()
        ]
        components += [{"entity_type": kind, "match_type": _ANY, "match": None} for kind in types]
        response = await self._cluster.call_any(
            ApiKey.DESCRIBE_CLIENT_QUOTAS,
            {"components": components, "strict": strict},
            deadline=self._cluster.deadline(),
            error_of=lambda told: _retriable(told.error_code),
        )
        if response.error_code is not ErrorCode.none:
            raise error_for(response.error_code, _what("client quotas", response.error_message))
        return [
            ClientQuota(
                {part.entity_type: part.entity_name for part in entry.entity},
                {each.key: each.value for each in entry.values},
            )
            for entry in response.entries or ()
        ]

    async def alter_client_quotas(
        self, entity: Mapping[str, str | None], values: Mapping[str, float | None], *, validate_only: bool = False
    ) -> None:
        """Set quotas of an entity; None removes one. Raises RequestRefused."""
        entry = {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
            "ops": [
                {"key": key, "value": 0.0 if value is None else float(value), "remove": value is None}
                for key, value in values.items()
            ],
        }
        response = await self._cluster.call_any(
            ApiKey.ALTER_CLIENT_QUOTAS,
            {"entries": [entry], "validate_only": validate_only},
            deadline=self._cluster.deadline(),
            error_of=lambda told: next(filter(None, map(_retriable_of, told.entries)), ErrorCode.none),
        )
        for told in response.entries:
            if told.error_code is not ErrorCode.none:
                raise error_for(told.error_code, _what("client quota", told.error_message))


def _retriable(code: ErrorCode) -> ErrorCode:
    return code if code.retriable else ErrorCode.none


def _retriable_of(entry: Any) -> ErrorCode:
    return _retriable(entry.error_code)


def _what(what: str, message: str | None) -> str:
    return f"{what}: {message.rstrip('.')}" if message else what
