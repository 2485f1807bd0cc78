"""Claims about SCRAM's server: the RFC's vector, who gets in, and that an unknown user looks like a wrong password."""

from __future__ import annotations

import base64
import hmac

import pytest

from einmal.security.errors import SaslError
from einmal.security.sasl.scram import HASHES, NODE_EXTENSION, ScramExchange, scram_keys
from einmal.security.sasl.scram_server import (
    SALT_LENGTH,
    ScramCredential,
    ScramServerExchange,
    ScramUsers,
    credential_of,
    credential_of_salted,
    node_credential,
    salt_of,
)
from einmal.security.secret import Secret

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
ALICE = credential_of(SHA_256, Secret("alice's password"), b"a salt", 4_096)
CLUSTER = Secret("the secret of this cluster")


def users(**changes: object) -> ScramUsers:
    return ScramUsers({"alice": ALICE}.get, b"seed")._replace(**changes)  # type: ignore[arg-type]


def server(of: ScramUsers | None = None, mechanism: str = SHA_256) -> ScramServerExchange:
    return ScramServerExchange(mechanism, "servernonce", of or users())


def run(client: ScramExchange, against: ScramServerExchange) -> None:
    """The whole exchange. Raises SaslError."""
    proof = client.next(against.next(client.first()))
    assert proof is not None
    assert client.next(against.next(proof)) is None


def client(user: str = "alice", password: str = "alice's password", extension: str = "") -> ScramExchange:
    return ScramExchange(SHA_256, user, Secret(password), "clientnonce", extension)


def test_the_vector_of_rfc_7677_is_reproduced() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    credential = credential_of(SHA_256, Secret("pencil"), salt, 4_096)
    exchange = ScramServerExchange(SHA_256, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", ScramUsers({"user": credential}.get, b""))
    first = exchange.next(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = exchange.next(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert exchange.is_done and exchange.user == "user" and not exchange.is_node


@pytest.mark.parametrize("mechanism", HASHES)
def test_both_sides_authenticate_by_each_mechanism(mechanism: str) -> None:
    credential = credential_of(mechanism, Secret("pässword"), b"salt", 8_192)
    exchange = server(users(find={"a=b,c": credential}.get), mechanism)
    run(ScramExchange(mechanism, "a=b,c", Secret("pässword"), "clientnonce"), exchange)
    assert (exchange.user, exchange.is_done) == ("a=b,c", True)


def test_a_credential_of_a_salted_password_is_that_of_the_password() -> None:
    import hashlib

    salted = hashlib.pbkdf2_hmac("sha256", b"alice's password", b"a salt", 4_096)
    assert credential_of_salted(SHA_256, salted, b"a salt", 4_096) == ALICE


@pytest.mark.parametrize("user", ["alice", "nobody", "node-1"])
def test_a_wrong_password_and_an_unknown_user_are_refused_at_the_same_step(user: str) -> None:
    exchange = server()
    of_client = client(user, "a guess")
    proof = of_client.next(exchange.next(of_client.first()))
    assert proof is not None
    with pytest.raises(SaslError, match="unknown user or wrong password"):
        exchange.next(proof)
    assert not exchange.is_done


def test_the_made_up_salt_of_an_unknown_user_is_always_the_same_and_like_others() -> None:
    firsts = [server().next(client("nobody").first()) for _ in range(2)]
    assert firsts[0] == firsts[1]
    others = [server(of).next(client(name).first()) for of, name in ((users(), "noone"), (users(seed=b"x"), "nobody"))]
    assert len({firsts[0], *others}) == 3
    salt = base64.b64decode(firsts[0].split(b",")[1][2:])
    assert len(salt) == SALT_LENGTH == len(salt_of(bytes(range(SALT_LENGTH))))
    assert salt.isalnum()


@pytest.mark.parametrize("known", [{}, {"alice": ALICE}, {"alice": ALICE._replace(iterations=8_192)}])
def test_a_made_up_exchange_does_not_depend_on_those_who_exist(known: dict[str, ScramCredential]) -> None:
    first = server(users(find=known.get)).next(client("nobody").first())
    assert first == server().next(client("nobody").first())
    assert first.endswith(b",i=16384"), "as what our tools set unless they are told another number"


def test_a_node_authenticates_by_the_clusters_secret_and_announces_itself() -> None:
    exchange = server(users(node=node_credential(CLUSTER, b"salt")))
    run(client("node-1", CLUSTER.reveal(), NODE_EXTENSION), exchange)
    assert exchange.is_done and exchange.is_node


@pytest.mark.parametrize(
    ("user", "password", "extension"),
    [
        ("node-1", "alice's password", NODE_EXTENSION),
        ("alice", "alice's password", NODE_EXTENSION),
        ("node-1", CLUSTER.reveal(), ""),
        ("alice", CLUSTER.reveal(), ""),
    ],
)
def test_no_user_becomes_a_node_and_the_clusters_secret_is_no_users_password(
    user: str, password: str, extension: str
) -> None:
    exchange = server(users(find={"alice": ALICE, "node-1": ALICE}.get, node=node_credential(CLUSTER, b"salt")))
    with pytest.raises(SaslError):
        run(client(user, password, extension), exchange)
    assert not exchange.is_done


def test_a_user_named_as_a_node_is_a_user() -> None:
    exchange = server(users(find={"node-1": ALICE}.get, node=node_credential(CLUSTER, b"salt")))
    run(client("node-1"), exchange)
    assert exchange.is_done and not exchange.is_node


def test_where_there_are_only_nodes_the_secret_makes_everybody_one() -> None:
    exchange = server(users(node=node_credential(CLUSTER, b"salt"), nodes_only=True))
    run(client("operator", CLUSTER.reveal()), exchange)
    assert exchange.is_node


def test_without_a_secret_nobody_is_a_node() -> None:
    with pytest.raises(SaslError, match="not the cluster's secret"):
        run(client("node-1", "", NODE_EXTENSION), server())


def test_a_server_that_does_not_know_the_secret_is_found_out() -> None:
    of_client = client("node-1", CLUSTER.reveal(), NODE_EXTENSION)
    other = server(users(node=node_credential(Secret("the secret of another cluster"), b"salt")))
    of_client.next(other.next(of_client.first()))
    with pytest.raises(SaslError, match="does not know the password"):
        of_client.next(b"v=" + base64.b64encode(bytes(32)))


def test_a_replayed_exchange_is_refused() -> None:
    of_client, exchange = client(), server()
    first = of_client.first()
    proof = of_client.next(exchange.next(first))
    assert proof is not None
    exchange.next(proof)
    with pytest.raises(SaslError, match="over"):
        exchange.next(proof)
    another = ScramServerExchange(SHA_256, "anothernonce", users())
    another.next(first)
    with pytest.raises(SaslError, match="not the client-final"):
        another.next(proof)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff",
        b"n,,n=alice",
        b"p=tls-unique,,n=alice,r=clientnonce",
        b"y,,n=alice,r=clientnonce",
        b"n,,n=alice,r=short",
        b"n,,n=alice,r=" + b"x" * 5_000,
        b"n,,m=mandatory,n=alice,r=clientnonce",
        b"n,,n=alice,r=clientnonce,tokenauth=true",
        b"n,a=bob,n=alice,r=clientnonce",
        b"n,,n=ali=ce,r=clientnonce",
        b"n,,n=,r=clientnonce",
    ],
)
def test_what_is_no_client_first_message_of_ours_is_refused(message: bytes) -> None:
    with pytest.raises(SaslError):
        server().next(message)


def test_an_authorization_id_equal_to_the_user_is_accepted_and_bound() -> None:
    exchange = server()
    exchange.next(b"n,a=alice,n=alice,r=clientnonce")
    with pytest.raises(SaslError, match="not the client-final"):
        exchange.next(b"c=biws,r=clientnonceservernonce,p=" + base64.b64encode(bytes(32)))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"c=biws,r=clientnonceservernonce",
        b"c=biws,r=clientnonceservernonce,p=",
        b"c=biws,r=clientnonceservernonce,p=AA==",
        b"c=biws,r=clientnonceservernonce,p=A",
        b"c=biws,r=clientnonce,p=" + base64.b64encode(bytes(32)),
        b"c=eSws,r=clientnonceservernonce,p=" + base64.b64encode(bytes(32)),
    ],
)
def test_what_is_no_proof_is_refused(message: bytes) -> None:
    exchange = server()
    exchange.next(b"n,,n=alice,r=clientnonce")
    with pytest.raises(SaslError):
        exchange.next(message)
    assert not exchange.is_done


def test_a_credential_shows_nothing_of_itself() -> None:
    assert repr(ScramCredential(b"s1", b"s2", b"s3", 4_096)) == "ScramCredential([hidden], iterations=4096)"


def final_with(nonce: str, first: bytes) -> bytes:
    """A client-final message with a right proof over this nonce."""
    keys = scram_keys(HASHES[SHA_256], Secret("alice's password"), ALICE.salt, ALICE.iterations)
    bare = f"c=biws,r={nonce}"
    signed = f"n=alice,r=clientnonce,{first.decode()},{bare}".encode()
    signature = hmac.digest(keys.stored, signed, HASHES[SHA_256])
    proof = bytes(a ^ b for a, b in zip(keys.client, signature, strict=True))
    return f"{bare},p={base64.b64encode(proof).decode()}".encode()


def test_a_client_may_state_its_nonce_twice_as_librdkafka_before_2_6_1() -> None:
    exchange = server()
    first = exchange.next(b"n,,n=alice,r=clientnonce")
    assert exchange.next(final_with("clientnonceclientnonceservernonce", first)).startswith(b"v=")
    assert exchange.is_done


@pytest.mark.parametrize(
    "nonce",
    [
        "clientnonce",
        "servernonce",
        "clientnonceclientnonce",
        "anothernonceclientnonceservernonce",
        "clientnonceclientnonceclientnonceservernonce",
        "clientnonceclientnonceanothernonce",
    ],
)
def test_no_other_nonce_is_accepted_even_with_a_right_proof(nonce: str) -> None:
    exchange = server()
    first = exchange.next(b"n,,n=alice,r=clientnonce")
    with pytest.raises(SaslError, match="not the client-final message of this exchange"):
        exchange.next(final_with(nonce, first))
    assert not exchange.is_done
