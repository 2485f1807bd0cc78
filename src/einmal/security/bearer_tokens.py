"""JSON Web Tokens (RFC 7519) of OAUTHBEARER, verified by the keys of an identity provider (JWKS, RFC 7517).

Only asymmetric algorithms: a token that is not signed, or signed by a key that the broker would have to share, is no
proof. An algorithm must fit the key's type. PyJWT with cryptography, of the extra ``einmal[oauth]``, does the work: it
is the library of this kind with the most users, and typed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from einmal.extras import install_command
from einmal.security.errors import SecuritySettingError, TokenError
from einmal.security.secret import Secret
from einmal.security.server_settings import JwtSettings

if TYPE_CHECKING:
    import jwt

_ALGORITHMS: Final[Mapping[str, tuple[str, ...]]] = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
"""By the type of a key."""
_KEYS_MAX: Final = 1_000


class UnknownKey(TokenError):
    """No key has the id that the token names; newer keys may."""


class VerifiedClaims(NamedTuple):
    """``ends_s``: Unix time."""

    user: str
    ends_s: float


class _Key(NamedTuple):
    key_id: str | None
    algorithms: tuple[str, ...]
    key: Any


class KeySet:
    """The keys that a provider publishes. Raises ValueError for a document without a usable one."""

    def __init__(self, document: bytes) -> None:
        import jwt

        try:
            keys = json.loads(document)["keys"]
            described = [web_key for web_key in keys[:_KEYS_MAX] if isinstance(web_key, dict)]
        except (ValueError, TypeError, LookupError, RecursionError):
            raise ValueError("not a JSON Web Key Set") from None
        self._keys: list[_Key] = []
        for web_key in described:
            algorithms = _ALGORITHMS.get(str(web_key.get("kty")), ())
            if web_key.get("alg") is not None:
                algorithms = tuple(name for name in algorithms if name == web_key["alg"])
            if not algorithms or web_key.get("use", "sig") != "sig":
                continue
            try:
                key = jwt.PyJWK(web_key, algorithms[0]).key
            except (jwt.PyJWTError, ValueError, TypeError, LookupError):
                continue
            self._keys.append(_Key(web_key.get("kid"), algorithms, key))
        if not self._keys:
            raise ValueError("no key in it is for signatures with an asymmetric algorithm")

    def __len__(self) -> int:
        return len(self._keys)

    def of(self, header: Mapping[str, Any]) -> _Key:
        """The key that a token was signed by. Raises TokenError."""
        if header.get("crit") is not None:
            raise TokenError("the token has critical extensions, which are not supported", may_pass=False)
        key_id, algorithm = header.get("kid"), header.get("alg")
        named = [key for key in self._keys if key_id is None or key.key_id == key_id]
        if not named:
            raise UnknownKey("the token is signed by a key that the identity provider does not publish", may_pass=True)
        fitting = [key for key in named if algorithm in key.algorithms]
        if not fitting:
            raise TokenError("the token's algorithm is not an asymmetric one of its key", may_pass=False)
        if len(fitting) > 1:
            raise TokenError("the token does not name its key (kid), and several would do", may_pass=False)
        return fitting[0]


def require_library() -> None:
    """Raises SecuritySettingError if the extra is not installed."""
    try:
        import jwt
        from jwt.algorithms import has_crypto
    except ImportError:
        is_there = False
    else:
        is_there = bool(jwt) and has_crypto
    if not is_there:
        raise SecuritySettingError(
            "sasl.enabled.mechanisms has OAUTHBEARER, which needs PyJWT and cryptography",
            f"install them: {install_command('oauth')}",
        )


def verified(token: Secret, keys: KeySet, settings: JwtSettings) -> VerifiedClaims:
    """The claims of a valid token. Raises TokenError; its text has no part of the token."""
    import jwt

    text = token.reveal()
    try:
        key = keys.of(jwt.get_unverified_header(text))
        claims = jwt.decode(
            text,
            key.key,
            algorithms=list(key.algorithms),
            audience=list(settings.audiences) or None,
            issuer=settings.issuer or None,
            leeway=settings.clock_skew_s,
            options={
                "require": ["exp", "iat"],
                "verify_aud": bool(settings.audiences),
                # Its own check is for strings only; another claim may name the user anyway.
                "verify_sub": False,
            },
        )
    except TokenError:
        raise
    except jwt.PyJWTError as error:
        raise TokenError(_reason(error), may_pass=False) from None
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
        raise TokenError("the token is no JSON Web Token", may_pass=False) from None
    user = claims.get(settings.sub_claim)
    if not isinstance(user, str) or not user.strip():
        raise TokenError(f"the token has no user in its claim {settings.sub_claim}", may_pass=False)
    scope = claims.get(settings.scope_claim)
    if scope is not None and not isinstance(scope, str | list):
        raise TokenError(f"the token's claim {settings.scope_claim} is neither a text nor a list", may_pass=False)
    return VerifiedClaims(user, float(claims["exp"]))


def _reason(error: jwt.PyJWTError) -> str:
    import jwt

    reasons: tuple[tuple[type[Exception], str], ...] = (
        (jwt.ExpiredSignatureError, "the token has expired"),
        (jwt.InvalidAudienceError, "the token is for another audience"),
        (jwt.InvalidIssuerError, "the token has another issuer"),
        (jwt.ImmatureSignatureError, "the token is not valid yet"),
        (jwt.MissingRequiredClaimError, "the token lacks a claim: exp, iat, aud and iss are checked"),
        (jwt.InvalidAlgorithmError, "the token's algorithm is not an asymmetric one of its key"),
        (jwt.InvalidSignatureError, "the token's signature is wrong"),
    )
    return next((text for kind, text in reasons if isinstance(error, kind)), "the token is no JSON Web Token")
