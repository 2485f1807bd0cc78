"""Access control lists: who may do what to which resources, with the numbers of Kafka's protocol. Pure (KIP-11, 290).

``Permission`` is Kafka's AclPermissionType; the other names are Kafka's.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple, Self


class _Numbered(IntEnum):
    """Another number is UNKNOWN, as in Apache Kafka: a later version may have it."""

    @classmethod
    def _missing_(cls, value: object) -> Self:
        return cls(0)


class ResourceType(_Numbered):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclOperation(_Numbered):
    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class PatternType(_Numbered):
    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(_Numbered):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


CLUSTER_NAME: Final = "kafka-cluster"
"""The only name of a resource of type CLUSTER."""
WILDCARD: Final = "*"
"""As the name of a literal pattern: every resource of the type; as a host or as a user's name: every one."""

_OF_CONFIGS: Final = (AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)
OPERATIONS: Final[Mapping[ResourceType, tuple[AclOperation, ...]]] = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        *_OF_CONFIGS,
    ),
    ResourceType.GROUP: (AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE, *_OF_CONFIGS),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        *_OF_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (AclOperation.DESCRIBE,),
    ResourceType.USER: (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS),
}
"""The operations that resources of each type have."""
OPERATION_BITS: Final[Mapping[ResourceType, int]] = {
    resource_type: sum(1 << operation for operation in operations) for resource_type, operations in OPERATIONS.items()
}
"""The same as authorized operations are encoded (KIP-430): a bit for each, by its number."""


class Acl(NamedTuple):
    """An access control entry and the resources it is about (Kafka's AclBinding).

    ``principal``: ``User:alice``. ``host``: as ``canonical_host`` returns it.
    """

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: AclOperation
    permission: Permission


class AclFilter(NamedTuple):
    """Which ACLs are meant (Kafka's AclBindingFilter). None and ANY: all.

    ``pattern_type`` MATCH: all ACLs that apply to a resource of this name.
    """

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: Permission = Permission.ANY

    @property
    def only(self) -> Acl | None:
        """The one ACL that it can match; None: there may be several."""
        if self.resource_type is ResourceType.ANY or self.pattern_type in (PatternType.ANY, PatternType.MATCH):
            return None
        if self.resource_name is None or self.principal is None or self.host is None:
            return None
        if self.operation is AclOperation.ANY or self.permission is Permission.ANY:
            return None
        return Acl(
            self.resource_type,
            self.resource_name,
            self.pattern_type,
            self.principal,
            self.host,
            self.operation,
            self.permission,
        )

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (AclOperation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        is_match = self.pattern_type is PatternType.MATCH
        if not is_match and self.pattern_type not in (PatternType.ANY, acl.pattern_type):
            return False
        if self.resource_name in (None, acl.resource_name):
            return True
        if not is_match or self.resource_name is None:
            return False
        if acl.pattern_type is PatternType.PREFIXED:
            return self.resource_name.startswith(acl.resource_name)
        return acl.resource_name == WILDCARD


def canonical_host(host: str) -> str:
    """An address in its only spelling, so that ``::1`` is ``0:0:0:0:0:0:0:1``; another text as it is."""
    if host == WILDCARD:
        return host
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)
