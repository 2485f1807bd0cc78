"""AlterClientQuotas: set and remove quotas of users, client ids and addresses.

API: 49. Versions: 0-1.
Access: ALTER_CONFIGS on Cluster.
Behaviour: each entity alone, with all its values or none (KIP-546); INVALID_REQUEST for an entity, or a quota of one,
that is named twice. Answered when the change is committed in the metadata log. Brokers throttle by a new quota as soon
as they have replayed it.
Version notes: none that matter here.
"""

from __future__ import annotations

from collections import Counter
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
        named: Counter[frozenset[object]] = Counter()
        async for entry in context.paced(request.entries):
            named[frozenset(entry.entity)] += 1
        asked = ((entry, _problem(entry, named[frozenset(entry.entity)])) for entry in request.entries)
        async for chunk in context.paced_chunks(asked):
            results = await self._change(chunk, validate_only=request.validate_only)
            entries += [_response_entry(entry, result) for (entry, _), result in zip(chunk, results, strict=True)]
        return AlterClientQuotasResponse(entries=entries)

    async def _change(
        self, chunk: Sequence[tuple[RequestEntryData, str | None]], *, validate_only: bool
    ) -> Sequence[QuotaResult]:
        """Each entity with its problem, None: it has none in itself."""
        changes = [
            QuotaChange(entry.entity, {op.key: None if op.remove else op.value for op in entry.ops})
            for entry, problem in chunk
            if problem is None
        ]

        def decide(shard: Controller, _now: Instant) -> MetadataDecision[list[QuotaResult]]:
            return shard.alter_client_quotas(changes, validate_only=validate_only)

        results = await self.controller.submit(decide)
        if isinstance(results, ErrorCode):
            return [QuotaResult(results)] * len(chunk)
        decided = iter(results)
        return [
            next(decided) if problem is None else QuotaResult(ErrorCode.invalid_request, problem)
            for _entry, problem in chunk
        ]


def _problem(entry: RequestEntryData, times: int) -> str | None:
    """``times``: how often the request names this entity."""
    if len(entry.entity) > _PARTS_MAX or len(entry.ops) > _PARTS_MAX:
        return f"An entity has at most {_PARTS_MAX} parts and {_PARTS_MAX} quotas."
    if times > 1:
        return "Ignoring duplicate entity: put all its changes together."
    if len(dict.fromkeys(op.key for op in entry.ops)) < len(entry.ops):
        return "Duplicate quota key: name each quota of an entity once."
    return None


def _response_entry(entry: RequestEntryData, result: QuotaResult) -> ResponseEntryData:
    return ResponseEntryData(result.error, result.message, [EntityData(*component) for component in entry.entity])
