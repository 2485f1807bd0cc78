"""Topics' settings change: one by one, or all at once (KIP-339).

Where a setting says how many replicas must be in sync, or that anybody may lead, it is looked at once more who may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from einmal.metadata.image import TOPIC_RESOURCE
from einmal.metadata.plan import MIN_INSYNC_REPLICAS, UNCLEAN_LEADER_ELECTION, Deciding, Plan
from einmal.metadata.records import ConfigRecord
from einmal.metadata.topic_configs import TOPIC_SETTINGS, problem_of
from einmal.metadata.topics import TopicResult
from einmal.shard.decision import Decision
from einmal.types import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """``operation``: Kafka's numbers, see the constants."""

    name: str
    operation: int
    value: str | None


SET, DELETE, APPEND, SUBTRACT = range(4)


class ConfigDecisions(Deciding):
    def alter_topic_configs(
        self, changes: Sequence[tuple[str, Sequence[ConfigChange]]], *, validate_only: bool = False
    ) -> Decision[list[TopicResult]]:
        """Change single settings (KIP-339)."""
        plan = self._plan()
        results = [self._change_configs(plan, name, wanted) for name, wanted in changes]
        return Decision(response=results) if validate_only else plan.decision(results)

    def replace_topic_configs(
        self, settings: Sequence[tuple[str, Mapping[str, str | None]]], *, validate_only: bool = False
    ) -> Decision[list[TopicResult]]:
        """Give topics these settings and no others."""
        plan = self._plan()
        results = []
        for name, wanted in settings:
            dropped = [item for item in self.image.topic_configs(name) if item not in wanted]
            changes = [
                *(ConfigChange(name=item, operation=DELETE, value=None) for item in dropped),
                *(ConfigChange(name=item, operation=SET, value=value) for item, value in wanted.items()),
            ]
            results.append(self._change_configs(plan, name, changes))
        return Decision(response=results) if validate_only else plan.decision(results)

    def _change_configs(self, plan: Plan, name: str, changes: Sequence[ConfigChange]) -> TopicResult:
        topic = self.image.topics.get(name)
        if topic is None:
            return TopicResult(name=name, error=ErrorCode.unknown_topic_or_partition)
        settings: dict[str, str | None] = dict(plan.settings.get(name) or self.image.topic_configs(name))
        touched: dict[str, None] = {}
        for change in changes:
            if change.operation == DELETE and change.name not in settings:
                # Not even an unknown one is a mistake: operators' tools take back what may never have been set.
                continue
            value, problem = _changed(settings.get(change.name), change)
            if problem is not None:
                return TopicResult(name=name, error=ErrorCode.invalid_config, message=problem)
            settings[change.name] = value
            touched[change.name] = None
        plan.records += [ConfigRecord(TOPIC_RESOURCE, name, item, settings[item]) for item in touched]
        plan.settings[name] = {item: value for item, value in settings.items() if value is not None}
        if MIN_INSYNC_REPLICAS in touched or UNCLEAN_LEADER_ELECTION in touched:
            plan.reconsider(topic)
        return TopicResult(name=name)


def _changed(current: str | None, change: ConfigChange) -> tuple[str | None, str | None]:
    """The new value of a setting, and what is wrong with the change."""
    value = change.value
    if change.operation == DELETE:
        value = None
    elif value is None:
        return None, f"Null value not supported for: {change.name}"
    elif change.operation in (APPEND, SUBTRACT):
        setting = TOPIC_SETTINGS.get(change.name)
        if setting is None or setting.kind != "LIST":
            return None, f"{change.name} is not a list: nothing can be appended to it or subtracted from it"
        items = [item for item in (current or "").split(",") if item]
        if change.operation == APPEND:
            value = ",".join(dict.fromkeys([*items, *value.split(",")]))
        else:
            value = ",".join(item for item in items if item not in value.split(","))
    return value, problem_of(change.name, value)
