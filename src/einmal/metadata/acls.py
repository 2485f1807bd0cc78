"""Changes of the cluster's ACLs: validated as by Apache Kafka's AclControlManager, and bounded in number.

The texts of an ACL are as its sender wrote them, but for addresses: those have one spelling.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from einmal.metadata.plan import Deciding, MetadataDecision
from einmal.metadata.records import AccessControlEntryRecord, MetadataRecord, RemoveAccessControlEntryRecord
from einmal.security.acl import CLUSTER_NAME, Acl, AclFilter, AclOperation, PatternType, Permission, ResourceType
from einmal.security.errors import SecuritySettingError
from einmal.security.principal import parse_principal
from einmal.shard.decision import Decision
from einmal.types import ErrorCode

ACLS_MAX: Final = 100_000
"""Maximum number of ACLs of a cluster. Every node has all of them in memory."""
TEXT_LENGTH_MAX: Final = 1_024
"""Maximum length of a resource's name, a principal and a host."""


@dataclass(frozen=True, slots=True)
class AclResult:
    """Result for one ACL, or for one filter."""

    error: ErrorCode = ErrorCode.none
    message: str | None = None


_ACCEPTED: Final = AclResult()


class AclDecisions(Deciding):
    def create_acls(self, wanted: Sequence[tuple[UUID, Acl]]) -> MetadataDecision[list[AclResult]]:
        """ACLs, each with its own id; one that holds already is accepted and changes nothing."""
        records: dict[Acl, MetadataRecord] = {}
        results = []
        for acl_id, acl in wanted:
            problem = problem_of_acl(acl)
            if problem is not None:
                results.append(AclResult(ErrorCode.invalid_request, problem))
            elif acl in self.image.acl_ids or acl in records:
                results.append(_ACCEPTED)
            elif len(self.image.acl_ids) + len(records) >= ACLS_MAX:
                results.append(AclResult(ErrorCode.policy_violation, f"The cluster has {ACLS_MAX} ACLs: delete some."))
            else:
                records[acl] = AccessControlEntryRecord(acl_id, *acl)
                results.append(_ACCEPTED)
        return Decision(records=tuple(records.values()), response=results)

    def known_acls(self) -> MetadataDecision[Mapping[Acl, UUID]]:
        """All that hold; once answered they are committed, also those of the controller before."""
        return Decision(response=dict(self.image.acl_ids))

    def remove_acls(self, acls: Iterable[Acl]) -> MetadataDecision[None]:
        """Those that do not hold any more are ignored."""
        ids = dict.fromkeys(self.image.acl_ids[acl] for acl in acls if acl in self.image.acl_ids)
        return Decision(records=tuple(map(RemoveAccessControlEntryRecord, ids)), response=None)


def problem_of_acl(acl: Acl) -> str | None:
    """Why there can be no such ACL; None: there can."""
    if acl.resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
        return f"Invalid resourceType {acl.resource_type.name}"
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return f"Invalid patternType {acl.pattern_type.name}"
    if acl.operation in (AclOperation.UNKNOWN, AclOperation.ANY):
        return f"Invalid operation {acl.operation.name}"
    if acl.permission not in (Permission.DENY, Permission.ALLOW):
        return f"Invalid permissionType {acl.permission.name}"
    if not acl.resource_name:
        return "Resource name should not be empty"
    if acl.resource_type is ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not acl.host:
        return "Host should not be empty: an address, or * for all"
    if max(len(acl.resource_name), len(acl.principal), len(acl.host)) > TEXT_LENGTH_MAX:
        return f"Resource name, principal and host have at most {TEXT_LENGTH_MAX} characters each"
    try:
        parse_principal(acl.principal)
    except SecuritySettingError as error:
        return f"{error.meaning}: {error.hint}"
    return None


def problem_of_filter(wanted: AclFilter) -> str | None:
    """Why nothing can be found by the filter; None: something can."""
    if wanted.resource_type is ResourceType.UNKNOWN or wanted.pattern_type is PatternType.UNKNOWN:
        return "Unknown patternFilter."
    if wanted.operation is AclOperation.UNKNOWN or wanted.permission is Permission.UNKNOWN:
        return "Unknown entryFilter."
    return None
