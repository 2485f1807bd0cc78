"""A mirror as it is declared in ``mirror.toml``. Pure.

The keys are MirrorMaker's: ``clusters``, ``A.bootstrap.servers`` and other client settings of a cluster,
``A->B.topics``, ``A->B.groups``, ``replication.policy.class``. A table is nothing but a dotted name. Variables are
those of ``pipeline.toml``. An unknown key is an error that suggests the nearest known key, and all errors of a file are
reported at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from einmal.client.config import AdminSettings, documentation
from einmal.declare.document import (
    DeclarationError,
    Variables,
    as_text,
    flattened,
    refuse_unknown,
    substituted,
    toml_tables,
)
from einmal.mirror_protocol.flow import Flow
from einmal.mirror_protocol.replication_policy import (
    DEFAULT_POLICY,
    GROUPS_EXCLUDE,
    TOPICS_EXCLUDE,
    NameFilter,
    ReplicationPolicy,
    UnknownPolicy,
)
from einmal.mirroring.mirrormaker import keys_of
from einmal.security.redaction import RedactedDict

_TOP: Final = ("clusters", "replication.policy.class", "replication.policy.separator")
_FLOW: Final = ("enabled", "topics", "topics.exclude", "groups", "groups.exclude", "failOnDataLoss", "transactions")
_TRANSACTIONS: Final = ("whole", "by-partition")
_ALIAS: Final = re.compile(r"[A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True)
class MirrorDeclaration:
    """``flows`` by name (``A->B``), those that are enabled; ``clusters``: client settings by alias."""

    flows: Mapping[str, Flow]
    clusters: Mapping[str, Mapping[str, str]]


def flow_names(text: str, *, is_properties: bool = False) -> list[str]:
    """Return the names of the flows that are declared and not switched off, before anything is checked. Raises
    DeclarationError, also where there is none."""
    keys = _keys(text, is_properties)
    problems: list[str] = []
    aliases = _aliases(keys, problems)
    names = [f"{source}->{target}" for source in aliases for target in aliases if source != target]
    flows = [name for name in names if _section(keys, name)]
    if problems or not flows:
        of_no_clusters = [_of_no_clusters(name, aliases) for name in _tables_of_flows(keys)]
        raise DeclarationError(problems or of_no_clusters or [_no_flow(names)])
    return [name for name in flows if as_text(keys.get(f"{name}.enabled", "true")).lower() != "false"]


def parse(
    text: str,
    environment: Mapping[str, str],
    read: Callable[[str], str],
    only: str | None = None,
    *,
    is_source_lost: bool = False,
    is_properties: bool = False,
) -> MirrorDeclaration:
    """``read``: the text of a file that a value refers to (OSError). ``only``: the flow that is to run; what is wrong
    with others, and with clusters that it does not connect, does not keep it from that. ``is_source_lost``: nor is its
    source connected, whose settings are left out. ``is_properties``: as MirrorMaker has them. Raises
    DeclarationError."""
    problems: list[str] = []
    keys = _keys(text, is_properties)
    aliases = _aliases(keys, problems)
    names = [f"{source}->{target}" for source in aliases for target in aliases if source != target]
    if only is not None and only in names:
        source, _, target = only.partition("->")
        opposite = f"{target}->{source}"
        has_opposite = any(key.startswith(f"{opposite}.") for key in keys)
        enabled = substituted(keys.get(f"{opposite}.enabled", "true"), Variables(environment, read), [], "")
        others = {*aliases, *names} - {source, target, only}
        keys = {key: value for key, value in keys.items() if not any(key.startswith(f"{prefix}.") for prefix in others)}
        if has_opposite:
            # Only that it is there, unless it is certain that it is not: policies differ by it.
            keys[f"{opposite}.enabled"] = as_text(enabled).lower() != "false"
        if is_source_lost:
            keys = {key: value for key, value in keys.items() if not key.startswith(f"{source}.")}
        aliases, names = [source, target], [only, opposite]
    keys = substituted(keys, Variables(environment, read), problems, "")
    sections = {name: _section(keys, name) for name in (*aliases, *names)}
    rest = [key for key in keys if not any(key.startswith(f"{name}.") for name in sections)]
    undeclared = _tables_of_flows(rest)
    problems += [_of_no_clusters(name, aliases) for name in undeclared]
    refuse_unknown("", [key for key in rest if key.partition(".")[0] not in undeclared], _TOP, problems)
    connected = aliases[1:] if is_source_lost else aliases
    clusters = {alias: _cluster(alias, sections[alias], problems) for alias in connected}
    policy = _policy(keys, problems)
    flows = {name: flow for name in names if (flow := _flow(name, sections[name], policy, problems)) is not None}
    if aliases and not flows and not undeclared:
        problems.append(_no_flow(names))
    if policy.keeps_names and any(f"{flow.target}->{flow.source}" in flows for flow in flows.values()):
        problems.append(
            "IdentityReplicationPolicy in both directions would copy every record back\n"
            "hint: DefaultReplicationPolicy recognises the topics of the other cluster by their prefix"
        )
    if problems:
        raise DeclarationError(problems)
    return MirrorDeclaration(flows, clusters)


def _keys(text: str, is_properties: bool) -> dict[str, Any]:
    return dict(keys_of(text)) if is_properties else flattened(toml_tables(text))


def _no_flow(names: Sequence[str]) -> str:
    return f'no flow is declared\nhint: ["{names[0] if names else "A->B"}"] with topics = [".*"]'


def _tables_of_flows(keys: Iterable[str]) -> dict[str, None]:
    return dict.fromkeys(name for key in keys if "->" in (name := key.partition(".")[0]))


def _of_no_clusters(flow: str, aliases: Sequence[str]) -> str:
    """The problem of a flow that does not connect two of the clusters."""
    unknown = [alias for alias in dict.fromkeys(flow.split("->")) if alias not in aliases]
    if not unknown:
        return f"flow {flow!r} has one cluster as source and target\nhint: name two of {', '.join(aliases)}"
    missing = " and ".join(map(repr, unknown))
    return f"flow {flow!r}: no cluster has the alias {missing}\nhint: clusters has {', '.join(aliases)}"


def _aliases(keys: Mapping[str, Any], problems: list[str]) -> list[str]:
    aliases = _names(keys.get("clusters", ()))
    problems += [f"clusters: {alias!r} is no alias: letters, digits and _" for alias in aliases if not _is_alias(alias)]
    if len(set(aliases)) < 2:
        problems.append('clusters names two clusters or more\nhint: clusters = ["A", "B"]')
    return list(dict.fromkeys(filter(_is_alias, aliases)))


def _is_alias(name: str) -> bool:
    return _ALIAS.fullmatch(name) is not None


def _section(keys: Mapping[str, Any], name: str) -> dict[str, Any]:
    prefix = f"{name}."
    return {key.removeprefix(prefix): value for key, value in keys.items() if key.startswith(prefix)}


def _cluster(alias: str, section: Mapping[str, Any], problems: list[str]) -> Mapping[str, str]:
    refuse_unknown(alias, section, [name for name, *_ in documentation(AdminSettings)], problems)
    if "bootstrap.servers" not in section:
        problems.append(f'{alias}: bootstrap.servers is missing\nhint: {alias}.bootstrap.servers = "host:9092"')
    return RedactedDict({key: as_text(value) for key, value in section.items()})


def _policy(keys: Mapping[str, Any], problems: list[str]) -> ReplicationPolicy:
    if not as_text(keys.get("replication.policy.separator", ".")):
        problems.append(
            "replication.policy.separator is empty\nhint: no topic of the other cluster could be recognised"
        )
    try:
        return ReplicationPolicy.of(
            as_text(keys.get("replication.policy.class", DEFAULT_POLICY)),
            as_text(keys.get("replication.policy.separator", ".")),
        )
    except UnknownPolicy as error:
        problems.append(str(error))
        return ReplicationPolicy()


def _flow(name: str, section: Mapping[str, Any], policy: ReplicationPolicy, problems: list[str]) -> Flow | None:
    refuse_unknown(name, section, _FLOW, problems)
    if not section or not _flag(name, section, "enabled", problems):
        return None
    source, _, target = name.partition("->")
    return Flow(
        source=source,
        target=target,
        policy=policy,
        topics=_filter(name, section, "topics", TOPICS_EXCLUDE, problems),
        groups=_filter(name, section, "groups", GROUPS_EXCLUDE, problems),
        by_partition=_transactions(name, section, problems) == "by-partition",
        fail_on_data_loss=_flag(name, section, "failOnDataLoss", problems),
    )


def _filter(
    name: str, section: Mapping[str, Any], key: str, exclude: tuple[str, ...], problems: list[str]
) -> NameFilter:
    name_filter = NameFilter(
        tuple(_names(section.get(key, ".*"))), tuple(_names(section.get(f"{key}.exclude", list(exclude))))
    )
    for expression in (*name_filter.include, *name_filter.exclude):
        try:
            re.compile(expression)
        except re.error as error:
            problems.append(f"{name}.{key}: {expression!r} is no regular expression: {error}")
    return name_filter


def _transactions(name: str, section: Mapping[str, Any], problems: list[str]) -> str:
    value = as_text(section.get("transactions", "whole"))
    if value not in _TRANSACTIONS:
        problems.append(f"{name}.transactions is {' or '.join(_TRANSACTIONS)}, not {value!r}")
    return value


def _flag(name: str, section: Mapping[str, Any], key: str, problems: list[str]) -> bool:
    value = as_text(section.get(key, "true")).lower()
    if value not in ("true", "false"):
        problems.append(f"{name}.{key} is true or false, not {value!r}")
    return value != "false"


def _names(value: Any) -> list[str]:
    """A list, or text with commas as in MirrorMaker's properties."""
    parts = value if isinstance(value, list | tuple) else as_text(value).split(",")
    return [text for name in parts if (text := as_text(name).strip())]
