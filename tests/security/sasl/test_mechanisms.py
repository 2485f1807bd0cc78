"""Claims about PLAIN and OAUTHBEARER: their messages, and what a broker's answer means."""

from __future__ import annotations

import pytest

from einmal.security.errors import SaslError
from einmal.security.sasl.mechanisms import OAuthBearerExchange, PlainExchange
from einmal.security.secret import Secret


def test_plain_sends_user_and_password_once() -> None:
    exchange = PlainExchange("alice", Secret("pä,ss"))
    assert exchange.first() == "\0alice\0pä,ss".encode()
    assert exchange.next(b"") is None


def test_plain_has_no_second_message() -> None:
    with pytest.raises(SaslError, match="one message"):
        PlainExchange("alice", Secret("x")).next(b"more")


def test_a_bearer_token_is_sent_as_in_rfc_7628_with_extensions() -> None:
    exchange = OAuthBearerExchange(Secret("a.b.c"), {"logicalCluster": "lkc-1"})
    assert exchange.first() == b"n,,\x01auth=Bearer a.b.c\x01logicalCluster=lkc-1\x01\x01"
    assert exchange.next(b"") is None


def test_the_brokers_reason_is_acknowledged_and_kept() -> None:
    exchange = OAuthBearerExchange(Secret("a.b.c"), {})
    assert exchange.next(b'{"status":"invalid_token","scope":"kafka"}') == b"\x01"
    assert exchange.refusal == "status=invalid_token, scope=kafka"
    with pytest.raises(SaslError, match="invalid_token"):
        exchange.next(b"more")


@pytest.mark.parametrize("answer", [b"x", b"[]", b'{"status":', b"\xff", b"1", b"[" * 4_000])
def test_a_reason_that_is_no_json_object_is_acknowledged_too(answer: bytes) -> None:
    exchange = OAuthBearerExchange(Secret("a.b.c"), {})
    assert exchange.next(answer) == b"\x01"
    assert "without a reason" in exchange.refusal


@pytest.mark.parametrize("token", ["", "two words", "a\x01b", "a\nb"])
def test_a_text_that_is_no_bearer_token_is_rejected_without_quoting_it(token: str) -> None:
    with pytest.raises(SaslError, match="not a bearer token") as caught:
        OAuthBearerExchange(Secret(token), {})
    assert not token or token not in str(caught.value)
