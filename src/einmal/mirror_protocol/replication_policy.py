"""Names of mirrored topics, as MirrorMaker's replication policies form them, and the topics that would run in a circle.

Under the default policy a topic carries the alias of the cluster that it comes from (``A.orders``), so that a mirror in
the other direction recognises its own cluster's topics. Under the identity policy names do not change, and a mirror in
the other direction would copy every record back: it must be limited to other topics.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from einmal.commit_protocol.commit_record import RESERVED_TOPICS

DEFAULT_POLICY: Final = "org.apache.kafka.connect.mirror.DefaultReplicationPolicy"
IDENTITY_POLICY: Final = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
TOPICS_EXCLUDE: Final = (r"mm2.*\.internal", r".*\.replica", "__.*")
GROUPS_EXCLUDE: Final = ("console-consumer-.*", "connect-.*", "__.*")
"""Both are MirrorMaker's defaults."""


class UnknownPolicy(ValueError):
    """The value of ``replication.policy.class`` is none of the two."""


@dataclass(frozen=True, slots=True)
class ReplicationPolicy:
    """``separator``: ``replication.policy.separator``. ``keeps_names``: the identity policy."""

    separator: str = "."
    keeps_names: bool = False

    @staticmethod
    def of(policy_class: str, separator: str = ".") -> ReplicationPolicy:
        """From the settings' values. Raises UnknownPolicy."""
        names = {policy.rpartition(".")[2]: policy for policy in (DEFAULT_POLICY, IDENTITY_POLICY)}
        name = names.get(policy_class, policy_class)
        if name not in names.values():
            raise UnknownPolicy(
                f"unsupported replication.policy.class {policy_class!r}; supported: {', '.join(names)}\n"
                "hint: a policy that renames topics in another way is Java code, which does not run here"
            )
        return ReplicationPolicy(separator, name == IDENTITY_POLICY)

    def remote_topic(self, source_alias: str, topic: str) -> str:
        """The target's name of a source topic."""
        return topic if self.keeps_names else f"{source_alias}{self.separator}{topic}"

    def is_cycle(self, topic: str, target_alias: str) -> bool:
        """Whether the topic comes from the target cluster, perhaps by way of others."""
        if self.keeps_names:
            return False
        source, separator, upstream = topic.partition(self.separator)
        return bool(separator) and (source == target_alias or self.is_cycle(upstream, target_alias))


@dataclass(frozen=True, slots=True)
class NameFilter:
    """``include`` and ``exclude``: regular expressions of whole names."""

    include: Sequence[str] = (".*",)
    exclude: Sequence[str] = ()

    def accepts(self, name: str) -> bool:
        return _matches(self.include, name) and not _matches(self.exclude, name)


def accepts_topic(names: NameFilter, policy: ReplicationPolicy, topic: str, target_alias: str) -> bool:
    """Whether a source topic is mirrored to this target."""
    return topic not in RESERVED_TOPICS and names.accepts(topic) and not policy.is_cycle(topic, target_alias)


def _matches(patterns: Sequence[str], name: str) -> bool:
    """Names of groups may have line feeds, which no pattern means to leave out."""
    return any(re.fullmatch(pattern, name, re.DOTALL) for pattern in patterns)
