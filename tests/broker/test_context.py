"""The sender of a request, as its context shows it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from einmal.broker.front.context import RequestContext
from einmal.broker.listeners import PLAINTEXT, Endpoint, NamedListener
from einmal.broker.resources.turns import Turns
from einmal.seams import SystemClock
from einmal.security.principal import ANONYMOUS, Principal
from einmal.wire.messages import RequestHeader

ALICE: Final = Principal("User", "alice")
CLIENTS: Final = NamedListener(PLAINTEXT, Endpoint("h", 1), PLAINTEXT)
NODES: Final = CLIENTS._replace(is_between_nodes=True)
SASL: Final = CLIENTS._replace(protocol="SASL_PLAINTEXT")
CONNECTION: Final = cast(Any, SimpleNamespace())


@pytest.mark.parametrize(
    ("listener", "principal", "may_be"),
    [
        (NODES, ANONYMOUS, True),
        (CLIENTS, ANONYMOUS, False),
        (SASL, None, True),
        (SASL, ALICE, False),
        (SASL._replace(is_between_nodes=True), ALICE, False),
    ],
)
def test_a_request_may_be_from_a_broker_where_its_sender_can_be_one(
    listener: NamedListener, principal: Principal | None, may_be: bool
) -> None:
    header = RequestHeader(12, 4, 0, None)
    context = RequestContext(header, "host", Turns(SystemClock()), listener, CONNECTION, principal)
    assert context.may_be_from_broker is may_be


def test_a_request_in_an_envelope_is_its_senders() -> None:
    header = RequestHeader(12, 4, 0, None)
    assert RequestContext(header, "host", Turns(SystemClock()), NODES).may_be_from_broker
    assert not RequestContext(header, "host", Turns(SystemClock()), NODES, None, ALICE).may_be_from_broker
