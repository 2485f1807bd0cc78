"""The authentication of all listeners of a node: what they need is started, loaded and stopped here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.config import BrokerConfig, ConfigError
from einmal.broker.front.authentication.sasl import SaslServer
from einmal.broker.identity import Identity
from einmal.broker.rpc.authentication import Credentials
from einmal.event_log import EventLog
from einmal.log.disk import Disk
from einmal.seams import Clock
from einmal.security.errors import SecuritySettingError
from einmal.security.sasl.mechanisms import OAUTHBEARER, PLAIN

if TYPE_CHECKING:
    from einmal.broker.front.authentication.published_keys import PublishedKeys

log = EventLog(__name__)
_UNENCRYPTED: Final = "listener %(listener)s: %(mechanisms)s without TLS: whoever reads along can log in"


class SaslListeners:
    """Raises ConfigError."""

    def __init__(
        self,
        config: BrokerConfig,
        credentials: Credentials,
        metadata: ClusterMetadata,
        identity: Identity,
        disk: Disk,
        clock: Clock,
    ) -> None:
        self.servers: dict[str, SaslServer] = {}
        """By the names of listeners."""
        self._published: list[PublishedKeys] = []
        for listener in config.named_listeners.all:
            if not listener.authenticates:
                continue
            settings = config.sasl_of(listener.name)
            keys = None
            if settings.jwt is not None:
                _require_library()
                # Its modules of HTTP are 2 MB, which a broker without OAUTHBEARER need not hold.
                from einmal.broker.front.authentication.published_keys import PublishedKeys

                keys = PublishedKeys(settings.jwt, disk)
                self._published.append(keys)
            self.servers[listener.name] = SaslServer(settings, credentials, metadata, identity, clock, keys)
            unencrypted = [mechanism for mechanism in settings.mechanisms if mechanism in (PLAIN, OAUTHBEARER)]
            if unencrypted and not listener.is_encrypted:
                names = " and ".join(unencrypted)
                log.warning("listener_unencrypted", _UNENCRYPTED, listener=listener.name, mechanisms=names)
            for warning in settings.warnings:
                log.warning(
                    "listener_setting_risky",
                    "listener %(listener)s: %(warning)s",
                    listener=listener.name,
                    warning=warning,
                )

    def start(self) -> None:
        for keys in self._published:
            keys.start()

    def stop(self) -> None:
        for keys in self._published:
            keys.stop()


def _require_library() -> None:
    from einmal.security.bearer_tokens import require_library

    try:
        require_library()
    except SecuritySettingError as error:
        raise ConfigError(f"{error.meaning}: {error.hint}") from None
