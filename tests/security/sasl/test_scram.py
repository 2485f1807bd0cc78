"""Claims about SCRAM's client: the RFCs' vectors, and no answer but the right one is accepted."""

from __future__ import annotations

import base64

import pytest

from einmal.security.errors import SaslError
from einmal.security.sasl.scram import ScramExchange
from einmal.security.secret import Secret

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def exchange(user: str = "user", password: str = "pencil", mechanism: str = "SCRAM-SHA-256") -> ScramExchange:
    return ScramExchange(mechanism, user, Secret(password), NONCE)


def test_the_vector_of_rfc_7677_is_reproduced() -> None:
    client = exchange()
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert client.next(SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert client.next(SERVER_FINAL) is None


def test_a_broker_that_does_not_know_the_password_is_rejected() -> None:
    client = exchange()
    client.next(SERVER_FIRST)
    with pytest.raises(SaslError, match="does not know the password"):
        client.next(b"v=" + base64.b64encode(bytes(32)))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (SERVER_FIRST.replace(b"i=4096", b"i=4095"), "4095 iterations"),
        (SERVER_FIRST.replace(b"i=4096", b"i=1"), "1 iterations"),
        (SERVER_FIRST.replace(b"i=4096", b"i=1000001"), "1000001 iterations"),
        (SERVER_FIRST.replace(b"i=4096", b"i=99999999999"), "not a server-first"),
        (SERVER_FIRST.replace(b"r=rOp", b"r=xOp"), "nonce"),
        (f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode(), "nonce"),
        (SERVER_FIRST.replace(b"W22Z", b"W22=Z"), "base64"),
        (b"m=extension," + SERVER_FIRST, "not a server-first"),
        (SERVER_FIRST[:30], "not a server-first"),
        (b"", "not a server-first"),
        (b"\xff\xfe", "UTF-8"),
        (b"r=" + b"x" * 5_000, "5002 bytes"),
        (b"e=unknown-user", "unknown-user"),
    ],
)
def test_a_wrong_server_first_message_ends_the_exchange(answer: bytes, reason: str) -> None:
    with pytest.raises(SaslError, match=reason):
        exchange().next(answer)


@pytest.mark.parametrize(
    ("answer", "reason"), [(b"e=invalid-proof", "invalid-proof"), (b"", "server-final"), (b"v=?", "server-final")]
)
def test_a_wrong_server_final_message_ends_the_exchange(answer: bytes, reason: str) -> None:
    client = exchange()
    client.next(SERVER_FIRST)
    with pytest.raises(SaslError, match=reason):
        client.next(answer)


def test_a_user_name_is_escaped_and_not_normalised() -> None:
    assert exchange(user="a=b,ª").first() == f"n,,n=a=3Db=2Cª,r={NONCE}".encode()


def test_sha_512_uses_its_own_hash() -> None:
    final = exchange(mechanism="SCRAM-SHA-512").next(SERVER_FIRST)
    assert final is not None
    assert len(base64.b64decode(final.partition(b",p=")[2])) == 64
