"""An identity provider for tests: keys, the documents that publish them, and tokens."""

from __future__ import annotations

import json
import time
from typing import Any, NamedTuple

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

AUDIENCE, ISSUER = "einmal", "https://id.example.com"


class Provider(NamedTuple):
    """A private key and how its tokens are signed. ``published``: the public one."""

    key: Any
    algorithm: str
    published: dict[str, Any]


def provider(algorithm: str = "RS256", key_id: str = "one") -> Provider:
    key: Any
    if algorithm.startswith("ES"):
        key = ec.generate_private_key(ec.SECP256R1())
        published = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    elif algorithm == "EdDSA":
        key = ed25519.Ed25519PrivateKey.generate()
        published = OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
        published = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    published.pop("key_ops", None)
    return Provider(key, algorithm, {**published, "kid": key_id, "use": "sig"})


def published(*providers: Provider, **changes: Any) -> bytes:
    """The document with their public keys."""
    return json.dumps({"keys": [{**each.published, **changes} for each in providers]}).encode()


def signed_token(by: Provider, headers: dict[str, Any] | None = None, **claims: Any) -> str:
    now = int(time.time())
    wanted = {"sub": "alice", "aud": AUDIENCE, "iss": ISSUER, "iat": now, "exp": now + 60, **claims}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    key_id = {"kid": by.published["kid"]} if headers is None else headers
    return jwt.encode(wanted, by.key, by.algorithm, headers=key_id)
