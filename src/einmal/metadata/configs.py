"""Changes of settings: those of topics, and of all brokers, which topics inherit; single ones or all (KIP-339).

After a change of min.insync.replicas or unclean.leader.election.enable the eligible leaders are evaluated again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from einmal.metadata.image import BROKER_RESOURCE, CLUSTER_DEFAULT, TOPIC_RESOURCE
from einmal.metadata.plan import MIN_INSYNC_REPLICAS, UNCLEAN_LEADER_ELECTION, Deciding, MetadataDecision, Plan
from einmal.metadata.records import ConfigRecord
from einmal.metadata.topic_configs import COMPACTION_LAGS, TOPIC_SETTINGS, conflict_of, problem_of
from einmal.metadata.topics import TopicResult, error_of_absent, policy_problem
from einmal.shard.decision import Decision
from einmal.types import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """``operation``: Kafka's numbers, see the constants."""

    name: str
    operation: int
    value: str | None


SET, DELETE, APPEND, SUBTRACT = range(4)
_UNLIMITED: Final = -1
_BYTES_PER_REQUEST_MAX: Final = 8 * 1024 * 1024
"""Maximum size of the settings that one request changes: they are one batch of the metadata log. APPEND writes a value
of 32 KB for a request's few bytes."""

CHANGED_FOR_ALL: Final[Mapping[str, str]] = {
    setting.broker_key: name
    for name, setting in TOPIC_SETTINGS.items()
    if setting.broker_key not in (None, MIN_INSYNC_REPLICAS)
}
"""The settings of all brokers that can be changed while they run, with their topic-level names."""


def problem_of_changes(changes: Sequence[ConfigChange]) -> str | None:
    """Why nothing can be changed like this, whatever it is; None: something can. As Apache Kafka's brokers check it."""
    names = dict.fromkeys(change.name for change in changes)
    if len(names) < len(changes):
        return "Error due to duplicate config keys: name each setting once."
    for change in changes:
        if change.operation not in (SET, DELETE, APPEND, SUBTRACT):
            return f"Unknown operations type {change.operation} for: {change.name}"
        if change.operation != DELETE and change.value is None:
            return f"Null value not supported for: {change.name}"
    return None


class ConfigDecisions(Deciding):
    def alter_topic_configs(
        self, changes: Sequence[tuple[str, Sequence[ConfigChange]]], *, validate_only: bool = False
    ) -> MetadataDecision[list[TopicResult]]:
        """Change single settings (KIP-339)."""
        plan = self._plan()
        results = [self._change_configs(plan, name, wanted) for name, wanted in changes]
        return Decision(response=results) if validate_only else plan.decision(results)

    def replace_topic_configs(
        self, settings: Sequence[tuple[str, Mapping[str, str | None]]], *, validate_only: bool = False
    ) -> MetadataDecision[list[TopicResult]]:
        """Replace all settings of topics."""
        plan = self._plan()
        results = []
        for name, wanted in settings:
            dropped = [item for item in self._own_configs(plan, name) if item not in wanted]
            changes = [
                *(ConfigChange(name=item, operation=DELETE, value=None) for item in dropped),
                *(ConfigChange(name=item, operation=SET, value=value) for item, value in wanted.items()),
            ]
            results.append(self._change_configs(plan, name, changes))
        return Decision(response=results) if validate_only else plan.decision(results)

    def alter_cluster_configs(
        self, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> MetadataDecision[TopicResult]:
        """Change single settings of all brokers."""
        plan = self._plan()
        result = self._change_cluster_configs(plan, changes)
        return Decision(response=result) if validate_only else plan.decision(result)

    def replace_cluster_configs(
        self, wanted: Mapping[str, str | None], *, validate_only: bool = False
    ) -> MetadataDecision[TopicResult]:
        """Replace all settings of all brokers, except those from the controllers' files."""
        dropped = [name for name in self.image.cluster_configs if name not in wanted and name != MIN_INSYNC_REPLICAS]
        changes = [ConfigChange(name=name, operation=DELETE, value=None) for name in dropped]
        changes += [ConfigChange(name=name, operation=SET, value=value) for name, value in wanted.items()]
        return self.alter_cluster_configs(changes, validate_only=validate_only)

    def _change_cluster_configs(self, plan: Plan, changes: Sequence[ConfigChange]) -> TopicResult:
        settings: dict[str, str | None] = dict(self.image.cluster_configs)
        touched, problem = _apply(settings, changes, _changed_at_brokers)
        if problem is not None:
            return TopicResult(name=CLUSTER_DEFAULT, error=ErrorCode.invalid_config, message=problem)
        plan.records += [ConfigRecord(BROKER_RESOURCE, CLUSTER_DEFAULT, item, settings[item]) for item in touched]
        if UNCLEAN_LEADER_ELECTION in touched:
            plan.cluster_settings[UNCLEAN_LEADER_ELECTION] = settings[UNCLEAN_LEADER_ELECTION]
            for topic in self.image.topics.values():
                plan.reconsider(topic)
        return TopicResult(name=CLUSTER_DEFAULT)

    def _change_configs(self, plan: Plan, name: str, changes: Sequence[ConfigChange]) -> TopicResult:
        topic = self.image.topics.get(name)
        if topic is None:
            return TopicResult(name=name, error=error_of_absent(name))
        settings: dict[str, str | None] = dict(self._own_configs(plan, name))
        touched, problem = _apply(settings, changes, _changed)
        if problem is None and "cleanup.policy" in touched:
            problem = policy_problem(name, settings)
        if problem is None and any(item in touched for item in COMPACTION_LAGS):
            problem = conflict_of(settings)
        if problem is not None:
            return TopicResult(name=name, error=ErrorCode.invalid_config, message=problem)
        plan.setting_bytes += sum(len(item) + len(settings[item] or "") for item in touched)
        if plan.setting_bytes > _BYTES_PER_REQUEST_MAX:
            message = f"The request changes more than {_BYTES_PER_REQUEST_MAX} bytes of settings: use several requests."
            return TopicResult(name=name, error=ErrorCode.policy_violation, message=message)
        plan.records += [ConfigRecord(TOPIC_RESOURCE, name, item, settings[item]) for item in touched]
        plan.settings[name] = {item: value for item, value in settings.items() if value is not None}
        if MIN_INSYNC_REPLICAS in touched or UNCLEAN_LEADER_ELECTION in touched:
            plan.reconsider(topic)
        return TopicResult(name=name)

    def _own_configs(self, plan: Plan, topic: str) -> Mapping[str, str]:
        """Those of the topic after the planned records."""
        planned = plan.settings.get(topic)
        return self.image.topic_configs(topic) if planned is None else planned


def _apply(
    settings: dict[str, str | None],
    changes: Sequence[ConfigChange],
    changed: Callable[[str | None, ConfigChange], tuple[str | None, str | None]],
) -> tuple[dict[str, None], str | None]:
    """Make the changes in ``settings``: returns the changed names, and the problem of the first refused change."""
    touched: dict[str, None] = {}
    for change in changes:
        if change.operation == DELETE and change.name not in settings:
            # Not even an unknown one is an error: operators' tools reset settings that may never have been set.
            continue
        value, problem = changed(settings.get(change.name), change)
        if problem is not None:
            return touched, problem
        settings[change.name] = value
        touched[change.name] = None
    return touched, None


def _changed_at_brokers(current: str | None, change: ConfigChange) -> tuple[str | None, str | None]:
    """As ``_changed``, of a setting that all brokers have."""
    topic_name = CHANGED_FOR_ALL.get(change.name)
    if change.name == MIN_INSYNC_REPLICAS:
        return None, f"{MIN_INSYNC_REPLICAS} of all brokers is set in the controllers' file: change it there."
    if topic_name is None:
        return None, f"Cannot update these configs dynamically: {change.name}"
    value, problem = _changed(current, replace(change, name=topic_name))
    if problem is None and value is not None:
        return value, _problem_at_brokers(change.name, value)
    return value, None if problem is None else problem.replace(topic_name, change.name, 1)


def _problem_at_brokers(name: str, value: str) -> str | None:
    """Return the problem of what a topic may be set to, and a broker's file may not; ``value`` is valid for a topic."""
    if name == "log.retention.ms" and int(value) == 0:
        return f"Invalid value for configuration {name}: '{value}' is neither -1 (never) nor at least 1"
    if name == "log.retention.bytes" and int(value) < _UNLIMITED:
        return f"Invalid value for configuration {name}: '{value}' is neither -1 (no limit) nor at least 0"
    if name == "log.cleanup.policy" and len(dict.fromkeys(value.split(","))) < len(value.split(",")):
        return f"Invalid value for configuration {name}: '{value}' has a policy twice"
    return None


def _changed(current: str | None, change: ConfigChange) -> tuple[str | None, str | None]:
    """The new value of a setting, and the problem of the change."""
    value = change.value
    if change.operation == DELETE:
        value = None
    elif value is None:
        return None, f"Null value not supported for: {change.name}"
    elif change.operation in (APPEND, SUBTRACT):
        setting = TOPIC_SETTINGS.get(change.name)
        if setting is None or setting.kind != "LIST":
            return None, f"{change.name} is not a list: nothing can be appended to it or subtracted from it"
        items = [item for item in (setting.default if current is None else current).split(",") if item]
        if change.operation == APPEND:
            value = ",".join(dict.fromkeys([*items, *value.split(",")]))
        else:
            dropped = dict.fromkeys(value.split(","))
            value = ",".join(item for item in items if item not in dropped)
    return value, problem_of(change.name, value)
