"""The settings of a topic: Kafka's keys, their valid values, and the broker settings they fall back to.

Knows the syntax of values, not their effect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

VALUE_BYTES_MAX: Final = 32_767
"""Maximum size of a setting's value: clients read no longer strings. Every node has all settings in memory."""
_WHOLE_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
SEGMENT_BYTES_MIN: Final = 1024 * 1024
"""Each segment has files and memory of its own, and a client decides how many there are (KIP-1030)."""
INTERNAL_SEGMENT_BYTES: Final = "internal.segment.bytes"
"""Above ``segment.bytes``, and without its bound."""
_THROTTLED: Final = r"\*|(\d+:\d+(,\d+:\d+)*)?"
"""Replicas as ``partition:broker,...``."""


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """``broker_key``: the broker's setting that applies if the topic has none; else ``default`` applies.

    ``kind``: Kafka's type name, as DescribeConfigs reports it. ``only``: the one value that is supported, and why.
    ``is_internal``: for tests, and described only where it is set. ``docs/topic-settings.md`` lists those without
    effect.
    """

    kind: str
    broker_key: str | None = None
    default: str = ""
    low: int | None = None
    high: int | None = None
    one_of: tuple[str, ...] = ()
    only: tuple[str, str] | None = None
    pattern: str | None = None
    is_internal: bool = False

    def problem(self, value: str) -> str | None:
        """Why ``value`` is invalid; None: it is valid."""
        if self.only is not None and value.lower() != self.only[0]:
            return f"{value!r} is not supported: {self.only[1]}"
        if self.pattern is not None and not re.fullmatch(self.pattern, value):
            return f"{value!r} is not of the form {self.pattern}"
        if self.kind in ("INT", "LONG"):
            if not _WHOLE_NUMBER.fullmatch(value) or not self.least <= int(value) <= self.most:
                return f"{value!r} is not a whole number between {self.least} and {self.most}"
        elif self.kind == "DOUBLE":
            try:
                number = float(value)
            except ValueError:
                number = -1.0
            if not 0 <= number <= 1:
                return f"{value!r} is not a number between 0 and 1"
        elif self.kind == "BOOLEAN":
            if value.lower() not in ("true", "false"):
                return f"{value!r} is neither true nor false"
        elif self.one_of and any(item.strip() not in self.one_of for item in self._items(value)):
            return f"{value!r} is not of {', '.join(self.one_of)}"
        return None

    @property
    def least(self) -> int:
        """The smallest INT or LONG."""
        bound = -_INT32_MAX if self.kind == "INT" else -_INT64_MAX
        return bound - 1 if self.low is None else self.low

    @property
    def most(self) -> int:
        """The largest INT or LONG."""
        return self.high or (_INT32_MAX if self.kind == "INT" else _INT64_MAX)

    def _items(self, value: str) -> list[str]:
        if self.kind != "LIST":
            return [value]
        return value.split(",") if value else []


TOPIC_SETTINGS: Final[Mapping[str, TopicSetting]] = {
    "cleanup.policy": TopicSetting("LIST", "log.cleanup.policy", "delete", one_of=("delete", "compact")),
    "compression.gzip.level": TopicSetting("INT", default="-1", low=-1, high=9, pattern="-1|[1-9]"),
    "compression.lz4.level": TopicSetting("INT", default="9", low=1, high=17),
    "compression.type": TopicSetting(
        "STRING", "compression.type", one_of=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
    ),
    "compression.zstd.level": TopicSetting("INT", default="3", low=-131_072, high=22),
    "delete.retention.ms": TopicSetting("LONG", "log.cleaner.delete.retention.ms", low=0),
    "errors.deadletterqueue.group.enable": TopicSetting(
        "BOOLEAN", default="false", only=("false", "there are no share groups")
    ),
    "file.delete.delay.ms": TopicSetting("LONG", default="60000", low=0),
    "flush.messages": TopicSetting("LONG", "log.flush.interval.messages", low=1),
    "flush.ms": TopicSetting(
        "LONG", default=str(_INT64_MAX), only=(str(_INT64_MAX), "flush.messages=1 flushes every write instead")
    ),
    "follower.replication.throttled.replicas": TopicSetting("LIST", pattern=_THROTTLED),
    "index.interval.bytes": TopicSetting("INT", "log.index.interval.bytes", low=0),
    INTERNAL_SEGMENT_BYTES: TopicSetting("INT", low=1, is_internal=True),
    "leader.replication.throttled.replicas": TopicSetting("LIST", pattern=_THROTTLED),
    "local.retention.bytes": TopicSetting("LONG", default="-2", low=-2),
    "local.retention.ms": TopicSetting("LONG", default="-2", low=-2),
    "max.compaction.lag.ms": TopicSetting("LONG", "log.cleaner.max.compaction.lag.ms", low=1),
    "max.decompressed.message.bytes": TopicSetting("INT", default="2147483639", low=1, high=2_147_483_639),
    "max.message.bytes": TopicSetting("INT", "message.max.bytes", low=0),
    "message.timestamp.after.max.ms": TopicSetting("LONG", "log.message.timestamp.after.max.ms", low=0),
    "message.timestamp.before.max.ms": TopicSetting("LONG", "log.message.timestamp.before.max.ms", low=0),
    "message.timestamp.type": TopicSetting(
        "STRING", "log.message.timestamp.type", one_of=("CreateTime", "LogAppendTime")
    ),
    "min.cleanable.dirty.ratio": TopicSetting("DOUBLE", "log.cleaner.min.cleanable.ratio"),
    "min.compaction.lag.ms": TopicSetting("LONG", "log.cleaner.min.compaction.lag.ms", low=0),
    "min.insync.replicas": TopicSetting("INT", "min.insync.replicas", low=1),
    "preallocate": TopicSetting("BOOLEAN", default="false"),
    "remote.copy.lag.bytes": TopicSetting("LONG", default="-1", low=-1),
    "remote.copy.lag.ms": TopicSetting("LONG", default="0", low=-1),
    "remote.log.copy.disable": TopicSetting("BOOLEAN", default="false"),
    "remote.log.delete.on.disable": TopicSetting("BOOLEAN", default="false"),
    "remote.storage.enable": TopicSetting("BOOLEAN", default="false", only=("false", "there is no tiered storage")),
    "retention.bytes": TopicSetting("LONG", "log.retention.bytes"),
    "retention.ms": TopicSetting("LONG", "log.retention.ms", low=-1),
    "segment.bytes": TopicSetting("INT", "log.segment.bytes", low=SEGMENT_BYTES_MIN),
    "segment.index.bytes": TopicSetting("INT", default="10485760", low=4),
    "segment.jitter.ms": TopicSetting("LONG", default="0", low=0),
    "segment.ms": TopicSetting("LONG", "log.roll.ms", low=1),
    "unclean.leader.election.enable": TopicSetting("BOOLEAN", "unclean.leader.election.enable"),
}

COMPACTION_LAGS: Final = ("min.compaction.lag.ms", "max.compaction.lag.ms")


def problem_of(name: str, value: str | None) -> str | None:
    """Why a topic cannot have this setting; None: it can. ``value`` None (reset to the default) is always valid."""
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        return f"Unknown topic config name: {name}"
    if value is None:
        return None
    size = len(value.encode())
    if size > VALUE_BYTES_MAX:
        return f"Invalid value for configuration {name}: {size} bytes, and at most {VALUE_BYTES_MAX} are possible"
    reason = setting.problem(value)
    return None if reason is None else f"Invalid value for configuration {name}: {reason}"


def conflict_of(configs: Mapping[str, str | None]) -> str | None:
    """The conflict between a topic's own settings, each of which is valid; None: there is none."""
    least, most = COMPACTION_LAGS
    if int(configs.get(least) or 0) > int(configs.get(most) or _INT64_MAX):
        return f"conflict topic config setting {least} ({configs[least]}) > {most} ({configs[most]})"
    return None
