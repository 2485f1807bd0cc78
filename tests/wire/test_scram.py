"""SCRAM-SHA-256: who knows the secret gets in, who does not is refused, on both sides."""

from __future__ import annotations

import pytest

from einmal.wire.scram import AuthenticationFailed, ScramClient, ScramServer


def exchange(client_secret: str, server_secret: str) -> ScramServer:
    client, server = ScramClient("node-1", client_secret, "clientnonce"), ScramServer(server_secret, "servernonce")
    client.verify(server.answer(client.final(server.answer(client.first()))))
    return server


def test_the_same_secret_authenticates_both_sides() -> None:
    assert exchange("secret", "secret").user == "node-1"


def test_another_secret_is_refused() -> None:
    with pytest.raises(AuthenticationFailed, match="does not know the secret"):
        exchange("guess", "secret")


def test_a_server_without_the_secret_is_found_out() -> None:
    client, server = ScramClient("node-1", "secret", "clientnonce"), ScramServer("secret", "servernonce")
    client.final(server.answer(client.first()))
    with pytest.raises(AuthenticationFailed, match="server does not know"):
        client.verify(b"v=" + b"A" * 44)


def test_a_replayed_exchange_is_refused() -> None:
    client, server = ScramClient("node-1", "secret", "clientnonce"), ScramServer("secret", "servernonce")
    first = client.first()
    final = client.final(server.answer(first))
    server.answer(final)
    with pytest.raises(AuthenticationFailed):
        server.answer(final)
    other = ScramServer("secret", "anothernonce")
    other.answer(first)
    with pytest.raises(AuthenticationFailed, match="not the client-final"):
        other.answer(final)
    assert other.user is None


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff",
        b"n,,n=user",
        b"p=tls-unique,,n=user,r=clientnonce",
        b"n,,n=user,r=short",
        b"n,,n=user,r=" + b"x" * 2_000,
    ],
)
def test_what_is_no_client_first_message_is_refused(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        ScramServer("secret", "servernonce").answer(message)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"c=biws,r=clientnonceservernonce",
        b"c=biws,r=clientnonceservernonce,p=",
        b"c=biws,r=clientnonceservernonce,p=AA==",
        b"c=biws,r=clientnonceservernonce,p=A",
        b"c=eSws,r=clientnonceservernonce,p=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    ],
)
def test_what_is_no_proof_is_refused(message: bytes) -> None:
    server = ScramServer("secret", "servernonce")
    server.answer(b"n,,n=user,r=clientnonce")
    with pytest.raises(AuthenticationFailed):
        server.answer(message)
    assert server.user is None


@pytest.mark.parametrize(
    "answer",
    [
        b"r=other,s=AAAA,i=4096",
        b"r=clientnonce,s=AAAA,i=4096",
        b"r=clientnonceservernonce,s=AAAA,i=1",
        b"r=clientnonceservernonce,s=AAAA,i=999999",
        b"r=clientnonceservernonce,s=A,i=4096",
        b"e=other-error",
    ],
)
def test_a_client_refuses_a_bad_challenge(answer: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        ScramClient("node-1", "secret", "clientnonce").final(answer)


def test_the_example_of_rfc_7677_is_understood() -> None:
    client = ScramClient("user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    final = client.final(b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    assert final.endswith(b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    client.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
