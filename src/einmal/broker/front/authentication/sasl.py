"""How the senders of one listener authenticate: by which mechanisms, against whom, and for how long.

Knows no request and no connection but its ``Authentication``. Clients authenticate by the mechanisms that the listener
enables. Nodes of the cluster authenticate by its secret wherever it is known, and announce it; where no mechanism is
enabled for clients, the secret makes everybody a node.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable
from typing import Final, NamedTuple, Protocol

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.identity import Identity
from einmal.broker.rpc.authentication import NODE_MECHANISM, Authentication, Credentials, principal_of
from einmal.metadata.scram_users import MECHANISM_NUMBERS
from einmal.seams import Clock
from einmal.security.errors import SaslError, TokenError
from einmal.security.sasl.mechanisms import PLAIN
from einmal.security.sasl.scram import HASHES
from einmal.security.sasl.scram_server import ScramServerExchange, ScramUsers, node_credential
from einmal.security.sasl.server_mechanisms import (
    OAuthBearerServerExchange,
    PlainServerExchange,
    ServerExchange,
    TokenToVerify,
)
from einmal.security.secret import Secret
from einmal.security.server_settings import SaslServerSettings
from einmal.types import ErrorCode

RENEWAL_MS_MIN: Final = 1_000
"""A session is not renewed earlier than this after its beginning, as on Kafka."""
_LIFETIME_MS_MAX: Final = 2**63 - 1
"""Longest lifetime that an answer can state; a token may end later."""


class Bearer(NamedTuple):
    """Whose a valid token is. ``ends_ms``: when it expires, as Unix time."""

    user: str
    ends_ms: int


class TokenVerifier(Protocol):
    def verify(self, token: Secret) -> Awaitable[Bearer]:
        """Raises TokenError for a token that is not valid, or cannot be verified now."""


class Answered(NamedTuple):
    """``lifetime_ms``: of the session that has begun, 0 if it does not end. ``refusal``: why a token is not valid."""

    message: bytes
    lifetime_ms: int = 0
    refusal: str = ""


class SaslServer:
    """``tokens``: for OAUTHBEARER; None: it is not enabled."""

    def __init__(
        self,
        settings: SaslServerSettings,
        credentials: Credentials,
        metadata: ClusterMetadata,
        identity: Identity,
        clock: Clock,
        tokens: TokenVerifier | None = None,
    ) -> None:
        self.settings = settings
        self._credentials = credentials
        self._metadata = metadata
        self._identity = identity
        self._clock = clock
        self._tokens = tokens

    @property
    def offered(self) -> tuple[str, ...]:
        """The mechanisms in the response to SaslHandshake."""
        return self.settings.mechanisms or (NODE_MECHANISM,)

    @property
    def failed_delay_s(self) -> float:
        """How long the answer to a failed authentication waits."""
        return self.settings.failed_delay_ms / 1000

    def begin(self, authentication: Authentication, mechanism: str, *, is_bare: bool) -> ErrorCode:
        """A client has chosen a mechanism, and maybe bare messages. ILLEGAL_SASL_STATE: it may not choose one now."""
        now_ms = self._clock.now().monotonic_ms
        if authentication.exchange is not None:
            return ErrorCode.illegal_sasl_state
        if authentication.is_done and now_ms - authentication.done_ms < RENEWAL_MS_MIN:
            return ErrorCode.illegal_sasl_state
        if mechanism not in self.settings.mechanisms and not self._is_for_nodes(mechanism):
            return ErrorCode.unsupported_sasl_mechanism
        authentication.begin(mechanism, self._new_exchange(mechanism), is_bare=is_bare)
        return ErrorCode.none

    def _is_for_nodes(self, mechanism: str) -> bool:
        return mechanism == NODE_MECHANISM and bool(self._credentials.secret)

    def _new_exchange(self, mechanism: str) -> ServerExchange:
        if mechanism == PLAIN:
            return PlainServerExchange(self.settings.plain_users)
        if mechanism in HASHES:
            return ScramServerExchange(mechanism, self._credentials.new_nonce(), self._scram_users(mechanism))
        return OAuthBearerServerExchange()

    def _scram_users(self, mechanism: str) -> ScramUsers:
        is_enabled = mechanism in self.settings.mechanisms
        users = self._metadata.image.scram_credentials.get(MECHANISM_NUMBERS[mechanism], {}) if is_enabled else {}
        secret = self._credentials.secret if self._is_for_nodes(mechanism) else None
        return ScramUsers(
            users.get,
            self._seed(),
            node_credential(secret, self._node_salt()) if secret else None,
            not self.settings.mechanisms,
        )

    def _seed(self) -> bytes:
        """Return the seed of made-up salts, which are the same on all brokers and after a restart, and which nobody can
        predict.

        So it comes from nothing that a person has chosen, or that changes with the users: from the random ids of the
        first broker's data directories, which the cluster keeps and shows to nobody who has not authenticated.
        """
        brokers = self._metadata.image.brokers
        directories = brokers[min(brokers)].log_dirs if brokers else ()
        ids = directories or (self._identity.directory_id,)
        return hashlib.sha256(b"made-up salts" + b"".join(directory_id.bytes for directory_id in ids)).digest()

    def _node_salt(self) -> bytes:
        """Random as the id of this node's data directory, and kept as long; reveals neither the id nor the secret."""
        return hashlib.sha256(b"salt of nodes" + self._identity.directory_id.bytes).digest()[:16]

    async def proceed(self, authentication: Authentication, message: bytes) -> Answered:
        """Answer the client's next message. Raises SaslError: the authentication has failed."""
        exchange = authentication.exchange
        assert exchange is not None, "SaslHandshake comes first"
        if authentication.is_done and authentication.mechanism != authentication.proven_by:
            raise SaslError(f"{authentication.mechanism} instead of {authentication.proven_by}, to renew a session")
        answer = exchange.next(message)
        if isinstance(answer, TokenToVerify):
            assert isinstance(exchange, OAuthBearerServerExchange) and self._tokens is not None, "no tokens here"
            try:
                bearer = await self._tokens.verify(answer.token)
            except TokenError as error:
                return Answered(exchange.refused(str(error)), refusal=str(error))
            answer = exchange.verified(bearer.user, bearer.ends_ms)
        if not exchange.is_done:
            return Answered(answer)
        if authentication.is_done and principal_of(exchange) != authentication.principal:
            raise SaslError(f"{exchange.user} instead of {authentication.principal}, to renew a session")
        lifetime_ms = self._lifetime_ms(authentication.mechanism, exchange)
        authentication.succeed(self._clock.now().monotonic_ms, lifetime_ms)
        return Answered(answer, lifetime_ms or 0)

    def _lifetime_ms(self, mechanism: str, exchange: ServerExchange) -> int | None:
        """Return the lifetime of the session (KIP-368); None: it does not end. Those of nodes do not."""
        limits = []
        if not exchange.is_node and self.settings.max_reauth_ms.get(mechanism, 0):
            limits.append(self.settings.max_reauth_ms[mechanism])
        if isinstance(exchange, OAuthBearerServerExchange) and exchange.ends_ms is not None:
            limits.append(min(max(0, exchange.ends_ms - self._clock.now().wall_ms), _LIFETIME_MS_MAX))
        return min(limits, default=None)
