"""TLS of this node's listeners, and of its connections to other nodes: contexts, and new ones when the files change.

The files are read at the start, and again in the background at an interval. A change holds for new connections; what
cannot be used is logged once, and what was loaded before stays.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from einmal.broker.config import BrokerConfig, ConfigError
from einmal.broker.listeners import NamedListener
from einmal.event_log import EventLog
from einmal.log.disk import Disk
from einmal.seams import Clock
from einmal.security.certificates import subject_of, valid_until
from einmal.security.errors import SecuritySettingError
from einmal.security.principal import USER, Principal
from einmal.security.principal_mapping import NoRuleMatches, PrincipalMapping
from einmal.security.settings import TlsSettings, tls_settings
from einmal.security.tls import ServerOptions, leaf_of, read_into, server_context, tls_context

log = EventLog(__name__)

REFRESH_SECONDS: Final = 10.0
_FILES: Final = (
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.password",
    "ssl.key.password",
    "ssl.truststore.location",
    "ssl.truststore.type",
    "ssl.truststore.certificates",
    "ssl.truststore.password",
    "ssl.endpoint.identification.algorithm",
)


class _Contexts(NamedTuple):
    """``server`` None: this node only connects to such listeners. ``ends``: of its certificate; None: it has none."""

    server: ssl.SSLContext | None
    client: ssl.SSLContext
    ends: datetime | None


class ListenerTls:
    """TLS of one listener. ``is_here``: this node listens there; else it only connects to those of other nodes."""

    def __init__(self, listener: NamedListener, config: BrokerConfig, disk: Disk, clock: Clock, *, is_here: bool):
        self.listener = listener
        self._is_here = is_here
        self._disk = disk
        self._clock = clock
        self._config = config.of_listener(listener.name)
        self._loaded: _Contexts | None = None
        self._source: TlsSettings | None = None
        """Settings that were loaded last, or could not be: with the content of all files."""
        self._problem = ""
        """Problem of the files as they are now; empty: none."""

    def load(self) -> None:
        """Raises ConfigError."""
        try:
            self._mapping = PrincipalMapping(self._config.ssl_principal_mapping_rules)
            self._source = self._read()
            self._loaded = self._made(self._source)
        except SecuritySettingError as error:
            raise ConfigError(f"listener {self.listener.name}: {error.meaning}: {error.hint}") from error
        self._warn_of_end(self._loaded)
        if self._is_here and self._config.ssl_client_auth != "none" and self._source.authority is None:
            message = (
                "clients authenticate by certificates of any authority that this machine trusts, such as those of the "
                "web: set ssl.truststore.location to your own"
            )
            log.warning("any_client_certificate_accepted", message, listener=self.listener.name)

    async def refresh(self) -> None:
        """Take the files' new content."""
        try:
            source = await self._disk.in_background(self._read)
            if source == self._source:
                return
            self._source = source
            made = await self._disk.in_background(lambda: self._made(source))
        except SecuritySettingError as error:
            if self._problem != error.meaning:
                log.warning(
                    "changed_certificates_refused",
                    "the changed certificate files are not used: %(error)s: %(hint)s",
                    error=error.meaning,
                    hint=error.hint,
                    listener=self.listener.name,
                )
            self._problem = error.meaning
            return
        self._problem = ""
        self._loaded = made
        changed = "new connections use the changed certificate files"
        log.info("certificates_changed", changed, listener=self.listener.name)
        self._warn_of_end(made)

    @property
    def server(self) -> ssl.SSLContext:
        assert self._loaded is not None and self._loaded.server is not None, "the files have not been loaded"
        return self._loaded.server

    @property
    def client(self) -> ssl.SSLContext:
        assert self._loaded is not None, "the files have not been loaded"
        return self._loaded.client

    def principal_of(self, certificate: bytes, *, is_resumed: bool) -> Principal:
        """Return the principal of a client's certificate in DER. Raises NoRuleMatches, or ValueError for broken DER.

        ``is_resumed``: it comes from an earlier session, which OpenSSL of TLS 1.2 resumes without a look at its end.
        """
        if is_resumed and valid_until(certificate) <= self._now:
            raise NoRuleMatches("it has expired since the TLS session began")
        name = self._mapping.name_of(subject_of(certificate))
        if not name:
            raise NoRuleMatches("its distinguished name, or what ssl.principal.mapping.rules make of it, is empty")
        return Principal(USER, name)

    # --- files -----------------------------------------------------------------------------------------------------

    def _read(self) -> TlsSettings:
        """Raises SecuritySettingError."""
        settings = tls_settings(_given(self._config))
        certificate = read_into(settings.certificate, self._text)
        is_one = settings.key is settings.certificate
        return replace(
            settings,
            authority=read_into(settings.authority, self._text),
            certificate=certificate,
            key=certificate if is_one else read_into(settings.key, self._text),
        )

    def _text(self, path: str) -> str:
        return self._disk.read_file(PurePosixPath(path)).decode(errors="replace")

    def _made(self, settings: TlsSettings) -> _Contexts:
        """Raises SecuritySettingError."""
        config = self._config
        options = ServerOptions(config.ssl_client_auth, config.ssl_enabled_protocols, config.ssl_cipher_suites)
        server = server_context(settings, options) if self._is_here else None
        ends = valid_until(leaf_of(settings)) if settings.certificate is not None else None
        return _Contexts(server, tls_context(settings), ends)

    def _warn_of_end(self, loaded: _Contexts) -> None:
        if loaded.ends is not None and loaded.ends <= self._now:
            expired = "the certificate has expired at %(end)s: renew it"
            log.warning("certificate_expired", expired, end=loaded.ends, listener=self.listener.name)

    @property
    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now().wall_ms / 1000, UTC)


class NodeTls:
    """TLS of all listeners that are encrypted, and of those that this node connects to elsewhere."""

    def __init__(self, config: BrokerConfig, disk: Disk, clock: Clock) -> None:
        listeners = config.named_listeners
        here = [listener.name for listener in listeners.all]
        wanted = {
            listener.name: listener for listener in (*listeners.between_nodes, *listeners.all) if listener.is_encrypted
        }
        if config.is_alone and listeners.controllers_elsewhere.name not in here:
            wanted.pop(listeners.controllers_elsewhere.name, None)
        self._of: Mapping[str, ListenerTls] = {
            name: ListenerTls(listener, config, disk, clock, is_here=name in here) for name, listener in wanted.items()
        }

    def load(self) -> None:
        """Raises ConfigError."""
        for listener_tls in self._of.values():
            listener_tls.load()

    async def refresh(self) -> None:
        for listener_tls in self._of.values():
            await listener_tls.refresh()

    @property
    def is_used(self) -> bool:
        return bool(self._of)

    def of(self, listener: str) -> ListenerTls | None:
        """None: it is not encrypted."""
        return self._of.get(listener)


def _given(config: BrokerConfig) -> dict[str, Any]:
    """The settings of certificates that are set, as a client has them."""
    given: dict[str, Any] = {}
    for key in _FILES:
        value = getattr(config, key.replace(".", "_"))
        if value or key == "ssl.endpoint.identification.algorithm":
            given[key] = value
    return given
