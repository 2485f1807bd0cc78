"""A declared flow of records from one cluster to another, and what is reported while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from einmal.mirror_protocol.replication_policy import (
    GROUPS_EXCLUDE,
    TOPICS_EXCLUDE,
    NameFilter,
    ReplicationPolicy,
    accepts_topic,
)
from einmal.types import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """``source`` and ``target``: aliases of clusters. ``by_partition``: never wait for transactions that overlap, and
    perhaps tear those over several partitions; see ``cut``. ``fail_on_data_loss``: stop where records of the source are
    gone before they were copied; otherwise report it and continue. ``offsets_max``: per partition and target
    transaction, unless one source transaction is longer. ``runs_max``: of one partition's map, beyond what known groups
    need. ``parts_max``: of transactions that were scanned and are not copied. ``parts_ahead``: how many of them are
    scanned in a partition before some are copied, by partition."""

    source: str
    target: str
    policy: ReplicationPolicy = field(default_factory=ReplicationPolicy)
    topics: NameFilter = field(default_factory=lambda: NameFilter(exclude=TOPICS_EXCLUDE))
    groups: NameFilter = field(default_factory=lambda: NameFilter(exclude=GROUPS_EXCLUDE))
    by_partition: bool = False
    fail_on_data_loss: bool = True
    offsets_max: int = 100_000
    runs_max: int = 100_000
    parts_max: int = 1_000_000
    parts_ahead: int = 10_000

    @property
    def name(self) -> str:
        return f"{self.source}->{self.target}"

    @property
    def transactional_id(self) -> str:
        return f"einmal-mirror-{self.source}-{self.target}"

    def accepts_topic(self, topic: str) -> bool:
        return accepts_topic(self.topics, self.policy, topic, self.target)

    def comes_back(self, topic: str) -> bool:
        """Whether a source topic that matches is not mirrored because, by its name, it comes from the target."""
        return self.topics.accepts(topic) and self.policy.is_cycle(topic, self.target)

    def remote_topic(self, topic: str) -> str:
        return self.policy.remote_topic(self.source, topic)


class NoticeKind(Enum):
    DATA_LOSS = "data loss"
    """Records were deleted at the source before they were copied, or were truncated there."""
    GONE = "gone"
    """A source topic was deleted, or no longer matches."""
    ASIDE = "aside"
    """A topic cannot be copied; all others are."""
    FILLED = "filled"
    """A copy has records before the first that is copied to it."""
    BACK = "back"
    """A topic that was left out is copied again, or a cluster answers again."""
    STUCK = "stuck"
    """A step fails, for instance because a cluster does not answer, and is tried again."""
    BEHIND = "behind"
    """A source partition ends before the mirror's position, and it is not known why; or a truncated log has lost
    offsets of groups."""
    SETTINGS = "settings"
    """Settings or ACLs of a topic are not copied."""
    HELD = "held"
    """Committed records wait for transactions that stay open."""
    TORN = "torn"
    """``__transaction_state`` cannot be read."""
    UNMARKED = "unmarked"
    """A transaction of the source has no marker in a partition."""
    UNTRANSLATED = "untranslated"
    """A group's offset has no exact translation."""
    MOVED = "moved"
    """A group runs at the target, or has committed there."""
    REFUSED = "refused"
    """A group's offset is not translated: the target refuses it."""
    OLD_OFFSET = "old offset"
    """A group's offset was skipped as one of a topic that was created again since."""


@dataclass(frozen=True, slots=True)
class MirrorNotice:
    """``subject``: a topic, partition or group. ``offset``: of a group, in ``partition``."""

    kind: NoticeKind
    subject: str
    text: str
    partition: TopicPartition | None = None
    offset: int | None = None
