"""MirrorMaker's properties file (``connect-mirror-maker.properties``) as a mirror's declaration. Pure.

Clusters, flows, topics, groups and the replication policy mean what they mean to MirrorMaker, where a flow is off
unless it is enabled, and topics and groups without a flow are those of all. Keys of MirrorMaker's own machinery have no
effect here, and each is reported with the reason; any other key that ``mirror.toml`` does not have is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from einmal.declare.document import DeclarationError
from einmal.security.properties import parse_properties

SUFFIX: Final = ".properties"
_OF_ALL_FLOWS: Final = ("topics", "topics.exclude", "groups", "groups.exclude")
_FLOW: Final = re.compile(r"([A-Za-z0-9_]+->[A-Za-z0-9_]+)\.(.+)")
_WITHOUT_EFFECT: Final = tuple(
    (re.compile(names), reason)
    for names, reason in (
        (r"tasks\.max", "one process copies a flow; --spark shares its work"),
        (r"replication\.factor", "topics get the target's default.replication.factor"),
        (
            r"(checkpoints|heartbeats|offset-syncs|(config|offset|status)\.storage)\..+|emit\.(heartbeats|checkpoints)\..+",
            "no such topics are needed: positions and offsets are in the transactions",
        ),
        (r"sync\.group\.offsets\..+|offset\.lag\.max", "every transaction has the offsets of groups"),
        (r"refresh\.(topics|groups)\..+", "new topics and groups are found without it"),
        (r"sync\.topic\.(configs|acls)\..+", "settings and ACLs of topics are copied"),
        (r"exactly\.once\.source\.support", "every flow is exactly once"),
        (r"(key|value|header)\.converter(\..+)?", "record batches are copied as they are"),
        (r"dedicated\.mode\..+|listeners|rest\..+|plugin\.path", "there are no Connect workers"),
    )
)


def keys_of(text: str) -> dict[str, str]:
    """Return the keys that a declaration has, with dollars escaped that refer to nothing. Raises DeclarationError where
    no flow is enabled."""
    given = parse_properties(text)
    keys = {name: value for name, value in given.items() if _reason(name, given) is None}
    common = {name: keys.pop(name) for name in _OF_ALL_FLOWS if name in keys}
    flows = {match[1] for name in keys if (match := _FLOW.fullmatch(name)) is not None}
    for flow in flows:
        keys.setdefault(f"{flow}.enabled", "false")
        for name, value in common.items():
            keys.setdefault(f"{flow}.{name}", value)
    if not any(keys[f"{flow}.enabled"].strip().lower() == "true" for flow in flows):
        raise DeclarationError(["no flow is enabled\nhint: A->B.enabled = true"])
    return {name: re.sub(r"\$(?!\{)", "$$", value.strip()) for name, value in keys.items()}


def without_effect(text: str) -> list[str]:
    """Return a sentence for each key without effect."""
    given = parse_properties(text)
    reasons = {name: reason for name in given if (reason := _reason(name, given)) is not None}
    return [f"{name} has no effect: {reason}" for name, reason in reasons.items()]


def _reason(name: str, given: Mapping[str, str]) -> str | None:
    """Why a key has no effect, whether it is that of a flow, of a cluster or of all."""
    aliases = [alias.strip() for alias in given.get("clusters", "").split(",")]
    flow = _FLOW.fullmatch(name)
    prefix = next((alias for alias in aliases if alias and name.startswith(f"{alias}.")), None)
    bare = flow[2] if flow is not None else name if prefix is None else name.removeprefix(f"{prefix}.")
    return next((reason for names, reason in _WITHOUT_EFFECT if names.fullmatch(bare)), None)
