"""The quota of partitions that a client creates and deletes (KIP-599), for one request on the active controller."""

from __future__ import annotations

from einmal.broker.front.context import RequestContext
from einmal.broker.front.quotas.client_throttles import ClientThrottles


class MutationQuota:
    """``strict_since``: the version from which a topic beyond the quota is refused; older clients are throttled only.

    As in Kafka a bucket may be overdrawn by one topic: what is asked is whether it is overdrawn already.
    """

    def __init__(self, throttles: ClientThrottles, context: RequestContext, strict_since: int) -> None:
        self._throttles = throttles
        self._is_strict = context.api_version >= strict_since
        # The node's own requests, such as those for internal topics, have no principal.
        principal = context.principal
        self._limit = None if principal is None else throttles.bucket(principal.name, context.client_id)
        self.throttle_ms = 0
        """For the answer."""

    def admits(self, partitions: int) -> bool:
        """Whether so many partitions may be created or deleted; they count if so."""
        if self._limit is None:
            return True
        bucket, rate = self._limit
        now_ms = self._throttles.now_ms()
        overdrawn_ms = bucket.overdrawn_ms(rate, now_ms)
        if not (self._is_strict and overdrawn_ms):
            bucket.take(partitions, rate, now_ms)
            if self._is_strict:
                return True
            overdrawn_ms = bucket.overdrawn_ms(rate, now_ms)
        self.throttle_ms = max(self.throttle_ms, overdrawn_ms)
        return not self._is_strict
