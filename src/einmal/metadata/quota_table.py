"""The client quotas of the cluster, and which of them applies to a client (KIP-13, KIP-55, KIP-546, KIP-612).

Part of the image: changed by ``replay`` alone. An entity is what a quota applies to: a user, a client id, both, or an
address; a part without a name stands for all that have no quota of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from einmal.metadata.records import ClientQuotaRecord, QuotaEntityPart

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

QuotaEntity: TypeAlias = tuple[QuotaEntityPart, ...]
"""Ordered by type."""


class QuotaLimit(NamedTuple):
    """The quota of a client. All clients with the same ``user`` and ``client_id`` share it; None: no matter which."""

    value: float
    user: str | None
    client_id: str | None


@dataclass(slots=True)
class ClientQuotas:
    entities: dict[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    _by_key: dict[str, dict[QuotaEntity, float]] = field(default_factory=dict, compare=False, repr=False)

    def copy(self) -> ClientQuotas:
        """A copy of the present quotas."""
        return ClientQuotas(dict(self.entities), {key: dict(values) for key, values in self._by_key.items()})

    def __bool__(self) -> bool:
        return bool(self.entities)

    def has(self, key: str) -> bool:
        """Whether anything has a quota of this kind."""
        return key in self._by_key

    def limit_of(self, key: str, user: str, client_id: str) -> QuotaLimit | None:
        """The quota of a client: the most specific one, in Kafka's order; None: there is none.

        A user's quota comes before one of all users, and each of them before one of a client id alone.
        """
        limits = self._by_key.get(key)
        if limits is None:
            return None
        for name in (user, None):
            for client in (client_id, None):
                if (value := limits.get((QuotaEntityPart(CLIENT_ID, client), QuotaEntityPart(USER, name)))) is not None:
                    return QuotaLimit(value, user, client_id)
            if (value := limits.get((QuotaEntityPart(USER, name),))) is not None:
                return QuotaLimit(value, user, None)
        for client in (client_id, None):
            if (value := limits.get((QuotaEntityPart(CLIENT_ID, client),))) is not None:
                return QuotaLimit(value, None, client_id)
        return None

    def connection_rate_of(self, address: str) -> float | None:
        """New connections per second that the address may open; None: as many as it likes."""
        limits = self._by_key.get(CONNECTION_CREATION_RATE)
        if limits is None:
            return None
        own = limits.get((QuotaEntityPart(IP, address),))
        return limits.get((QuotaEntityPart(IP, None),)) if own is None else own

    def replay(self, record: ClientQuotaRecord) -> None:
        entity = tuple(sorted(record.entity))
        values = dict(self.entities.get(entity, {}))
        limits = self._by_key.setdefault(record.key, {})
        if record.remove:
            values.pop(record.key, None)
            limits.pop(entity, None)
        else:
            values[record.key] = limits[entity] = record.value
        if not limits:
            del self._by_key[record.key]
        if values:
            self.entities[entity] = values
        else:
            self.entities.pop(entity, None)

    def records(self) -> Iterator[ClientQuotaRecord]:
        """Records that build these quotas."""
        for entity, values in self.entities.items():
            for key, value in values.items():
                yield ClientQuotaRecord(entity, key, value)
