"""Features: what the cluster as a whole has agreed to speak, in levels (KIP-584).

A level holds for everybody, so each registered broker must support it. A new cluster begins with the levels of its
first controller's settings; later ones are an operator's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from einmal.metadata.plan import Deciding, MetadataDecision
from einmal.metadata.records import FeatureLevelRecord, SupportedFeature
from einmal.shard.decision import Decision
from einmal.types import ErrorCode

METADATA_VERSION: Final = "metadata.version"
TRANSACTION_VERSION: Final = "transaction.version"
ELR_VERSION: Final = "eligible.leader.replicas.version"

SUPPORTED_FEATURES: Final = (
    # Kafka 4.0 to 4.1: the records that we write are the same in all of them.
    SupportedFeature(METADATA_VERSION, 25, 27),
    SupportedFeature(TRANSACTION_VERSION, 0, 2),
    # Without eligible leader replicas it would be another election that nobody needs.
    SupportedFeature(ELR_VERSION, 1, 1),
)
"""By this version of einmal, as broker and as controller."""
FIRST_LEVELS: Final = {METADATA_VERSION: 27, ELR_VERSION: 1}
"""Feature levels of a new cluster, beside the transaction version, which is a setting."""

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
"""Kinds of update, in Kafka's numbers."""


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    name: str
    level: int
    kind: int = UPGRADE


@dataclass(frozen=True, slots=True)
class FeatureResult:
    error: ErrorCode = ErrorCode.none
    message: str | None = None


class FeatureDecisions(Deciding):
    def update_features(
        self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False
    ) -> MetadataDecision[FeatureResult]:
        """All of them, or none and what is wrong with the first that cannot be."""
        if len(dict.fromkeys(update.name for update in updates)) < len(updates):
            # First, because each update is compared with every broker.
            return Decision(response=FeatureResult(ErrorCode.invalid_request, "A feature is named twice."))
        for update in updates:
            if (reason := self._feature_problem(update)) is not None:
                message = f"Invalid update version {update.level} for feature {update.name}. {reason}"
                return Decision(response=FeatureResult(ErrorCode.invalid_update_version, message))
        records = tuple(
            FeatureLevelRecord(update.name, update.level)
            for update in updates
            if update.level != self.image.features.get(update.name, 0)
        )
        return Decision(records=() if validate_only else records, response=FeatureResult())

    def _feature_problem(self, update: FeatureUpdate) -> str | None:
        if update.kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
            return "The controller does not support the given upgrade type."
        supported: list[tuple[str, Sequence[SupportedFeature]]] = [("This controller", SUPPORTED_FEATURES)]
        supported += [(f"Broker {broker.broker_id}", broker.features) for broker in self.image.brokers.values()]
        for who, features in supported:
            levels = {feature.name: feature for feature in features}
            feature = levels.get(update.name, SupportedFeature(update.name, 0, 0))
            if not feature.min_supported_version <= update.level <= feature.max_supported_version:
                return f"{who} supports {feature.min_supported_version} to {feature.max_supported_version} only."
        level = self.image.features.get(update.name, 0)
        if update.level < level and update.kind == UPGRADE:
            return "Can't downgrade the version of this feature without asking for a downgrade."
        if update.level > level and update.kind != UPGRADE:
            return "Can't downgrade to a newer version."
        return None
