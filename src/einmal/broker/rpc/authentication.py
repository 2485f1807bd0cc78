"""Who is at the other end of a connection: what its sender has shown, and how a node shows that it is of the cluster.

One secret, in a file that only its owner can read, makes a node one of the cluster: it is the password of an exchange
(SCRAM-SHA-256) whose first message announces a node. No user of the cluster can become a node, whatever its name.
"""

from __future__ import annotations

import base64
import random
from pathlib import PurePosixPath
from typing import Final

from einmal.broker.config import BrokerConfig, ConfigError
from einmal.log.disk import Disk
from einmal.rpc.connection import Connection, NoAnswer
from einmal.rpc.sasl import SaslRefused, authenticate
from einmal.security.errors import SaslError
from einmal.security.principal import ANONYMOUS, USER, Principal
from einmal.security.sasl.scram import NODE_EXTENSION, ScramExchange
from einmal.security.sasl.server_mechanisms import ServerExchange
from einmal.security.secret import Secret
from einmal.wire.api.api_versions import API as API_VERSIONS
from einmal.wire.api.sasl_authenticate import API as SASL_AUTHENTICATE
from einmal.wire.api.sasl_handshake import API as SASL_HANDSHAKE
from einmal.wire.errors import WireError

OPEN_APIS: Final = (API_VERSIONS.key, SASL_HANDSHAKE.key, SASL_AUTHENTICATE.key)
"""APIs that are answered before authentication."""
NODE_MECHANISM: Final = "SCRAM-SHA-256"
_NONCE_BYTES: Final = 18
_SECRET_LENGTH_MIN: Final = 24
_SECRET_CHARACTERS_MIN: Final = 10
"""Different ones. A secret that a person has chosen can be guessed from an exchange that somebody has recorded."""
_HOW_TO_MAKE_ONE: Final = "stop all nodes and use the same random one on each, as of openssl rand -base64 32"


class Unauthenticated(WireError):
    """A request that its sender must authenticate for, and has not."""


class Authentication:
    """Identity that the sender of a connection has shown. ``of_connection``: who it is before SASL, or without."""

    def __init__(self, of_connection: Principal = ANONYMOUS) -> None:
        self.of_connection = of_connection
        self.exchange: ServerExchange | None = None
        """That has begun, and has not ended."""
        self.is_bare = False
        """Whether the messages of the exchange, and their answers, are frames without a header."""
        self.mechanism = ""
        """Mechanism of the exchange, else of the last one."""
        self.proven_by = ""
        """The mechanism by which the sender has authenticated."""
        self.is_done = False
        self.done_ms = 0
        """When its sender authenticated last, on the monotonic clock."""
        self.ends_ms: int | None = None
        """When the session ends; None: with the connection."""
        self._principal: Principal | None = None

    @property
    def principal(self) -> Principal | None:
        """Who the sender is; None: a node of the cluster, by its secret."""
        return self._principal if self.is_done else self.of_connection

    def begin(self, mechanism: str, exchange: ServerExchange, *, is_bare: bool) -> None:
        self.mechanism, self.exchange, self.is_bare = mechanism, exchange, is_bare

    def succeed(self, now_ms: int, lifetime_ms: int | None) -> None:
        """The exchange has ended well. ``lifetime_ms``: of the session; None: it does not end."""
        assert self.exchange is not None and self.exchange.is_done, "no exchange has succeeded"
        self._principal = principal_of(self.exchange)
        self.exchange, self.is_bare = None, False
        self.is_done, self.done_ms, self.proven_by = True, now_ms, self.mechanism
        self.ends_ms = None if lifetime_ms is None else now_ms + lifetime_ms

    def check(self, api_key: int, now_ms: int) -> None:
        """Whether the sender may send such a request now. Raises Unauthenticated."""
        if not self.is_done:
            if api_key not in OPEN_APIS:
                raise Unauthenticated(f"api key {api_key} before SaslAuthenticate")
        elif self.ends_ms is not None and now_ms > self.ends_ms:
            renews = api_key == SASL_HANDSHAKE.key or (api_key == SASL_AUTHENTICATE.key and self.exchange is not None)
            if not renews:
                raise Unauthenticated(f"api key {api_key} after the session's end, without a new SaslHandshake")


def principal_of(exchange: ServerExchange) -> Principal | None:
    """Whom a successful exchange has proven; None: a node of the cluster."""
    return None if exchange.is_node else Principal(USER, exchange.user)


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
        self.secret = Secret("")
        """The cluster's; empty: its nodes do not authenticate. Only after ``load``."""

    def load(self) -> None:
        """Raises ConfigError."""
        if not self._file:
            return
        try:
            secret = self._disk.read_file(PurePosixPath(self._file)).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"einmal.cluster.secret.file={self._file} cannot be read: {error}") from error
        if len(secret) < _SECRET_LENGTH_MIN:
            raise ConfigError(
                f"einmal.cluster.secret.file={self._file} has less than {_SECRET_LENGTH_MIN} characters: "
                f"{_HOW_TO_MAKE_ONE}"
            )
        if len(set(secret)) < _SECRET_CHARACTERS_MIN:
            raise ConfigError(
                f"einmal.cluster.secret.file={self._file} has less than {_SECRET_CHARACTERS_MIN} different characters: "
                f"{_HOW_TO_MAKE_ONE}"
            )
        self.secret = Secret(secret)

    def new_nonce(self) -> str:
        return base64.b64encode(self._source.randbytes(_NONCE_BYTES)).decode()


async def authenticate_node(connection: Connection, user: str, secret: Secret, nonce: str, timeout_ms: int) -> None:
    """Show that this node is one of the cluster, and that the other is. Raises NoAnswer when either fails."""
    exchange = ScramExchange(NODE_MECHANISM, user, secret, nonce, NODE_EXTENSION)
    try:
        await authenticate(connection, NODE_MECHANISM, exchange, timeout_ms)
    except (SaslRefused, SaslError, WireError) as error:
        raise NoAnswer(f"{connection.name}: authentication failed: {error}", was_sent=False) from error
