"""Settings and ACLs of topics, copied from the source to the target beside the transactions of records.

Both are copied where the mirror may read them at the source and set them at the target; what is refused is reported.
Settings that the source has set for a topic are set for its copy. One that is not set at the source any more is taken
back there, too, since it may delete the copy's records: the commit record has the names of those that were copied.
Others are left as they are; limits that would make the copy refuse records are raised to what is in effect at the
source, and a copy keeps the source's timestamps, whatever its brokers' default is. Of ACLs those about reading are
copied: to write to a mirrored topic is the mirror's alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Final

from einmal.client import AclFilter, AclOperation, PatternType, ResourceType
from einmal.client.blocking.admin import AdminCalls
from einmal.client.descriptions import ConfigEntry
from einmal.client.errors import KafkaError
from einmal.mirror_protocol.flow import MirrorNotice, NoticeKind
from einmal.types import ErrorCode

_EVERY_S: Final = 600.0
CONFIG_EXCLUDE: Final = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.difference.max.ms",
        "message.timestamp.type",
        "min.insync.replicas",
        "unclean.leader.election.enable",
    }
)
"""MirrorMaker's ``config.properties.exclude``: they belong to a cluster, or would refuse timestamps of the past."""
_LIMITS: Final = (
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.difference.max.ms",
)
"""A record that the source has accepted must not be refused because the target's brokers have lower defaults."""
_TIMESTAMP_TYPE: Final = "message.timestamp.type"
_CREATE_TIME: Final = "CreateTime"
"""The copy's brokers leave timestamps as they are: those of the source, also where it had set them to its own time."""
_READS: Final = frozenset({AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS})

_Settings = Mapping[str, Mapping[str, ConfigEntry]]
"""By topic and name."""


class TopicSettings:
    """``notify`` gets a notice of what could not be copied. ``copied``: names of the settings that were, by the
    target's topic; its owner keeps them."""

    def __init__(
        self,
        source: AdminCalls,
        target: AdminCalls,
        notify: Callable[[MirrorNotice], None],
        copied: MutableMapping[str, tuple[str, ...]],
    ) -> None:
        self._source, self._target = source, target
        self._notify = notify
        self._copied = copied
        self._due_s = 0.0
        self._raised: set[tuple[str, str]] = set()
        """Topics and copies whose limits are raised."""

    def of_new_topic(self, name: str, copy: str) -> dict[str, str]:
        """The settings that the copy of a source topic is created with."""
        settings: dict[str, dict[str, str]] = {}
        with self._failure_noticed(name, "its settings cannot be read at the source"):
            settings = _set_values(self._source.describe_configs([name]))
        self._copied[copy] = tuple(sorted(settings.get(name, {})))
        return settings.get(name, {})

    def synchronize(self, topics: Mapping[str, str]) -> None:
        """Every ten minutes. ``topics``: the target's names by the source's."""
        if time.monotonic() < self._due_s or not topics:
            # A copy that was there before its topic is to take the next records.
            self.raise_limits(dict(topics.items() - self._raised))
            return
        self._due_s = time.monotonic() + _EVERY_S
        with self._failure_noticed(", ".join(topics), "settings of topics are not copied"):
            wanted = _set_values(self._shown(self._source, topics))
            current = _set_values(self._shown(self._target, topics.values()))
            for name, values in wanted.items():
                copy = topics[name]
                if copy not in current:
                    continue
                self._set(copy, values, current[copy])
                removed = current[copy].keys() & self._copied.get(copy, ()) - values.keys()
                self._copied[copy] = tuple(sorted(values.keys() | self._left(copy, removed)))
        self.raise_limits(topics)
        with self._failure_noticed(", ".join(topics), "ACLs of topics are not copied"):
            self._copy_acls(topics)

    def raise_limits(self, topics: Mapping[str, str]) -> None:
        """Let the copies accept what their source topics accept, by whatever is in effect there, defaults of the
        brokers too, and leave its timestamps as they are. ``topics``: the target's names by the source's."""
        self._raised |= topics.items()
        if not topics:
            return
        with self._failure_noticed(", ".join(topics), "limits of topics are not raised"):
            entries = self._shown(self._target, topics.values())
            for name, copy in topics.items():
                self._keep_timestamps(name, copy, entries.get(copy, {}).get(_TIMESTAMP_TYPE))
            current = _limits(entries)
            for name, limits in _limits(self._shown(self._source, topics)).items():
                copy = topics[name]
                values = current.get(copy, {})
                lower = {key: limits[key] for key, value in values.items() if value < limits.get(key, value)}
                self._set(copy, {key: str(value) for key, value in lower.items()}, {})

    def _shown(self, admin: AdminCalls, topics: Collection[str]) -> _Settings:
        """Return the settings that a cluster shows. Those that it does not show are reported."""
        answers = admin.describe_configs_each(list(topics))
        hidden = {topic: answer for topic, answer in answers.items() if isinstance(answer, KafkaError)}
        if len(hidden) == len(topics):
            raise next(iter(hidden.values()))
        cluster = "source" if admin is self._source else "target"
        for topic, error in hidden.items():
            with self._failure_noticed(topic, f"its settings cannot be read at the {cluster}, and are not copied"):
                raise error
        return {topic: answer for topic, answer in answers.items() if not isinstance(answer, KafkaError)}

    def _keep_timestamps(self, name: str, copy: str, current: ConfigEntry | None) -> None:
        if current is None or current.value == _CREATE_TIME:
            return
        if current.is_default:
            self._set(copy, {_TIMESTAMP_TYPE: _CREATE_TIME}, {})
            return
        text = f"{copy}: {_TIMESTAMP_TYPE}={current.value} is set for it: its records lose the timestamps that they "
        text += f"have in {name}, unless it is reset"
        self._notify(MirrorNotice(NoticeKind.SETTINGS, copy, text))

    def _set(self, topic: str, wanted: Mapping[str, str], current: Mapping[str, str]) -> None:
        for name, value in wanted.items():
            if current.get(name) != value:
                # One at a time: the target may lack one of them.
                with self._failure_noticed(topic, f"{name} = {value!r} is not set"):
                    self._target.alter_configs(topic, {name: value})

    def _left(self, topic: str, removed: Collection[str]) -> set[str]:
        """Take back settings that were removed at the source. Returns those for which that has failed."""
        left = set(removed)
        for name in sorted(left.difference(_LIMITS)):
            with self._failure_noticed(topic, f"{name}, which is not set at the source any more, is not reset"):
                self._target.alter_configs(topic, {name: None})
                left.remove(name)
        return left.difference(_LIMITS)

    def _copy_acls(self, topics: Mapping[str, str]) -> None:
        acls = self._source.describe_acls(AclFilter(ResourceType.TOPIC, pattern_type=PatternType.LITERAL))
        wanted = {
            acl._replace(resource_name=topics[acl.resource_name], operation=operation)
            for acl in acls
            if acl.resource_name in topics
            if (operation := AclOperation.READ if acl.operation is AclOperation.ALL else acl.operation) in _READS
        }
        if wanted:
            self._target.create_acls(sorted(wanted))

    @contextmanager
    def _failure_noticed(self, topic: str, what: str) -> Iterator[None]:
        try:
            yield
        except KafkaError as error:
            if error.code is not ErrorCode.security_disabled:
                self._notify(MirrorNotice(NoticeKind.SETTINGS, topic, f"{topic}: {what}: {error}"))


def _limits(settings: _Settings) -> dict[str, dict[str, int]]:
    """Those in effect."""
    return {
        topic: {name: int(entry.value) for name in _LIMITS if (entry := entries.get(name)) is not None and entry.value}
        for topic, entries in settings.items()
    }


def _set_values(settings: _Settings) -> dict[str, dict[str, str]]:
    """Return what is set for the topics themselves."""
    return {
        topic: {
            name: entry.value
            for name, entry in entries.items()
            if not entry.is_default and entry.value is not None and name not in CONFIG_EXCLUDE
        }
        for topic, entries in settings.items()
    }
