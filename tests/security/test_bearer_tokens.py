"""Claims about bearer tokens: only what the identity provider has signed, for this broker and for now, is accepted."""

from __future__ import annotations

import base64
import hmac
import json
import sys
import time
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from einmal.security.bearer_tokens import KeySet, UnknownKey, require_library, verified
from einmal.security.errors import SecuritySettingError, TokenError
from einmal.security.secret import Secret
from einmal.security.server_settings import JwtSettings
from tests.security.identity_provider import AUDIENCE, ISSUER, Provider, provider, published, signed_token

PROVIDER = provider()
SETTINGS = JwtSettings("file:///keys", (AUDIENCE,), ISSUER, clock_skew_s=5)


def key_set(*providers: Provider, **changes: Any) -> KeySet:
    return KeySet(published(*providers, **changes))


def token(by: Provider = PROVIDER, headers: dict[str, Any] | None = None, **claims: Any) -> Secret:
    return Secret(signed_token(by, headers, **claims))


@pytest.mark.parametrize("algorithm", ["RS256", "PS512", "ES256", "EdDSA"])
def test_a_token_of_the_provider_is_its_users(algorithm: str) -> None:
    by = provider(algorithm)
    claims = verified(token(by), key_set(by), SETTINGS)
    assert claims.user == "alice" and claims.ends_s > time.time()


def test_another_claim_may_name_the_user() -> None:
    settings = JwtSettings("file:///keys", sub_claim="client_id")
    assert verified(token(client_id="bob"), key_set(PROVIDER), settings).user == "bob"


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": int(time.time()) - 60}, "expired"),
        ({"exp": None}, "lacks a claim"),
        ({"iat": None}, "lacks a claim"),
        ({"nbf": int(time.time()) + 86_400}, "not valid yet"),
        ({"iat": int(time.time()) + 86_400}, "not valid yet"),
        ({"aud": "another"}, "audience"),
        ({"aud": None}, "lacks a claim"),
        ({"iss": "https://evil.example.com"}, "issuer"),
        ({"iss": None}, "lacks a claim"),
        ({"sub": None}, "no user"),
        ({"sub": " "}, "no user"),
        ({"sub": 7}, "no user"),
        ({"scope": 7}, "scope"),
    ],
)
def test_a_token_with_wrong_claims_is_refused(claims: dict[str, Any], reason: str) -> None:
    with pytest.raises(TokenError, match=reason):
        verified(token(**claims), key_set(PROVIDER), SETTINGS)


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


CLAIMS = {"sub": "alice", "aud": "einmal", "iss": "https://id.example.com", "iat": 1, "exp": 2**40}


def unsigned() -> Secret:
    return Secret(f"{part({'alg': 'none', 'kid': 'one'})}.{part(CLAIMS)}.")


def signed_by_the_public_key() -> Secret:
    """Key confusion: the published key as the secret of an HMAC."""
    signed = f"{part({'alg': 'HS256', 'kid': 'one'})}.{part(CLAIMS)}"
    public = PROVIDER.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signature = base64.urlsafe_b64encode(hmac.digest(public, signed.encode(), "sha256")).decode().rstrip("=")
    return Secret(f"{signed}.{signature}")


def of_another_key() -> Secret:
    return token(provider())


def tampered() -> Secret:
    head, _, signature = token().reveal().split(".")
    return Secret(f"{head}.{part({**CLAIMS, 'sub': 'admin'})}.{signature}")


def nested() -> Secret:
    deep = base64.urlsafe_b64encode(b"[" * 40_000).decode().rstrip("=")
    return Secret(f"{deep}.{deep}.AA")


@pytest.mark.parametrize(
    "forged",
    [
        unsigned,
        signed_by_the_public_key,
        of_another_key,
        tampered,
        nested,
        lambda: Secret(""),
        lambda: Secret("a.b.c"),
        lambda: Secret("..."),
        lambda: Secret("no token"),
        lambda: token(headers={"kid": "one", "crit": ["b64"], "b64": False}),
    ],
)
def test_a_forged_or_broken_token_is_refused_without_quoting_it(forged: Any) -> None:
    secret = forged()
    with pytest.raises(TokenError) as caught:
        verified(secret, key_set(PROVIDER), SETTINGS)
    assert not secret.reveal() or secret.reveal() not in str(caught.value)


def test_a_key_that_is_not_published_is_distinguished_from_a_wrong_signature() -> None:
    with pytest.raises(UnknownKey):
        verified(token(provider(key_id="two")), key_set(PROVIDER), SETTINGS)


def test_a_keys_own_algorithm_is_the_only_one() -> None:
    by = PROVIDER.changed(algorithm="PS256")
    with pytest.raises(TokenError, match="algorithm"):
        verified(token(by), key_set(PROVIDER, alg="RS256"), SETTINGS)


def test_a_token_without_a_key_id_needs_an_only_key() -> None:
    secret = token(headers={})
    assert verified(secret, key_set(PROVIDER), SETTINGS).user == "alice"
    with pytest.raises(TokenError, match="several"):
        verified(secret, key_set(PROVIDER, provider(key_id="two")), SETTINGS)


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": []}',
        b'{"keys": [7, null]}',
        b'{"keys": [{"kty": "oct", "k": "AAAA", "kid": "one"}]}',
        b'{"keys": [{"kty": "RSA", "n": "AQ"}]}',
        b"[" * 100_000,
    ],
)
def test_a_document_without_a_usable_key_is_refused(document: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a JSON Web Key Set|no key in it"):
        KeySet(document)


def test_keys_for_encryption_and_shared_keys_are_left_out() -> None:
    others = [{"kty": "oct", "k": "AAAA", "kid": "two"}, {**PROVIDER.published, "use": "enc", "kid": "three"}]
    assert len(KeySet(json.dumps({"keys": [PROVIDER.published, *others]}).encode())) == 1


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    require_library()
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(SecuritySettingError) as caught:
        require_library()
    assert "[oauth]" in caught.value.hint
