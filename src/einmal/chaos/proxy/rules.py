"""Which request gets which fault: rules that count the requests they match. No I/O, no clock.

``on`` begins a rule and has the filters, one method of ``Trigger`` names the fault, and ``Rule`` limits how often it
occurs. The first rule that applies to a request is the only one that it gets.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from kio.schema.index import api_key_map

from einmal.chaos.proxy.frames import RequestFrame
from einmal.misspelt import nearest_name
from einmal.types import ErrorCode
from einmal.wire.messages import api_name

APIS: Final = frozenset(map(api_name, api_key_map))
_REORDER_S: Final = 1.0


class Disturbance(StrEnum):
    """The ways to disturb a request or its answer."""

    DROP_ANSWER = "answer dropped"
    DROP_REQUEST = "request dropped"
    DISCONNECT = "disconnected before the request"
    DISCONNECT_AFTER = "disconnected before the answer"
    DELAY = "request delayed"
    DELAY_ANSWER = "answer delayed"
    DUPLICATE = "request duplicated"
    REORDER = "request overtaken"
    ERROR = "refused"


@dataclass(frozen=True, slots=True)
class RequestFault:
    """``seconds``: of a delay. ``error``: of ``ERROR``."""

    kind: Disturbance
    seconds: float = 0.0
    error: ErrorCode = ErrorCode.none

    def __str__(self) -> str:
        if self.kind is Disturbance.ERROR:
            return f"{self.kind} with {self.error.name.upper()}"
        if self.kind in (Disturbance.DELAY, Disturbance.DELAY_ANSWER):
            return f"{self.kind} by {self.seconds:g} s"
        return str(self.kind)


@dataclass(frozen=True, slots=True)
class Filter:
    """Requests of these APIs; ``apis`` empty: of all. None: whatever the value."""

    apis: frozenset[str] = frozenset()
    client_id: str | None = None
    transactional_id: str | None = None
    broker: int | None = None

    def matches(self, request: RequestFrame) -> bool:
        return (
            (not self.apis or request.api in self.apis)
            and self.client_id in (None, request.header.client_id)
            and self.broker in (None, request.broker)
            and (self.transactional_id is None or self.transactional_id in request.transactional_ids)
        )


class Rule:
    """A fault for every matching request, until it is limited. ``matched`` and ``fired`` count requests."""

    def __init__(self, matching: Filter, fault: RequestFault) -> None:
        self.matching = matching
        self.fault = fault
        self.matched = 0
        self.fired = 0
        self._times: int | None = None
        self._nth: int | None = None
        self._chance: random.Random | None = None
        self._probability = 1.0

    def once(self) -> Self:
        """Only for the next matching request."""
        return self.times(1)

    def times(self, count: int) -> Self:
        """For at most so many requests."""
        if count < 1:
            raise ValueError(f"times({count}): the least is 1")
        self._times = count
        return self

    def nth(self, number: int) -> Self:
        """Only for the nth matching request, counted from 1."""
        if number < 1:
            raise ValueError(f"nth({number}): the first matching request is 1")
        self._nth = number
        return self

    def probability(self, probability: float, seed: int = 0) -> Self:
        """For each matching request with this probability, drawn by the seed."""
        if not 0 <= probability <= 1:
            raise ValueError(f"probability({probability}): not between 0 and 1")
        self._probability = probability
        self._chance = random.Random(seed)
        return self

    def applies(self, request: RequestFrame) -> bool:
        """Count the request if it matches, and return whether it gets the fault."""
        if not self.matching.matches(request):
            return False
        self.matched += 1
        applies = (
            (self._nth is None or self.matched == self._nth)
            and (self._times is None or self.fired < self._times)
            and (self._chance is None or self._chance.random() < self._probability)
        )
        self.fired += applies
        return applies


class Trigger:
    """Requests that a fault is chosen for; each method activates a rule.

    A request that comes before the rule is limited, in the same statement, gets the fault, too, and is counted.
    """

    def __init__(self, matching: Filter, add: Callable[[Rule], None]) -> None:
        self._matching = matching
        self._add = add

    def drop_request(self) -> Rule:
        """The broker does not get the request, nor later ones of this connection, which stays open and silent."""
        return self._rule(RequestFault(Disturbance.DROP_REQUEST))

    def drop_answer(self) -> Rule:
        """The broker carries the request out; the client gets neither this answer nor later ones of the connection.

        The connection stays open: the client notices by its request timeout.
        """
        return self._rule(RequestFault(Disturbance.DROP_ANSWER))

    def disconnect(self, *, after: bool = False) -> Rule:
        """Close the client's connection before the broker gets the request.

        ``after``: when the broker has carried it out, in place of the answer.
        """
        return self._rule(RequestFault(Disturbance.DISCONNECT_AFTER if after else Disturbance.DISCONNECT))

    def delay(self, seconds: float) -> Rule:
        """Forward the request, and those behind it on its connection, so much later."""
        return self._delayed("delay", Disturbance.DELAY, seconds)

    def delay_answer(self, seconds: float) -> Rule:
        """Forward the answer, and those behind it on its connection, so much later."""
        return self._delayed("delay_answer", Disturbance.DELAY_ANSWER, seconds)

    def duplicate(self) -> Rule:
        """Forward the request twice; the client gets the first answer."""
        return self._rule(RequestFault(Disturbance.DUPLICATE))

    def reorder(self, within_s: float = _REORDER_S) -> Rule:
        """Forward the request behind the next one of its connection; alone if none comes in this time.

        The client gets its answers in the order of its requests.
        """
        return self._delayed("reorder", Disturbance.REORDER, within_s)

    def error(self, code: str) -> Rule:
        """Answer with this error code, such as ``NOT_COORDINATOR``, and do not forward the request.

        A request whose version is not known is forwarded. Raises ValueError for an unknown code.
        """
        return self._rule(RequestFault(Disturbance.ERROR, error=_error_code(code)))

    def _delayed(self, name: str, kind: Disturbance, seconds: float) -> Rule:
        if not 0 <= seconds < math.inf:
            raise ValueError(f"{name}({seconds}): not a duration")
        return self._rule(RequestFault(kind, seconds))

    def _rule(self, fault: RequestFault) -> Rule:
        rule = Rule(self._matching, fault)
        self._add(rule)
        return rule


class Rules:
    """The active rules, in their order."""

    def __init__(self) -> None:
        self._rules: list[Rule] = []

    def add(self, rule: Rule) -> None:
        self._rules.append(rule)

    def clear(self) -> None:
        self._rules.clear()

    def decide(self, request: RequestFrame) -> RequestFault | None:
        """Return the fault of the first rule that applies; the rules behind it do not see the request."""
        return next((rule.fault for rule in self._rules if rule.applies(request)), None)


def filter_of(
    apis: Collection[str], client_id: str | None = None, transactional_id: str | None = None, broker: int | None = None
) -> Filter:
    """Raises ValueError for an API that does not exist."""
    for api in apis:
        if api not in APIS:
            raise ValueError(f"unknown API {api!r}{_hint(api, APIS)}")
    return Filter(frozenset(apis), client_id, transactional_id, broker)


def _error_code(name: str) -> ErrorCode:
    try:
        return ErrorCode[name.lower()]
    except KeyError:
        names = [code.name.upper() for code in ErrorCode]
        raise ValueError(f"unknown error code {name!r}{_hint(name, names)}") from None


def _hint(name: str, known: Collection[str]) -> str:
    nearest = nearest_name(name, known)
    return "" if nearest is None else f"; did you mean {nearest}?"
