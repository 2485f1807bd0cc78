"""An identity provider for tests: keys, the documents that publish them, and tokens."""

from __future__ import annotations

import copy
import json
import time
from functools import cached_property
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

AUDIENCE, ISSUER = "einmal", "https://id.example.com"


class Provider:
    """A private key and how its tokens are signed. ``published``: the public one."""

    def __init__(self, algorithm: str, key_id: str) -> None:
        self.algorithm, self._key_id = algorithm, key_id

    @cached_property
    def key(self) -> Any:
        # When it is needed first: an RSA key takes a tenth of a second, and modules have some.
        if self.algorithm.startswith("ES"):
            return ec.generate_private_key(ec.SECP256R1())
        if self.algorithm == "EdDSA":
            return ed25519.Ed25519PrivateKey.generate()
        return rsa.generate_private_key(public_exponent=65_537, key_size=2_048)

    @cached_property
    def published(self) -> dict[str, Any]:
        algorithm: Any = RSAAlgorithm
        if self.algorithm.startswith("ES"):
            algorithm = ECAlgorithm
        elif self.algorithm == "EdDSA":
            algorithm = OKPAlgorithm
        public = algorithm.to_jwk(self.key.public_key(), as_dict=True)
        public.pop("key_ops", None)
        return {**public, "kid": self._key_id, "use": "sig"}

    def changed(self, **attributes: Any) -> Provider:
        """One that is like this, key included, but for these attributes."""
        attributes = {"key": self.key, **attributes}
        other = copy.copy(self)
        other.__dict__.update(attributes)
        return other


def provider(algorithm: str = "RS256", key_id: str = "one") -> Provider:
    return Provider(algorithm, key_id)


def published(*providers: Provider, **changes: Any) -> bytes:
    """The document with their public keys."""
    return json.dumps({"keys": [{**each.published, **changes} for each in providers]}).encode()


def signed_token(by: Provider, headers: dict[str, Any] | None = None, **claims: Any) -> str:
    now = int(time.time())
    wanted = {"sub": "alice", "aud": AUDIENCE, "iss": ISSUER, "iat": now, "exp": now + 60, **claims}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    key_id = {"kid": by.published["kid"]} if headers is None else headers
    return jwt.encode(wanted, by.key, by.algorithm, headers=key_id)
