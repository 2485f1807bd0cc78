"""Settings as DescribeConfigs and CreateTopics describe them: each with its value, and where that comes from.

The first synonym of a setting is the one that holds. Knows no request.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.config import SETTINGS, BrokerConfig
from einmal.broker.replicas.topic_settings import setting
from einmal.metadata.configs import CHANGED_FOR_ALL
from einmal.metadata.topic_configs import TOPIC_SETTINGS
from einmal.security.secret import Secret
from einmal.wire.api.describe_configs import DescribeConfigsResourceResult, DescribeConfigsSynonym

_DYNAMIC_TOPIC: Final = 1
_DYNAMIC_DEFAULT: Final = 3
_STATIC_BROKER: Final = 4
_DEFAULT: Final = 5
_KINDS: Final = {bool: "BOOLEAN", int: "LONG", float: "DOUBLE", str: "STRING", Secret: "PASSWORD"}
_TYPES: Final = {"BOOLEAN": 1, "STRING": 2, "INT": 3, "SHORT": 4, "LONG": 5, "DOUBLE": 6, "LIST": 7, "PASSWORD": 9}


@dataclass(frozen=True, slots=True)
class SettingDescriptions:
    """``names`` None: all settings."""

    config: BrokerConfig
    metadata: ClusterMetadata

    def of_topic(self, topic: str, names: Collection[str] | None) -> list[DescribeConfigsResourceResult]:
        own = self.metadata.image.topic_configs(topic)
        names = None if names is None else frozenset(names)
        entries = []
        for name, described in TOPIC_SETTINGS.items():
            if (names is not None and name not in names) or (described.is_internal and name not in own):
                continue
            synonyms = []
            if name in own:
                synonyms.append(DescribeConfigsSynonym(name, own[name], _DYNAMIC_TOPIC))
            if described.broker_key is not None:
                synonyms += self._of_broker(described.broker_key, setting(self.config, {}, name))
            elif not described.is_internal:
                synonyms.append(DescribeConfigsSynonym(name, described.default, _DEFAULT))
            entries.append(_entry(name, synonyms, _TYPES[described.kind], read_only=False))
        return entries

    def of_broker(self, names: Collection[str] | None) -> list[DescribeConfigsResourceResult]:
        names = None if names is None else frozenset(names)
        entries = []
        for key, item in SETTINGS.items():
            if names is not None and key not in names:
                continue
            value = getattr(self.config, item.name)
            kind = _TYPES[_KINDS[type(value)]]
            read_only = key not in CHANGED_FOR_ALL
            synonyms = self._of_broker(key, _text(value))
            entries.append(_entry(key, synonyms, kind, read_only=read_only, about=item.metadata["about"]))
        for own in self.config.of_listeners:
            if names is None or own.full_key in names:
                kind = _TYPES[_KINDS[type(own.value)]]
                synonyms = [DescribeConfigsSynonym(own.full_key, _text(own.value), _STATIC_BROKER)]
                entries.append(_entry(own.full_key, synonyms, kind, read_only=True))
        return entries

    def of_cluster(self, names: Collection[str] | None) -> list[DescribeConfigsResourceResult]:
        """Return what was set for all brokers."""
        entries = []
        for key, value in self.metadata.image.cluster_configs.items():
            if (names is None or key in names) and key in CHANGED_FOR_ALL:
                kind = _TYPES[_KINDS[type(getattr(self.config, SETTINGS[key].name))]]
                synonyms = [DescribeConfigsSynonym(key, value, _DYNAMIC_DEFAULT)]
                about = SETTINGS[key].metadata["about"]
                entries.append(_entry(key, synonyms, kind, read_only=False, about=about))
        return entries

    def _of_broker(self, key: str, value: str | None) -> list[DescribeConfigsSynonym]:
        """Where a broker's setting comes from, what holds first; ``value``: in its file, or by default."""
        synonyms = []
        for_all = self.metadata.image.cluster_setting(key)
        if for_all is not None and key in CHANGED_FOR_ALL:
            synonyms.append(DescribeConfigsSynonym(key, for_all, _DYNAMIC_DEFAULT))
        source = _STATIC_BROKER if key in self.config.given else _DEFAULT
        return [*synonyms, DescribeConfigsSynonym(key, value, source)]


def _text(value: object) -> str | None:
    """None: it is secret."""
    if isinstance(value, Secret):
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _entry(
    name: str, synonyms: list[DescribeConfigsSynonym], kind: int, *, read_only: bool, about: str | None = None
) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=name,
        value=synonyms[0].value,
        read_only=read_only,
        config_source=synonyms[0].source,
        is_sensitive=kind == _TYPES["PASSWORD"],
        synonyms=synonyms,
        config_type=kind,
        documentation=about,
    )
