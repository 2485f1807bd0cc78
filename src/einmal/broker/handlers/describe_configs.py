"""DescribeConfigs: the settings of topics, of this broker, and of all brokers.

API: 32. Versions: 1-4.
Behaviour: every setting with its value and where that comes from; synonyms and documentation where they are asked for.
A broker's are read-only, but for those that topics inherit, which can be changed for all brokers.
Version notes: v1 sources and synonyms; v3 types and documentation.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from einmal.broker.config import SETTINGS
from einmal.broker.context import RequestContext, Versions
from einmal.broker.partitions import setting
from einmal.metadata.configs import CHANGED_FOR_ALL
from einmal.metadata.image import BROKER_RESOURCE, CLUSTER_DEFAULT, TOPIC_RESOURCE
from einmal.metadata.topic_configs import TOPIC_SETTINGS
from einmal.types import ErrorCode

if TYPE_CHECKING:
    from einmal.broker.node import Node

API_KEY: Final = 32
VERSIONS: Final = Versions(1, 4, flexible=4)

_DYNAMIC_TOPIC: Final = 1
_DYNAMIC_DEFAULT: Final = 3
_STATIC_BROKER: Final = 4
_DEFAULT: Final = 5
_KINDS: Final = {bool: "BOOLEAN", int: "LONG", float: "DOUBLE", str: "STRING"}
_TYPES: Final = {"BOOLEAN": 1, "STRING": 2, "INT": 3, "SHORT": 4, "LONG": 5, "DOUBLE": 6, "LIST": 7}


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    # A resource that is named twice is described once: what is said of it is a hundred times its name.
    named = {(item.resource_type, item.resource_name): item for item in request.resources}
    return {"results": [_result(context, request, item) async for item in context.paced(named.values())]}


def _result(context: RequestContext, request: Any, item: Any) -> dict[str, Any]:
    described = _describe(context, item)
    for entry in described["configs"]:
        if not request.include_synonyms:
            entry["synonyms"] = ()
        if not getattr(request, "include_documentation", False):
            entry["documentation"] = None
    return {"resource_type": item.resource_type, "resource_name": item.resource_name, **described}


def _describe(context: RequestContext, resource: Any) -> dict[str, Any]:
    node = context.node
    if resource.resource_type == TOPIC_RESOURCE:
        if resource.resource_name not in node.metadata.image.topics:
            return {"error_code": ErrorCode.unknown_topic_or_partition, "configs": []}
        return {"configs": topic_settings(node, resource.resource_name, resource.configuration_keys)}
    if resource.resource_type == BROKER_RESOURCE and resource.resource_name == CLUSTER_DEFAULT:
        return {"configs": _cluster_settings(node, resource.configuration_keys)}
    if resource.resource_type == BROKER_RESOURCE:
        if resource.resource_name != str(node.config.node_id):
            message = f"Unexpected broker id, expected {node.config.node_id}, but received {resource.resource_name}"
            return {"error_code": ErrorCode.invalid_request, "error_message": message, "configs": []}
        return {"configs": _broker_settings(node, resource.configuration_keys)}
    message = f"Unsupported resource type: {resource.resource_type}"
    return {"error_code": ErrorCode.invalid_request, "error_message": message, "configs": []}


def topic_settings(node: Node, topic: str, names: Collection[str] | None) -> list[dict[str, Any]]:
    """The settings of a topic as fields of the answer; ``names`` None: all."""
    own = node.metadata.image.topic_configs(topic)
    names = None if names is None else frozenset(names)
    entries = []
    for name, described in TOPIC_SETTINGS.items():
        if names is not None and name not in names:
            continue
        synonyms = []
        if name in own:
            synonyms.append({"name": name, "value": own[name], "source": _DYNAMIC_TOPIC})
        if described.broker_key is None:
            synonyms.append({"name": name, "value": described.default, "source": _DEFAULT})
        else:
            synonyms += _of_broker(node, described.broker_key, setting(node.config, {}, name))
        entries.append(_entry(name, synonyms, _TYPES[described.kind], read_only=False))
    return entries


def _broker_settings(node: Node, names: Collection[str] | None) -> list[dict[str, Any]]:
    names = None if names is None else frozenset(names)
    entries = []
    for key, item in SETTINGS.items():
        if names is not None and key not in names:
            continue
        value = getattr(node.config, item.name)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        kind = _TYPES[_KINDS[type(value)]]
        read_only = key not in CHANGED_FOR_ALL
        synonyms = _of_broker(node, key, text)
        entries.append(_entry(key, synonyms, kind, read_only=read_only, about=item.metadata["about"]))
    return entries


def _cluster_settings(node: Node, names: Collection[str] | None) -> list[dict[str, Any]]:
    """What was set for all brokers."""
    entries = []
    for key, value in node.metadata.image.cluster_configs.items():
        if (names is None or key in names) and key in CHANGED_FOR_ALL:
            kind = _TYPES[_KINDS[type(getattr(node.config, SETTINGS[key].name))]]
            synonyms = [{"name": key, "value": value, "source": _DYNAMIC_DEFAULT}]
            about = SETTINGS[key].metadata["about"]
            entries.append(_entry(key, synonyms, kind, read_only=False, about=about))
    return entries


def _of_broker(node: Node, key: str, value: str) -> list[dict[str, Any]]:
    """Where a broker's setting comes from, what holds first; ``value``: in its file, or by default."""
    synonyms = []
    for_all = node.metadata.image.cluster_setting(key)
    if for_all is not None and key in CHANGED_FOR_ALL:
        synonyms.append({"name": key, "value": for_all, "source": _DYNAMIC_DEFAULT})
    source = _STATIC_BROKER if key in node.config.given else _DEFAULT
    return [*synonyms, {"name": key, "value": value, "source": source}]


def _entry(
    name: str, synonyms: list[dict[str, Any]], kind: int, *, read_only: bool, about: str | None = None
) -> dict[str, Any]:
    return {
        "name": name,
        "value": synonyms[0]["value"],
        "read_only": read_only,
        "config_source": synonyms[0]["source"],
        "is_sensitive": False,
        "synonyms": synonyms,
        "config_type": kind,
        "documentation": about,
    }
