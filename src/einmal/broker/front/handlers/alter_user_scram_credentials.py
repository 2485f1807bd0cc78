"""AlterUserScramCredentials: create, change and delete the credentials of users for SCRAM.

API: 51. Versions: 0.
Access: ALTER on Cluster.
Behaviour: the client salts and hashes the password; of that, only what a server needs to check it is kept (KIP-554).
Each user may be named once: DUPLICATE_RESOURCE. UNACCEPTABLE_CREDENTIAL for an empty name, and for less than 4,096 or
more than 16,384 iterations; RESOURCE_NOT_FOUND for a deletion of what is not there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.metadata.scram_users import (
    MECHANISM_NAMES,
    ScramChange,
    ScramResult,
    problem_of_credential,
    problem_of_user,
)
from einmal.security.acl import AclOperation, ResourceType
from einmal.security.sasl.scram_server import credential_of_salted
from einmal.types import ErrorCode
from einmal.wire.api.alter_user_scram_credentials import (
    API,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

_TWICE = "A user can be changed only once in a request."


@handler
class AlterUserScramCredentialsHandler:
    api: ClassVar = API
    access: Access
    controller: ControllerRuntime

    async def handle(
        self, context: RequestContext, request: AlterUserScramCredentialsRequest
    ) -> AlterUserScramCredentialsResponse:
        changes: dict[str, ScramChange] = {}
        is_allowed = self.access.allows(context, AclOperation.ALTER, ResourceType.CLUSTER)
        wanted: list[ScramCredentialDeletion | ScramCredentialUpsertion] = [*request.deletions, *request.upsertions]
        async for asked in context.paced(wanted):
            change = _change(asked) if is_allowed else _not_allowed(asked.name)
            former = changes.get(asked.name)
            if former is None:
                changes[asked.name] = change
            elif former.error is ErrorCode.none:
                changes[asked.name] = replace(former, error=ErrorCode.duplicate_resource, message=_TWICE)
        results: list[ScramResult] = []
        async for chunk in context.paced_chunks(changes.values()):
            results += await self._make(chunk)
        return AlterUserScramCredentialsResponse(
            results=[AlterUserScramCredentialsResult(result.user, result.error, result.message) for result in results]
        )

    async def _make(self, changes: list[ScramChange]) -> list[ScramResult]:
        made = await self.controller.submit(lambda shard, now: shard.alter_scram_credentials(changes))
        if isinstance(made, ErrorCode):
            return [ScramResult(change.user, made) for change in changes]
        return made


def _not_allowed(user: str) -> ScramChange:
    error = ErrorCode.cluster_authorization_failed
    return ScramChange(user, 0, None, error, "Cluster authorization failed.")


def _change(asked: ScramCredentialDeletion | ScramCredentialUpsertion) -> ScramChange:
    problem = problem_of_user(asked.name, asked.mechanism)
    if problem is None and isinstance(asked, ScramCredentialUpsertion):
        problem = problem_of_credential(asked.mechanism, asked.iterations, asked.salt, asked.salted_password)
    if problem is not None:
        return ScramChange(asked.name, asked.mechanism, None, *problem)
    if isinstance(asked, ScramCredentialDeletion):
        return ScramChange(asked.name, asked.mechanism)
    name = MECHANISM_NAMES[asked.mechanism]
    credential = credential_of_salted(name, asked.salted_password, asked.salt, asked.iterations)
    return ScramChange(asked.name, asked.mechanism, credential)
