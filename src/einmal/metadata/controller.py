"""Changes of the cluster's metadata: decided here, logged in ``__cluster_metadata``, carried out by ``replay``.

A shard (``shard/decision.py``): its decisions are in the files beside this one, by subject. Knows no files, no clock,
no network and no randomness. The image may be ahead of the committed records; answers wait for these.
"""

from __future__ import annotations

from typing import Final

from einmal.metadata.acls import AclDecisions
from einmal.metadata.brokers import BrokerDecisions
from einmal.metadata.client_quotas import ClientQuotaDecisions
from einmal.metadata.configs import ConfigDecisions
from einmal.metadata.features import FeatureDecisions
from einmal.metadata.image import BROKER_RESOURCE, CLUSTER_DEFAULT, ClusterImage
from einmal.metadata.partitions import PartitionDecisions
from einmal.metadata.plan import MIN_INSYNC_REPLICAS, CallOnBrokers, ControllerDefaults, MetadataDecision
from einmal.metadata.reassignment import ReassignmentDecisions
from einmal.metadata.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from einmal.metadata.scram_users import ScramDecisions
from einmal.metadata.topics import TopicDecisions
from einmal.shard.decision import Decision
from einmal.types import BrokerId, ErrorCode, Instant, ProducerId, ProducerIdAndEpoch

PRODUCER_IDS_PER_BLOCK: Final = 1_000


class Controller(
    BrokerDecisions,
    PartitionDecisions,
    ReassignmentDecisions,
    TopicDecisions,
    ConfigDecisions,
    FeatureDecisions,
    ClientQuotaDecisions,
    AclDecisions,
    ScramDecisions,
):
    """``image``: the metadata when this controller took over; the controller modifies it."""

    def __init__(self, defaults: ControllerDefaults | None = None, image: ClusterImage | None = None) -> None:
        super().__init__(defaults or ControllerDefaults())
        if image is not None:
            self.image = image

    # --- the shard -----------------------------------------------------------------------------------------------

    def replay(self, record: MetadataRecord) -> None:
        self.image.replay(record)
        if isinstance(record, RegisterBrokerRecord | BrokerRegistrationChangeRecord | UnregisterBrokerRecord):
            self._end_sessions()

    def replay_marker(self, producer: ProducerIdAndEpoch, committed: bool) -> None:
        raise AssertionError("no transaction writes to the metadata log")

    def loaded(self, now: Instant) -> tuple[MetadataDecision[None], ...]:
        self._begin_sessions(now)
        self._begin_looking(now)
        brokers = [broker for broker in self.image.brokers.values() if not broker.is_fenced]
        call_on = CallOnBrokers(tuple((broker.broker_id, broker.broker_epoch) for broker in brokers))
        return (self._settle(), Decision(response=None, actions=(call_on,)))

    def _settle(self) -> MetadataDecision[None]:
        """Record a new cluster's initial values, and the values of the controller's file that all nodes must agree on.

        The leader must know the same min.insync.replicas as the controller: eligibility depends on it (KIP-966). So the
        value in the controller's file overrides those in the brokers' files.
        """
        plan = self._plan()
        if not self.image.features:
            # A new cluster, in whose first batch they are: a later start does not bring back who was deleted.
            plan.records += self.defaults.scram_credentials
        levels = {**self.defaults.features, **self.image.features, **self.defaults.fixed_features}
        for name, level in levels.items():
            if self.image.features.get(name) != level:
                plan.records.append(FeatureLevelRecord(name, level))
        wanted = str(self.defaults.min_insync_replicas)
        if self.image.cluster_setting(MIN_INSYNC_REPLICAS) != wanted:
            plan.records.append(ConfigRecord(BROKER_RESOURCE, CLUSTER_DEFAULT, MIN_INSYNC_REPLICAS, wanted))
            plan.cluster_settings[MIN_INSYNC_REPLICAS] = wanted
            for topic in self.image.topics.values():
                plan.reconsider(topic)
        return plan.decision(None)

    def next_deadline(self) -> int | None:
        deadlines = (self._next_session_deadline(), self._next_look_ms)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def tick(self, now: Instant) -> tuple[MetadataDecision[None], ...]:
        plan = self._fence_one_stale(now)
        if plan is None and self._next_look_ms is not None and self._next_look_ms <= now.monotonic_ms:
            self._begin_looking(now)
            plan = self._move_leaders_back()
        return () if plan is None else (plan.decision(None),)

    # --- producer ids --------------------------------------------------------------------------------------------

    def allocate_producer_ids(self, broker_id: BrokerId, broker_epoch: int) -> MetadataDecision[range | ErrorCode]:
        """A block of producer ids that is never allocated again (KIP-730)."""
        broker = self.image.brokers.get(broker_id)
        if broker is None or broker.broker_epoch != broker_epoch:
            return Decision(response=ErrorCode.stale_broker_epoch)
        first = self.image.next_producer_id
        after = ProducerId(first + PRODUCER_IDS_PER_BLOCK)
        return Decision(records=(ProducerIdsRecord(broker_id, broker_epoch, after),), response=range(first, after))
