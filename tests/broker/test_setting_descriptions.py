"""Settings with their values and sources, without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from einmal.broker.config import broker_config
from einmal.broker.front.topics.setting_descriptions import SettingDescriptions
from einmal.metadata.image import BROKER_RESOURCE, CLUSTER_DEFAULT, TOPIC_RESOURCE, ClusterImage

TOPIC, CLUSTER, FILE, DEFAULT = 1, 3, 4, 5
"""Sources, as DescribeConfigs numbers them."""


def descriptions(**configs: dict[str, str]) -> SettingDescriptions:
    image = ClusterImage()
    image.configs[TOPIC_RESOURCE, "t"] = configs.get("topic", {})
    image.configs[BROKER_RESOURCE, CLUSTER_DEFAULT] = configs.get("cluster", {})
    config, unknown = broker_config(configs.get("file", {}))
    assert not unknown
    return SettingDescriptions(config, cast(Any, SimpleNamespace(image=image)))


def sources(described: SettingDescriptions, name: str = "retention.ms") -> list[tuple[str, str | None, int]]:
    (entry,) = described.of_topic("t", [name])
    assert (entry.value, entry.config_source) == (entry.synonyms[0].value, entry.synonyms[0].source)
    return [(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms]


def test_the_nearest_source_of_a_setting_comes_first() -> None:
    default = ("log.retention.ms", "604800000", DEFAULT)
    assert sources(descriptions())[-1] == default
    own = descriptions(topic={"retention.ms": "1"}, cluster={"log.retention.ms": "2"}, file={"log.retention.ms": "3"})
    assert sources(own) == [
        ("retention.ms", "1", TOPIC),
        ("log.retention.ms", "2", CLUSTER),
        ("log.retention.ms", "3", FILE),
    ]


def test_only_the_named_settings_are_described() -> None:
    described = descriptions(cluster={"log.retention.ms": "2"})
    assert [entry.name for entry in described.of_broker(["node.id", "unknown"])] == ["node.id"]
    assert [entry.name for entry in described.of_cluster(None)] == ["log.retention.ms"]
    assert described.of_cluster(["node.id"]) == []
    assert len(described.of_topic("t", None)) > 20


def test_a_brokers_setting_is_read_only_unless_topics_inherit_it() -> None:
    by_name = {entry.name: entry for entry in descriptions().of_broker(None)}
    assert by_name["node.id"].read_only
    assert not by_name["log.retention.ms"].read_only
    assert by_name["node.id"].documentation
