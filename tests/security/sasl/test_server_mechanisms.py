"""Claims about the server's side of PLAIN (RFC 4616) and OAUTHBEARER (RFC 7628)."""

from __future__ import annotations

import json

import pytest

from einmal.security.errors import SaslError
from einmal.security.sasl.mechanisms import OAuthBearerExchange, PlainExchange
from einmal.security.sasl.server_mechanisms import (
    TOKEN_MAX,
    OAuthBearerServerExchange,
    PlainServerExchange,
    TokenToVerify,
)
from einmal.security.secret import Secret

USERS = {"alice": Secret("alice's password"), "bob": Secret("bob's pässword")}


def plain(message: bytes) -> PlainServerExchange:
    exchange = PlainServerExchange(USERS)
    assert exchange.next(message) == b""
    return exchange


@pytest.mark.parametrize(
    ("message", "user"),
    [
        (PlainExchange("alice", USERS["alice"]).first(), "alice"),
        (PlainExchange("bob", USERS["bob"]).first(), "bob"),
        (b"alice\0alice\0alice's password", "alice"),
    ],
)
def test_users_authenticate_by_their_passwords(message: bytes, user: str) -> None:
    exchange = plain(message)
    assert exchange.is_done and exchange.user == user and not exchange.is_node


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\0alice",
        b"\0alice\0",
        b"\0\0alice's password",
        b"\0alice\0a guess",
        b"\0bob\0alice's password",
        b"\0nobody\0alice's password",
        b"\0nobody\0",
        b"bob\0alice\0alice's password",
        b"\0alice\0alice's password\0more",
        b"\0alice\0\xff",
    ],
)
def test_every_other_message_of_plain_is_refused(message: bytes) -> None:
    exchange = PlainServerExchange(USERS)
    with pytest.raises(SaslError):
        exchange.next(message)
    assert not exchange.is_done


def test_an_exchange_of_plain_has_one_message() -> None:
    exchange = plain(b"\0alice\0alice's password")
    with pytest.raises(SaslError, match="over"):
        exchange.next(b"\0alice\0alice's password")


def token_of(message: bytes) -> str:
    asked = OAuthBearerServerExchange().next(message)
    assert isinstance(asked, TokenToVerify)
    return asked.token.reveal()


def test_the_token_of_a_clients_message_is_found() -> None:
    assert token_of(OAuthBearerExchange(Secret("abc.def.ghi"), {"tenant": "one"}).first()) == "abc.def.ghi"
    assert token_of(b"n,a=user,\x01host=x\x01auth=bearer  abc\x01\x01") == "abc"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,\x01\x01",
        b"p=x,,\x01auth=Bearer abc\x01\x01",
        b"n,,\x01auth=Bearer abc\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer abc\x01auth=Bearer def\x01\x01",
        b"n,,\x01auth=Bearer abc\x01no pair\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
        b"n,,\x01auth=Bearer " + b"a" * TOKEN_MAX + b"\x01\x01",
    ],
)
def test_every_other_message_of_oauthbearer_is_refused(message: bytes) -> None:
    with pytest.raises(SaslError):
        OAuthBearerServerExchange().next(message)


def test_a_verified_token_authenticates_until_it_ends() -> None:
    exchange = OAuthBearerServerExchange()
    exchange.next(b"n,a=alice,\x01auth=Bearer abc\x01\x01")
    assert exchange.verified("alice", 12_345) == b""
    assert exchange.is_done and (exchange.user, exchange.ends_ms) == ("alice", 12_345)
    with pytest.raises(SaslError, match="over"):
        exchange.next(b"n,,\x01auth=Bearer abc\x01\x01")


def test_another_authorization_id_than_the_tokens_user_is_refused() -> None:
    exchange = OAuthBearerServerExchange()
    exchange.next(b"n,a=bob,\x01auth=Bearer abc\x01\x01")
    with pytest.raises(SaslError, match="authorization id"):
        exchange.verified("alice", 12_345)
    assert not exchange.is_done


def test_a_refused_token_gets_an_error_that_the_client_acknowledges() -> None:
    exchange = OAuthBearerServerExchange()
    client = OAuthBearerExchange(Secret("abc"), {})
    exchange.next(client.first())
    error = exchange.refused("it has expired")
    assert json.loads(error) == {"status": "invalid_token"}
    acknowledgement = client.next(error)
    assert acknowledgement == b"\x01"
    with pytest.raises(SaslError, match="expired"):
        exchange.next(acknowledgement)
    assert not exchange.is_done
