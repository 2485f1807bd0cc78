"""The settings of a topic, its own and inherited ones, and what they mean to its logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from einmal.broker.config import BrokerConfig
from einmal.log.config import LogConfig
from einmal.metadata.topic_configs import INTERNAL_SEGMENT_BYTES, TOPIC_SETTINGS

INDEX_INTERVAL_BYTES_MAX: Final = 64 * 1024
"""Upper bound for any log: a lookup walks the batches of one interval on the event loop, and a batch may have 70
bytes."""


def setting(config: BrokerConfig, configs: Mapping[str, str], name: str) -> str:
    """A topic's setting: its own, else the broker's, else Kafka's default."""
    own = configs.get(name)
    if own is not None:
        return own
    described = TOPIC_SETTINGS[name]
    if described.broker_key is None:
        return described.default
    value = getattr(config, described.broker_key.replace(".", "_"))
    return str(value).lower() if isinstance(value, bool) else str(value)


def log_config(config: BrokerConfig, configs: Mapping[str, str]) -> LogConfig:
    """The log settings of a topic, from its own and inherited settings."""

    def number(name: str) -> int:
        return int(setting(config, configs, name))

    cleanup_policy = setting(config, configs, "cleanup.policy")
    # Records that must be compacted within some time must be in a closed segment by then (KIP-354).
    lag_max_ms = number("max.compaction.lag.ms")
    return LogConfig(
        segment_bytes=int(configs.get(INTERNAL_SEGMENT_BYTES) or setting(config, configs, "segment.bytes")),
        segment_ms=min(number("segment.ms"), lag_max_ms) if "compact" in cleanup_policy else number("segment.ms"),
        retention_ms=number("retention.ms"),
        retention_bytes=number("retention.bytes"),
        index_interval_bytes=min(number("index.interval.bytes"), INDEX_INTERVAL_BYTES_MAX),
        max_message_bytes=number("max.message.bytes"),
        timestamp_type=setting(config, configs, "message.timestamp.type"),
        message_timestamp_before_max_ms=number("message.timestamp.before.max.ms"),
        message_timestamp_after_max_ms=number("message.timestamp.after.max.ms"),
        cleanup_policy=cleanup_policy,
        min_cleanable_dirty_ratio=float(setting(config, configs, "min.cleanable.dirty.ratio")),
        delete_retention_ms=number("delete.retention.ms"),
        min_compaction_lag_ms=number("min.compaction.lag.ms"),
        max_compaction_lag_ms=lag_max_ms,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        flush_each=number("flush.messages") == 1,
    )
