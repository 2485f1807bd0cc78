"""Decides who may do what, from access control lists, as Apache Kafka's StandardAuthorizer does (KIP-801). Pure.

A request is allowed if an ACL allows it and none denies it. An ACL applies by its resource pattern (literal, prefixed,
or ``*``), its principal (``User:*`` is everybody) and its host (an address, or ``*``). ALLOW of READ, WRITE, DELETE or
ALTER allows DESCRIBE too, ALLOW of ALTER_CONFIGS allows DESCRIBE_CONFIGS, ALL is every operation. DENY implies nothing
but ALL (KIP-11, 290).

The cost of a decision depends neither on the number of ACLs nor on that of principals: patterns are found by type,
principal and host, then by name; a prefixed one by each length that any prefix has. One decision covers all operations
and is remembered until the ACLs change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import product
from typing import Final, TypeAlias

from einmal.security.acl import WILDCARD, Acl, AclOperation, PatternType, Permission, ResourceType, canonical_host
from einmal.security.principal import USER, Principal

EVERY_OPERATION: Final = sum(1 << operation for operation in AclOperation if operation >= AclOperation.ALL)
"""A bit for each operation, by its number."""
_EVERYBODY: Final = f"{USER}:{WILDCARD}"
_IMPLIES_DESCRIBE: Final = sum(
    1 << operation for operation in (AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER)
)
_ALL: Final = 1 << AclOperation.ALL
_REMEMBERED_MAX: Final = 50_000
_REMEMBERED_NAME_MAX: Final = 256
"""Longer names, which a client can invent, are decided anew each time."""
_ANY_NAME: Final = "hardcode"
"""The name that Apache Kafka checks on behalf of all."""

_Holder: TypeAlias = tuple[Permission, ResourceType, str, str]
"""Permission, type, principal and host."""


class _Patterns:
    """A number for each pattern of names: a set of operations, or a count of ACLs; never 0."""

    __slots__ = ("lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, int] = {}
        self.prefixed: dict[str, int] = {}
        self.lengths: dict[int, int] = {}
        """How many prefixes have each length."""

    def matching(self, name: str) -> int:
        """The numbers of all patterns that the name matches, joined by or."""
        joined = self.literal.get(name, 0) | self.literal.get(WILDCARD, 0)
        for length in self.lengths:
            # A name that is shorter is its own prefix, which matches too.
            joined |= self.prefixed.get(name[:length], 0)
        return joined

    def change(self, acl: Acl, by: int) -> None:
        """Add to the number of the ACL's pattern: an operation's bit, which is not in it yet, or an ACL's count."""
        is_prefixed = acl.pattern_type is PatternType.PREFIXED
        numbers, name = self.prefixed if is_prefixed else self.literal, acl.resource_name
        before = numbers.get(name, 0)
        after = before + by
        if after:
            numbers[name] = after
        else:
            del numbers[name]
        if is_prefixed and bool(before) is not bool(after):
            length = len(name)
            self.lengths[length] = self.lengths.get(length, 0) + (1 if after else -1)
            if not self.lengths[length]:
                del self.lengths[length]

    def __bool__(self) -> bool:
        return bool(self.literal or self.prefixed)


class StandardAuthorizer:
    """``super_users`` may do everything. ``allow_if_no_acl``: so may everybody to a resource that no ACL is about."""

    def __init__(self, super_users: Iterable[Principal] = (), *, allow_if_no_acl: bool = False) -> None:
        self._super_users = frozenset(super_users)
        self._allow_if_no_acl = allow_if_no_acl
        self._patterns: dict[_Holder, _Patterns] = {}
        self._counts: dict[ResourceType, _Patterns] = {}
        self._remembered: dict[tuple[Principal, str, ResourceType, str], int] = {}
        self._remembered_types: dict[tuple[Principal, str, AclOperation, ResourceType], bool] = {}

    def is_super_user(self, principal: Principal) -> bool:
        return principal in self._super_users

    # --- ACLs --------------------------------------------------------------------------------------------------------

    def replace(self, acls: Iterable[Acl]) -> None:
        """These are all ACLs from now on."""
        self._patterns.clear()
        self._counts.clear()
        for acl in acls:
            self._add(acl)
        self._forget()

    def add(self, acl: Acl) -> None:
        """The ACL holds from now on; it must not hold already."""
        self._add(acl)
        self._forget()

    def _add(self, acl: Acl) -> None:
        holder = _holder_of(acl)
        patterns = self._patterns.get(holder)
        if patterns is None:
            patterns = self._patterns[holder] = _Patterns()
        patterns.change(acl, 1 << acl.operation)
        counts = self._counts.get(acl.resource_type)
        if counts is None:
            counts = self._counts[acl.resource_type] = _Patterns()
        counts.change(acl, 1)

    def remove(self, acl: Acl) -> None:
        """The ACL, which has held, holds no more."""
        holder = _holder_of(acl)
        patterns = self._patterns[holder]
        patterns.change(acl, -(1 << acl.operation))
        if not patterns:
            del self._patterns[holder]
        self._counts[acl.resource_type].change(acl, -1)
        self._forget()

    def _forget(self) -> None:
        self._remembered.clear()
        self._remembered_types.clear()

    # --- decisions ---------------------------------------------------------------------------------------------------

    def allows(
        self, principal: Principal, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """Whether the principal may do it, from this host, to the resource of this very name."""
        return bool(self.operations(principal, host, resource_type, name) >> operation & 1)

    def operations(self, principal: Principal, host: str, resource_type: ResourceType, name: str) -> int:
        """Everything that the principal may do to the resource: a bit for each operation."""
        key = (principal, host, resource_type, name)
        operations = self._remembered.get(key)
        if operations is None:
            operations = self._decide(principal, host, resource_type, name)
            if len(name) <= _REMEMBERED_NAME_MAX:
                if len(self._remembered) >= _REMEMBERED_MAX:
                    self._remembered.clear()
                self._remembered[key] = operations
        return operations

    def _decide(self, principal: Principal, host: str, resource_type: ResourceType, name: str) -> int:
        if principal in self._super_users:
            return EVERY_OPERATION
        allowed = denied = 0
        holders = _holders(principal, host)
        for patterns in self._held(Permission.ALLOW, resource_type, holders):
            allowed |= patterns.matching(name)
        for patterns in self._held(Permission.DENY, resource_type, holders):
            denied |= patterns.matching(name)
        if not allowed and not denied and self._allow_if_no_acl and not self._has_acls(resource_type, name):
            return EVERY_OPERATION
        return _implied(allowed) & ~(EVERY_OPERATION if denied & _ALL else denied)

    def _has_acls(self, resource_type: ResourceType, name: str) -> bool:
        counts = self._counts.get(resource_type)
        return counts is not None and counts.matching(name) > 0

    def _held(
        self, permission: Permission, resource_type: ResourceType, holders: Iterable[tuple[str, str]]
    ) -> Iterator[_Patterns]:
        for who, where in holders:
            patterns = self._patterns.get((permission, resource_type, who, where))
            if patterns is not None:
                yield patterns

    def allows_any(self, principal: Principal, host: str, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Whether there may be a resource of the type to which the principal may do it (KIP-679)."""
        key = (principal, host, operation, resource_type)
        is_allowed = self._remembered_types.get(key)
        if is_allowed is None:
            is_allowed = self.allows(principal, host, operation, resource_type, _ANY_NAME) or self._allows_some(*key)
            if len(self._remembered_types) >= _REMEMBERED_MAX:
                self._remembered_types.clear()
            self._remembered_types[key] = is_allowed
        return is_allowed

    def _allows_some(
        self, principal: Principal, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Whether a pattern allows it that is not denied as a whole."""
        bits = _ALL | 1 << operation
        holders = _holders(principal, host)
        denied, denied_prefixes = set[str](), set[str]()
        for patterns in self._held(Permission.DENY, resource_type, holders):
            denied.update(_names(patterns.literal, bits))
            denied_prefixes.update(_names(patterns.prefixed, bits))
        if WILDCARD in denied:
            return False
        lengths = {len(prefix) for prefix in denied_prefixes}
        for patterns in self._held(Permission.ALLOW, resource_type, holders):
            if patterns.literal.get(WILDCARD, 0) & bits:
                return True
            allowed = [name for name in _names(patterns.literal, bits) if name not in denied]
            allowed += _names(patterns.prefixed, bits)
            if any(all(name[:length] not in denied_prefixes for length in lengths) for name in allowed):
                return True
        return False


@lru_cache(maxsize=1_000)
def _holders(principal: Principal, host: str) -> tuple[tuple[str, str], ...]:
    """All principals and hosts of ACLs that apply."""
    return tuple(product(dict.fromkeys((str(principal), _EVERYBODY)), (canonical_host(host), WILDCARD)))


def _holder_of(acl: Acl) -> _Holder:
    return acl.permission, acl.resource_type, acl.principal, acl.host


def _implied(operations: int) -> int:
    """The operations, and those that they allow too."""
    if operations & _ALL:
        return EVERY_OPERATION
    if operations & _IMPLIES_DESCRIBE:
        operations |= 1 << AclOperation.DESCRIBE
    if operations & 1 << AclOperation.ALTER_CONFIGS:
        operations |= 1 << AclOperation.DESCRIBE_CONFIGS
    return operations


def _names(numbers: Mapping[str, int], bits: int) -> Iterator[str]:
    """The names whose operations have one of the bits."""
    return (name for name, operations in numbers.items() if operations & bits)
