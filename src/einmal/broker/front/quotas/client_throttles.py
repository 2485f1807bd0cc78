"""Usage of this broker by clients, against their quotas; and how long each is to be throttled (KIP-13, 124, 599).

Clients that share a quota share a rate. The rates are this broker's own: a quota holds for each broker, as in Kafka;
those of changes of partitions are the active controller's. Rates that nobody used for the whole span of their windows
are forgotten. Their number is bounded: beyond it the one unused for longest is forgotten, so a client that invents
client ids costs no memory (but it has the quota of each of them, where quotas are set by client id).
"""

from __future__ import annotations

import hashlib
from typing import Final, Generic, TypeVar

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.config import BrokerConfig
from einmal.broker.resources.rates import TokenBucket, WindowedRate, Windows
from einmal.metadata.quota_table import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    REQUEST_PERCENTAGE,
    ClientQuotas,
    QuotaLimit,
)
from einmal.seams import Clock

RATES_MAX: Final = 10_000
"""Maximum number of rates of each kind of quota: some 10 MB if every rate has all its windows."""

_NAME_LENGTH_MAX: Final = 255
"""A longer name is remembered by its hash."""

T = TypeVar("T")
_Sharers = tuple[str | None, str | None]


class _Used(Generic[T]):
    """The rates of one kind, least recently used first."""

    def __init__(self, span_ms: int) -> None:
        self._span_ms = span_ms
        self._rates: dict[_Sharers, tuple[T, int]] = {}

    def __len__(self) -> int:
        return len(self._rates)

    def get(self, sharers: _Sharers, now_ms: int) -> T | None:
        """The rate, which counts as used now."""
        known = self._rates.pop(sharers, None)
        if known is None:
            return None
        self._rates[sharers] = (known[0], now_ms)
        return known[0]

    def add(self, sharers: _Sharers, rate: T, now_ms: int) -> T:
        while self._rates:
            oldest = next(iter(self._rates))
            if len(self._rates) < RATES_MAX and now_ms - self._rates[oldest][1] < self._span_ms:
                break
            del self._rates[oldest]
        self._rates[sharers] = (rate, now_ms)
        return rate


class ClientThrottles:
    def __init__(self, config: BrokerConfig, metadata: ClusterMetadata, clock: Clock) -> None:
        self.windows = Windows(config.quota_window_num, config.quota_window_size_seconds * 1000)
        self._mutation_windows = Windows(
            config.controller_quota_window_num, config.controller_quota_window_size_seconds * 1000
        )
        self._metadata = metadata
        self._clock = clock
        self._rates: dict[str, _Used[WindowedRate]] = {}
        self._buckets: _Used[TokenBucket] = _Used(self._mutation_windows.span_ms)

    @property
    def quotas(self) -> ClientQuotas:
        return self._metadata.image.client_quotas

    def now_ms(self) -> int:
        return self._clock.now().monotonic_ms

    def tracked(self, key: str) -> int:
        """How many rates of this kind are known."""
        return len(self._buckets) if key == CONTROLLER_MUTATION_RATE else len(self._rates.get(key, ()))

    def use(self, key: str, user: str, client_id: str, amount: float) -> int:
        """Count what a client has used. Returns for how many milliseconds it is to be throttled."""
        limit = self.quotas.limit_of(key, user, client_id)
        if limit is None:
            return 0
        now_ms = self.now_ms()
        rate = self._rate(key, limit, now_ms)
        rate.record(amount, now_ms)
        return rate.excess_ms(limit.value, now_ms)

    def use_time(self, user: str, client_id: str, milliseconds: float) -> int:
        """As ``use``, of the broker's time: a throttle lasts at most one window, as in Kafka."""
        # 100 percent are one second of each second.
        return min(self.use(REQUEST_PERCENTAGE, user, client_id, milliseconds / 10), self.windows.milliseconds)

    def fetch_bytes_max(self, user: str, client_id: str, most: int) -> int:
        """Return the maximum size of one answer: more than a quota allows in all windows could never be sent."""
        limit = self.quotas.limit_of(CONSUMER_BYTE_RATE, user, client_id)
        return most if limit is None else min(most, int(limit.value * self.windows.full_seconds))

    def use_fetch(self, user: str, client_id: str, size: int) -> int:
        """As ``use``, of an answer that is not sent if it exceeds the quota: then it does not count.

        One that is too large for the quota is sent to a client that has used nothing: else it never could be.
        """
        limit = self.quotas.limit_of(CONSUMER_BYTE_RATE, user, client_id)
        if limit is None or not size:
            return 0
        now_ms = self.now_ms()
        rate = self._rate(CONSUMER_BYTE_RATE, limit, now_ms)
        was_idle = rate.is_idle(now_ms)
        rate.record(size, now_ms)
        excess_ms = rate.excess_ms(limit.value, now_ms)
        if not excess_ms or was_idle:
            return 0
        rate.record(-size, now_ms)
        return excess_ms

    def use_connection(self, address: str) -> int:
        """Count a new connection of an address. Returns for how many milliseconds to hold it before it is closed, at
        most one window; 0: it may stay, and counts.
        """
        limit = self.quotas.connection_rate_of(address)
        if limit is None:
            return 0
        now_ms = self.now_ms()
        rate = self._rate(CONNECTION_CREATION_RATE, QuotaLimit(limit, address, None), now_ms)
        rate.record(1, now_ms)
        excess_ms = rate.excess_ms(limit, now_ms)
        if excess_ms:
            rate.record(-1, now_ms)
        return min(excess_ms, self.windows.milliseconds)

    def _rate(self, key: str, limit: QuotaLimit, now_ms: int) -> WindowedRate:
        used = self._rates.get(key)
        if used is None:
            used = self._rates[key] = _Used(self.windows.span_ms)
        sharers = _sharers(limit)
        return used.get(sharers, now_ms) or used.add(sharers, WindowedRate(self.windows), now_ms)

    # --- changes of partitions ---------------------------------------------------------------------------------------

    def bucket(self, user: str, client_id: str) -> tuple[TokenBucket, float] | None:
        """From which a client takes partitions to create and delete, and its rate; None: it has no such quota."""
        limit = self.quotas.limit_of(CONTROLLER_MUTATION_RATE, user, client_id)
        if limit is None:
            return None
        now_ms = self.now_ms()
        sharers = _sharers(limit)
        bucket = self._buckets.get(sharers, now_ms)
        if bucket is None:
            bucket = self._buckets.add(sharers, TokenBucket(self._mutation_windows, limit.value, now_ms), now_ms)
        return bucket, limit.value


def _sharers(limit: QuotaLimit) -> _Sharers:
    """Whose rate it is, in few bytes: a client id, and the name in a token, may have 32 KB and more."""
    return _short(limit.user), _short(limit.client_id)


def _short(name: str | None) -> str | None:
    if name is None or len(name) <= _NAME_LENGTH_MAX:
        return name
    return hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
