"""Who is at the other end of a connection: SaslHandshake and SaslAuthenticate, both sides, for a cluster's own nodes.

One secret, in a file that only its owner can read, makes a node one of the cluster (SCRAM-SHA-256). Where a listener
asks for it, nothing but ApiVersions is answered before. Clients do not authenticate yet.
"""

from __future__ import annotations

import base64
import random
from pathlib import PurePosixPath
from typing import Any, Final, Protocol

from einmal.broker.config import BrokerConfig, ConfigError
from einmal.log.disk import Disk
from einmal.rpc.connection import NoAnswer
from einmal.security.principal import ANONYMOUS, Principal
from einmal.types import ErrorCode
from einmal.wire.errors import WireError
from einmal.wire.messages import decode_response, encode_request
from einmal.wire.scram import MECHANISM, AuthenticationFailed, ScramClient, ScramServer

API_VERSIONS: Final = 18
SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
OPEN_APIS: Final = (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE)
"""What is answered before authentication."""
_HANDSHAKE_VERSION: Final = 1
_AUTHENTICATE_VERSION: Final = 2
_NONCE_BYTES: Final = 18
_SECRET_LENGTH_MIN: Final = 16


class Unauthenticated(WireError):
    """A request that its sender must authenticate for, and has not."""


class Authentication:
    """What the sender of a connection has shown. ``of_connection``: who it is before SASL, or without."""

    def __init__(self, of_connection: Principal = ANONYMOUS) -> None:
        self.of_connection = of_connection
        self.exchange: ScramServer | None = None

    @property
    def is_done(self) -> bool:
        return self.exchange is not None and self.exchange.user is not None

    @property
    def principal(self) -> Principal | None:
        """Who the sender is; None: a node of the cluster, by its secret."""
        return None if self.is_done else self.of_connection


class _Connection(Protocol):
    name: str

    def send(self, api_key: int, version: int, body: list[bytes], timeout_ms: int) -> Any: ...


def client_id(node_id: int) -> str:
    """As whom a node asks others."""
    return f"node-{node_id}"


class Credentials:
    """By which this node shows that it is one of the cluster."""

    def __init__(self, config: BrokerConfig, disk: Disk, source: random.Random) -> None:
        self._file = config.einmal_cluster_secret_file
        self._disk = disk
        self._source = source
        self.user = client_id(config.node_id)
        self.secret = ""
        """The cluster's; empty: its nodes do not authenticate. Only after ``load``."""

    def load(self) -> None:
        """Raises ConfigError."""
        if not self._file:
            return
        try:
            self.secret = self._disk.read_file(PurePosixPath(self._file)).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"einmal.cluster.secret.file={self._file} cannot be read: {error}") from error
        if len(self.secret) < _SECRET_LENGTH_MIN:
            raise ConfigError(f"einmal.cluster.secret.file={self._file} has less than {_SECRET_LENGTH_MIN} characters")

    def new_nonce(self) -> str:
        return base64.b64encode(self._source.randbytes(_NONCE_BYTES)).decode()


async def authenticate(connection: _Connection, user: str, secret: str, nonce: str, timeout_ms: int) -> None:
    """Show that this node is one of the cluster, and that the other is. Raises NoAnswer when either fails."""

    async def ask(api_key: int, version: int, fields: dict[str, Any]) -> Any:
        answer = await connection.send(api_key, version, [encode_request(api_key, version, fields)], timeout_ms)
        decoded = decode_response(api_key, version, answer.frame, answer.position)
        if decoded.error_code is not ErrorCode.none:
            reason = getattr(decoded, "error_message", None) or decoded.error_code.name.upper()
            raise AuthenticationFailed(reason)
        return decoded

    exchange = ScramClient(user, secret, nonce)
    try:
        await ask(SASL_HANDSHAKE, _HANDSHAKE_VERSION, {"mechanism": MECHANISM})
        challenge = await ask(SASL_AUTHENTICATE, _AUTHENTICATE_VERSION, {"auth_bytes": exchange.first()})
        proof = exchange.final(bytes(challenge.auth_bytes))
        verdict = await ask(SASL_AUTHENTICATE, _AUTHENTICATE_VERSION, {"auth_bytes": proof})
        exchange.verify(bytes(verdict.auth_bytes))
    except (AuthenticationFailed, WireError) as error:
        raise NoAnswer(f"{connection.name}: authentication failed: {error}", was_sent=False) from error
