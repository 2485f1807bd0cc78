"""Changes of client quotas, and which quotas a filter matches (KIP-546).

Each entity of a request is decided alone: all its values change, or none. Errors are those of Apache Kafka, except that
an address must be written out (a state machine resolves no names), and that no quota is infinite.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, NamedTuple

from einmal.metadata.plan import Deciding, MetadataDecision
from einmal.metadata.quota_table import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    ClientQuotas,
    QuotaEntity,
)
from einmal.metadata.records import ClientQuotaRecord, QuotaEntityPart
from einmal.shard.decision import Decision
from einmal.types import ErrorCode

_TYPES: Final = (USER, CLIENT_ID, IP)
_INTEGRAL_MAX: Final[Mapping[str, int]] = {
    PRODUCER_BYTE_RATE: 2**63 - 1,
    CONSUMER_BYTE_RATE: 2**63 - 1,
    CONNECTION_CREATION_RATE: 2**31 - 1,
}
"""Quotas that are whole numbers, and the largest of each."""
_OF_CLIENTS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
_OF_ADDRESSES: Final = (CONNECTION_CREATION_RATE,)
_EPSILON: Final = 1e-6
_NAME_BYTES_MAX: Final = 1_024
"""Maximum size of a name, which stays in every node's memory. Kafka has no such limit, and no principal is longer."""
MATCH_EXACT, MATCH_DEFAULT, MATCH_SPECIFIED = range(3)
"""How a filter matches a part of an entity: by name, the one without a name, or any."""


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """New values of an entity, by key; None: there is none any more."""

    entity: Sequence[tuple[str, str | None]]
    values: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class QuotaResult:
    error: ErrorCode = ErrorCode.none
    message: str | None = None


class QuotaFilter(NamedTuple):
    """A part of an entity that a description asks for."""

    entity_type: str
    match_type: int
    match: str | None


class ClientQuotaDecisions(Deciding):
    def alter_client_quotas(
        self, changes: Sequence[QuotaChange], *, validate_only: bool = False
    ) -> MetadataDecision[list[QuotaResult]]:
        records: list[ClientQuotaRecord] = []
        results = []
        for change in changes:
            problem = _problem_of_entity(change.entity) or _problem_of_values(change)
            if problem is None:
                records += _records(change)
                results.append(QuotaResult())
            else:
                results.append(QuotaResult(ErrorCode.invalid_request, problem))
        return Decision(records=() if validate_only else tuple(records), response=results)


def _records(change: QuotaChange) -> Iterator[ClientQuotaRecord]:
    """Also of values that stay as they are: an earlier change of the same request may differ."""
    entity = tuple(sorted(QuotaEntityPart(kind, _plain(kind, name)) for kind, name in change.entity))
    for key, value in change.values.items():
        if value is None and key not in (*_OF_CLIENTS, *_OF_ADDRESSES):
            # It was never set, so as on Kafka its removal is no error.
            continue
        yield ClientQuotaRecord(entity, key, value or 0.0, remove=value is None)


def _plain(kind: str, name: str | None) -> str | None:
    """The name as it is compared: an address has several spellings."""
    return str(ip_address(name)) if kind == IP and name is not None else name


def _problem_of_entity(entity: Sequence[tuple[str, str | None]]) -> str | None:
    kinds = [kind for kind, _name in entity]
    if not kinds:
        return "Invalid empty client quota entity"
    for kind, name in entity:
        if kinds.count(kind) > 1:
            return f"Invalid client quota entity, duplicate entity entry {kind}"
        if kind not in _TYPES:
            return f"Unhandled client quota entity type: {kind}"
        if name == "":
            return f"Empty {kind} not supported"
        if name is not None and len(name.encode()) > _NAME_BYTES_MAX:
            return f"The name of the {kind} has more than {_NAME_BYTES_MAX} bytes"
        if kind == IP and name is not None and not _is_address(name):
            return f"{name} is not a valid IP: write the address, not the name of a host."
    if IP in kinds and len(kinds) > 1:
        return "Invalid quota entity combination, IP entity should not be used with User or ClientId"
    return None


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _problem_of_values(change: QuotaChange) -> str | None:
    keys = _OF_ADDRESSES if change.entity[0][0] == IP else _OF_CLIENTS
    for key, value in change.values.items():
        if value is None:
            continue
        if key not in keys:
            return f"Invalid configuration key {key}"
        if not math.isfinite(value) or value <= 0:
            return f"Quota {key} must be greater than 0"
        largest = _INTEGRAL_MAX.get(key)
        if largest is not None and value > largest:
            return f"Proposed value for {key} is too large: at most {largest}."
        if largest is not None and abs(value - round(value)) > _EPSILON:
            return f"{key} cannot be a fractional value."
    return None


# --- descriptions ------------------------------------------------------------------------------------------------


def problem_of_filter(filters: Sequence[QuotaFilter]) -> QuotaResult:
    """Return what is wrong with a filter."""
    kinds = [component.entity_type for component in filters]
    for kind, match_type, match in filters:
        if not kind:
            return QuotaResult(ErrorCode.invalid_request, "Invalid empty entity type.")
        if kind not in _TYPES:
            return QuotaResult(ErrorCode.unsupported_version, f"Unsupported entity type {kind}")
        if kinds.count(kind) > 1:
            message = f"Entity type {kind} cannot appear more than once in the filter."
            return QuotaResult(ErrorCode.invalid_request, message)
        if match_type not in (MATCH_EXACT, MATCH_DEFAULT, MATCH_SPECIFIED):
            return QuotaResult(ErrorCode.invalid_request, f"Unknown match type {match_type}")
        if match_type == MATCH_EXACT and match is None:
            return QuotaResult(ErrorCode.invalid_request, "A filter by name needs the name.")
        if match_type != MATCH_EXACT and match is not None:
            return QuotaResult(ErrorCode.invalid_request, f"Match type {match_type} excludes the name {match!r}.")
    if IP in kinds and len(kinds) > 1:
        message = (
            "Invalid entity filter component combination. "
            "IP filter component should not be used with user or clientId filter component."
        )
        return QuotaResult(ErrorCode.invalid_request, message)
    return QuotaResult()


def matching(
    quotas: ClientQuotas, filters: Sequence[QuotaFilter], *, strict: bool
) -> Iterator[tuple[QuotaEntity, Mapping[str, float]] | None]:
    """The quotas that a filter without problems matches; None: one does not. ``strict``: entities have no more parts.

    A strict filter without parts matches nothing, as on Kafka.
    """
    wanted = [
        (kind, match_type, _plain(kind, match) if match is None or kind != IP or _is_address(match) else match)
        for kind, match_type, match in filters
    ]
    for entity, values in list(quotas.entities.items()):
        names = dict(entity)
        is_matched = all(
            kind in names and (match_type == MATCH_SPECIFIED or names[kind] == match)
            for kind, match_type, match in wanted
        )
        yield (entity, values) if is_matched and not (strict and len(names) != len(wanted)) else None
