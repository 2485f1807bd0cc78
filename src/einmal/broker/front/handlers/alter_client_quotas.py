"""AlterClientQuotas: set and remove quotas of users, client ids and addresses.

API: 49. Versions: 0-1.
Access: ALTER_CONFIGS on Cluster.
Behaviour: each entity alone, with all its values or none (KIP-546); answered when the change is committed in the
metadata log. Brokers throttle by a new quota as soon as they have replayed it.
Version notes: none that matter here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.metadata.client_quotas import QuotaChange, QuotaResult
from einmal.metadata.controller import Controller
from einmal.metadata.plan import MetadataDecision
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode, Instant
from einmal.wire.api.alter_client_quotas import (
    API,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    RequestEntryData,
    ResponseEntryData,
)

_PARTS_MAX: Final = 10
"""Maximum number of parts of one entity, and of its values: there are three types and five quotas."""
_TOO_MANY: Final = f"An entity has at most {_PARTS_MAX} parts and {_PARTS_MAX} quotas."


@handler
class AlterClientQuotasHandler:
    api: ClassVar = API
    access: Access
    controller: ControllerRuntime

    async def handle(self, context: RequestContext, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
        entries: list[ResponseEntryData] = []
        if not self.access.allows(context, AclOperation.ALTER_CONFIGS, ResourceType.CLUSTER):
            refused = QuotaResult(ErrorCode.cluster_authorization_failed, "Cluster authorization failed.")
            entries = [_response_entry(entry, refused) async for entry in context.paced(request.entries)]
            return AlterClientQuotasResponse(entries=entries)
        async for chunk in context.paced_chunks(request.entries):
            results = await self._change(chunk, validate_only=request.validate_only)
            entries += map(_response_entry, chunk, results)
        return AlterClientQuotasResponse(entries=entries)

    async def _change(self, chunk: Sequence[RequestEntryData], *, validate_only: bool) -> Sequence[QuotaResult]:
        changes = [
            QuotaChange(entry.entity, {op.key: None if op.remove else op.value for op in entry.ops})
            for entry in chunk
            if _is_small(entry)
        ]

        def decide(shard: Controller, _now: Instant) -> MetadataDecision[list[QuotaResult]]:
            return shard.alter_client_quotas(changes, validate_only=validate_only)

        results = await self.controller.submit(decide)
        if isinstance(results, ErrorCode):
            return [QuotaResult(results)] * len(chunk)
        decided = iter(results)
        refused = QuotaResult(ErrorCode.invalid_request, _TOO_MANY)
        return [next(decided) if _is_small(entry) else refused for entry in chunk]


def _is_small(entry: RequestEntryData) -> bool:
    return len(entry.entity) <= _PARTS_MAX and len(entry.ops) <= _PARTS_MAX


def _response_entry(entry: RequestEntryData, result: QuotaResult) -> ResponseEntryData:
    return ResponseEntryData(result.error, result.message, [EntityData(*component) for component in entry.entity])
