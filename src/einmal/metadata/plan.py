"""A decision in progress: its records, and the state after the records so far.

``decide`` never changes the image, so changes of a partition are kept here until they are logged and replayed. Also
shared by all parts of the controller: its settings and its actions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias, TypeVar
from uuid import UUID

from einmal.metadata.image import ClusterImage, PartitionImage, TopicImage
from einmal.metadata.partition_change import Circumstances, Election, Outcome, change, record_of
from einmal.metadata.records import MetadataRecord, UserScramCredentialRecord
from einmal.shard.decision import Decision
from einmal.types import BrokerId

R = TypeVar("R")

MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
UNCLEAN_LEADER_ELECTION: Final = "unclean.leader.election.enable"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerDefaults:
    """The controller's own settings.

    ``features``: initial levels of a new cluster; ``fixed_features``: levels that its file requires.
    """

    partitions: int = 1
    replication_factor: int = 1
    min_insync_replicas: int = 1
    unclean_leader_election: bool = False
    session_timeout_ms: int = 9_000
    own_broker: BrokerId | None = None
    """The broker in the controller's own process."""
    preferred_leaders_every_ms: int | None = 300_000
    """None: leaders are moved back only on request."""
    features: Mapping[str, int] = field(default_factory=dict)
    fixed_features: Mapping[str, int] = field(default_factory=dict)
    scram_credentials: tuple[UserScramCredentialRecord, ...] = ()
    """Credentials of a new cluster."""


@dataclass(frozen=True, slots=True)
class LedAtRisk:
    """Action: a replica leads that may lack committed records; ``outcome``: why it may lead.

    ``has_others``: whether there are other replicas, which may have more.
    """

    topic: str
    partition_id: int
    leader: BrokerId
    outcome: Outcome
    has_others: bool


@dataclass(frozen=True, slots=True)
class BrokerFenced:
    """Action: a broker is fenced: it leads nothing and is in no ISR until it sends heartbeats again."""

    broker_id: BrokerId
    broker_epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class BrokerUnfenced:
    """Action: a broker is unfenced."""

    broker_id: BrokerId
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class CallOnBrokers:
    """Action: find out which of these brokers, with their epochs, still run."""

    brokers: tuple[tuple[BrokerId, int], ...]


ControllerAction: TypeAlias = LedAtRisk | BrokerFenced | BrokerUnfenced | CallOnBrokers
MetadataDecision: TypeAlias = Decision[MetadataRecord, ControllerAction, R]


class Plan:
    """``active``: brokers that will be active, or not, other than in the image."""

    def __init__(
        self, image: ClusterImage, defaults: ControllerDefaults, active: Mapping[BrokerId, bool] | None = None
    ) -> None:
        self.records: list[MetadataRecord] = []
        self.actions: list[ControllerAction] = []
        self.settings: dict[str, Mapping[str, str]] = {}
        """All settings of the topics whose settings this decision changes."""
        self.setting_bytes = 0
        """Size of the topics' settings that this decision was to change so far."""
        self.cluster_settings: dict[str, str | None] = {}
        """Those settings of all brokers that this decision changes."""
        self._image = image
        self._defaults = defaults
        self._active = active or {}
        self._partitions: dict[tuple[UUID, int], PartitionImage] = {}

    def decision(self, response: R) -> MetadataDecision[R]:
        return Decision(records=tuple(self.records), response=response, actions=tuple(self.actions))

    def is_active(self, broker_id: BrokerId) -> bool:
        if broker_id in self._active:
            return self._active[broker_id]
        broker = self._image.brokers.get(broker_id)
        return broker is not None and broker.is_active

    # --- partitions ----------------------------------------------------------------------------------------------

    def partition(self, topic: TopicImage, partition_id: int) -> PartitionImage | None:
        """The partition after the planned records; None: there is none."""
        planned = self._partitions.get((topic.topic_id, partition_id))
        if planned is None and 0 <= partition_id < len(topic.partitions):
            return topic.partitions[partition_id]
        return planned

    def partitions(self) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
        """All of the cluster."""
        for topic in self._image.topics.values():
            for partition_id, partition in enumerate(topic.partitions):
                yield topic, partition_id, self._partitions.get((topic.topic_id, partition_id), partition)

    def change(
        self,
        topic: TopicImage,
        partition_id: int,
        wanted: PartitionImage,
        *,
        election: Election | None = None,
        unclean: Collection[BrokerId] = (),
        wiped: Collection[BrokerId] = (),
        restate_isr: bool = False,
    ) -> PartitionImage:
        """Change a partition to ``wanted`` and its consequences. Returns the partition afterwards.

        ``election`` None: unclean if the topic's settings allow it. ``restate_isr``: write a record even without a
        change.
        """
        before = self.partition(topic, partition_id)
        assert before is not None, "an existing partition"
        if election is None:
            election = Election.UNCLEAN if self.allows_unclean(topic) else Election.ONLINE
        circumstances = Circumstances(
            may_lead=self.is_active,
            min_insync_replicas=self.min_insync_replicas(topic),
            election=election,
            unclean=unclean,
            wiped=wiped,
        )
        after, outcome = change(before, wanted, circumstances)
        record = record_of(topic.topic_id, partition_id, before, after)
        if restate_isr and record.isr is None:
            record = replace(record, isr=after.isr)
        elif after == before:
            return before
        self.records.append(record)
        self._partitions[topic.topic_id, partition_id] = after = before.changed(record)
        if outcome is not Outcome.CLEAN:
            has_others = len(after.replicas) > 1
            self.actions.append(LedAtRisk(topic.name, partition_id, after.leader, outcome, has_others))
        return after

    def reconsider(self, topic: TopicImage) -> None:
        """Reconsider every partition: eligibility depends on settings, too."""
        for partition_id, partition in enumerate(topic.partitions):
            self.change(topic, partition_id, self.partition(topic, partition_id) or partition)

    # --- settings ------------------------------------------------------------------------------------------------

    def _setting(self, topic: TopicImage, name: str) -> str | None:
        own = self.settings.get(topic.name, self._image.topic_configs(topic.name)).get(name)
        if own is not None:
            return own
        return self.cluster_settings.get(name, self._image.cluster_setting(name))

    def min_insync_replicas(self, topic: TopicImage) -> int:
        value = self._setting(topic, MIN_INSYNC_REPLICAS)
        return self._defaults.min_insync_replicas if value is None else int(value)

    def allows_unclean(self, topic: TopicImage) -> bool:
        value = self._setting(topic, UNCLEAN_LEADER_ELECTION)
        return self._defaults.unclean_leader_election if value is None else value.lower() == "true"


class Deciding:
    """The common state of all parts of the controller: the image, and its settings."""

    def __init__(self, defaults: ControllerDefaults) -> None:
        self.image = ClusterImage()
        self.defaults = defaults

    def _plan(self, active: Mapping[BrokerId, bool] | None = None) -> Plan:
        return Plan(self.image, self.defaults, active)
